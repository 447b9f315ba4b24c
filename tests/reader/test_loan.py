"""A csv file behind a URL that is not read to its end: no thread is left that the exit would abort.

Above it: pytest. Below it: hps/reader/loan.py, csv_blocks.py, urls.py. What ends is a process of
its own, while a range of its file is being fetched.
"""

import errno
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hps.errors import StoreError
from hps.reader.loan import Loan
from hps.reader.urls import UrlStream
from tests.reader.ends import Processes, processes

ENDS = """
import gc, gzip, os, sys, threading, time
import fsspec, zstandard
import hps
from fsspec.implementations.memory import MemoryFileSystem
from hps.reader import ReaderConfig, open_reader, urls

packed, threads, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
text = os.urandom(1 << 20).hex()
rows = [f"1,{text[at : at + 60]}" for at in range(0, len(text), 60)]
if how == "failed":
    rows[7] += ",more"
data = "\\n".join(["label,key", *rows]).encode()
if packed:
    pack = gzip.compress if packed == ".gz" else zstandard.ZstdCompressor().compress
    data = pack(data)
with fsspec.open(f"memory://logs/a.csv{packed}", "wb") as file:
    file.write(data)
began, fetch = threading.Event(), MemoryFileSystem.cat_file
urls.UrlFile.open.__kwdefaults__["ahead"] = 1 << 17

def slow(self, path, start=None, end=None, **named):
    if is_slow:
        began.set()
        time.sleep(0.2)  # a slow network
    return fetch(self, path, start, end, **named)

MemoryFileSystem.cat_file, is_slow = slow, False
config = ReaderConfig(format="csv", batch_size=64, threads=threads)
reader = open_reader(
    f"memory://logs/a.csv{packed}", tables=[hps.TableConfig(name="ads", dim=2)], config=config
)
try:
    batches = iter(reader)
    is_slow = True
    batch = next(batches)
except hps.DataError as error:
    kept = error
assert began.wait(60)
if how == "closed":
    reader.close()
if how == "dropped":
    del reader, batches, batch
    gc.collect()
print("end")
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("ends")) as found:
        yield found


@pytest.mark.parametrize(
    ("packed", "threads", "how"),
    [
        ("", 1, "left"),
        (".gz", 2, "left"),
        (".zst", 1, "left"),
        ("", 1, "closed"),
        ("", 2, "dropped"),
        ("", 2, "failed"),
    ],
)
def test_a_process_ends_well_while_a_range_is_fetched(
    forked: Processes, packed: str, threads: int, how: str
) -> None:
    done = forked.run(ENDS, packed, threads, how)
    assert (done.status, done.out) == (0, "end\n"), done.err


def stream_of(fetch: object) -> UrlStream:
    return UrlStream("memory://a", 100, fetch, 10)  # type: ignore[arg-type]


def test_the_end_waits_for_a_read_and_refuses_later_ones() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def fetch(begin: int, end: int) -> bytes:
        began.set()
        assert goes_on.wait(60)
        return b"x" * (end - begin)

    held: list[object] = []
    stream = stream_of(fetch)
    loan = Loan(stream, held.clear)
    lent = loan.lend()
    held.append(lent)
    found: list[bytes] = []

    def use(lent: object) -> None:
        found.append(lent.read(5))  # type: ignore[attr-defined]

    reads = threading.Thread(target=use, args=(lent,))
    reads.start()
    del lent
    assert began.wait(60)
    ends = threading.Thread(target=loan.end)
    ends.start()
    ends.join(0.1)
    assert ends.is_alive() and not found, "it has not waited"
    goes_on.set()
    ends.join(60)
    reads.join(60)
    assert not ends.is_alive() and found == [b"xxxxx"] and not held
    with pytest.raises(StoreError, match="cannot read memory://a: its reader has been closed"):
        stream.read(5)


def test_a_read_that_fails_is_not_tried_again_once_it_is_closed() -> None:
    tries: list[int] = []

    def fetch(begin: int, end: int) -> bytes:
        tries.append(begin)
        stream.close()
        raise OSError(errno.ECONNRESET, "reset")

    stream = stream_of(fetch)
    with pytest.raises(StoreError, match="memory://a, tried 1 time: "):
        stream.read(5)
    assert tries == [0]


def test_the_thread_that_reads_does_not_wait_for_itself() -> None:
    """Garbage may be collected there, and a reader with it."""
    loan: Loan

    def fetch(begin: int, end: int) -> bytes:
        loan.end()
        return b"x" * (end - begin)

    loan = Loan(stream_of(fetch), lambda: None)
    lent = loan.lend()
    reads = threading.Thread(target=lent.read, args=(5,), daemon=True)
    reads.start()
    reads.join(60)
    assert not reads.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    script = (
        "import os, signal\n"
        "from hps.reader.loan import Loan\n"
        "from hps.reader.urls import UrlStream\n"
        "loan = Loan(UrlStream('memory://a', 9, None, 9), lambda: None)\n"
        "lent = loan.lend()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    loan.end()\n"
        "    os._exit(7)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "del lent\n"
        "raise SystemExit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 7


def test_a_loan_that_has_ended_is_forgotten() -> None:
    loan = Loan(stream_of(None), lambda: None)
    loan.end()
    loan.end()
    gc.collect()
    assert not any(isinstance(one, Loan) for one in gc.get_objects() if one is not loan)
