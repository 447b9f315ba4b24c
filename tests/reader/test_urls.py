"""Logs behind URLs: the batches of local files, in ranges, at positions, and errors with the URL.

Above it: pytest. Below it: hps/reader/urls.py, the readers. The network is fsspec's own memory, and
a file system of this file that counts what is read and fails when it is told to.
"""

import contextlib
import errno
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem

import hps
from hps.cli.main import main
from hps.errors import ConfigError, DataError, StoreError
from hps.reader import Reader, ReaderConfig, open_reader, urls
from hps.reader.files import find_files
from tests.logs import write_criteo

TABLES = [hps.TableConfig(name="ads", dim=4)]
EXAMPLES = 250


class Flaky(MemoryFileSystem):
    """Memory behind `flaky://` that counts the bytes read and fails `failures` times."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures = 0
    num_read = 0

    def glob(self, path: str, **kwargs: Any) -> Any:
        """In no order, as a bucket may list it."""
        return dict(reversed(super().glob(path, **kwargs).items()))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        if Flaky.failures > 0:
            Flaky.failures -= 1
            raise RuntimeError("the connection was reset")
        data: bytes = super().cat_file(path, start, end, **kwargs)
        Flaky.num_read += len(data)
        return data


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty file systems of memory, and no waits."""
    monkeypatch.setattr(urls, "_FIRST_WAIT_SECONDS", 0.0)
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.failures = Flaky.num_read = 0
    yield
    MemoryFileSystem.store.clear()
    Flaky.store.clear()


def put(path: Path, folder: str = "memory://bucket/logs") -> str:
    url = f"{folder}/{path.name}"
    with fsspec.open(url, "wb") as file:
        file.write(path.read_bytes())
    return url


def write_log(folder: Path, kind: str) -> Path:
    rows = range(EXAMPLES)
    if kind == "criteo":
        return write_criteo(folder / "log.tsv", EXAMPLES)
    if kind == "parquet":
        table = pa.table({"label": [row % 2 for row in rows], "key": [row * 7 for row in rows]})
        pq.write_table(table, folder / "log.parquet", row_group_size=32)
        return folder / "log.parquet"
    lines = {
        "csv": ["label,key", *(f"{row % 2},{row * 7}" for row in rows)],
        "libsvm": [f"{row % 2} {row * 7}:1 {row + 3}:0.5" for row in rows],
        "libffm": [f"{row % 2} 0:{row * 7}:1 1:{row}:1" for row in rows],
        "slots": [f"click:{row % 2} 1:{row * 7} 2:{row}" for row in rows],
    }[kind]
    path = folder / f"log.{kind}"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read(paths: Any, kind: str, state: Any = None, **changes: Any) -> tuple[Reader, list[Any]]:
    config = ReaderConfig(**{"format": kind, "batch_size": 64, **changes})
    reader = open_reader(paths, tables=TABLES, config=config)
    if state is not None:
        reader.load_state_dict(state)
    found = [
        (batch.features["ads"].keys_L.tolist(), batch.labels.tolist(), reader.state_dict())
        for batch in reader
    ]
    return reader, found


FORMATS = ("criteo", "csv", "libsvm", "libffm", "slots", "parquet")


@pytest.mark.parametrize("scheme", ["memory", "file"])
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_url_gives_the_batches_and_positions_of_the_file(
    kind: str, packed: str, scheme: str, tmp_path: Path, memory: None
) -> None:
    path = write_log(tmp_path, kind)
    if kind == "parquet" and packed:
        pytest.skip("parquet packs its own pages")
    if packed:
        data = path.read_bytes()
        path = path.with_name(path.name + packed)
        packer = gzip.compress if packed == ".gz" else zstandard.ZstdCompressor().compress
        path.write_bytes(packer(data))
    url = put(path) if scheme == "memory" else f"file://{path}"
    _, wanted = read(path, kind)
    reader, found = read(url, kind)
    assert found == wanted and len(found) == 4
    assert reader.state_dict()["files"] == [[path.name, path.stat().st_size]]
    _, rest = read(url, kind, state=wanted[1][2])
    assert rest == wanted[2:], "resumed in the middle"
    if kind in ("parquet", "criteo"):
        config = ReaderConfig(batch_size=64)
        with contextlib.closing(open_reader(url, tables=TABLES, config=config)) as told:
            assert told.format == kind


def test_patterns_are_sorted_by_name_and_may_name_folders(tmp_path: Path, memory: None) -> None:
    for day in (2, 1, 10):
        for part in ("part-b", "part-a"):
            path = tmp_path / f"{part}.libsvm"
            path.write_text(f"1 {day * 100 + (part == 'part-b')}:1\n")
            put(path, f"memory://bucket/day={day:02}")
    with fsspec.open("memory://bucket/day=01/readme.txt", "wb") as file:
        file.write(b"no log")
    files = find_files("memory://bucket/day=*/part-*.libsvm")
    assert [str(file) for file in files] == [
        f"memory://bucket/day={day}/part-{part}.libsvm"
        for day in ("01", "02", "10")
        for part in "ab"
    ]
    _, found = read("memory://bucket/day=*/part-*.libsvm", "libsvm")
    assert found[0][0] == [100, 101, 200, 201, 1000, 1001]
    _, found = read(
        [str(tmp_path / "part-a.libsvm"), "memory://bucket/day=01/part-a.libsvm"], "libsvm"
    )
    assert found[0][0] == [1000, 100], "a file and a URL"
    for part in ("b", "a", "c"):
        put(write_log(tmp_path, "libsvm").rename(tmp_path / f"{part}.libsvm"), "flaky://bucket")
    assert [file.name[0] for file in find_files("flaky://bucket/*.libsvm")] == ["a", "b", "c"]
    nothing = (
        r"no file matches 'memory://bucket/day=7\*/x', and there is a folder 'memory://bucket'"
    )
    with pytest.raises(ConfigError, match=nothing):
        find_files("memory://bucket/day=7*/x")
    nothing = r"matches 'memory://bukcet/day/\*.tsv', and there is no folder 'memory://bukcet/day'"
    with pytest.raises(ConfigError, match=nothing):
        find_files(["memory://bucket/day=01/*", "memory://bukcet/day/*.tsv"])
    with pytest.raises(StoreError, match=r"memory://bucket/none.tsv: there is no such file"):
        find_files("memory://bucket/none.tsv")


def test_a_folder_that_cannot_be_listed_is_not_left_out(
    tmp_path: Path, memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("01", "02"):
        write_log(tmp_path, "libsvm")
        put(tmp_path / "log.libsvm", f"flaky://bucket/day={day}")
    listed, broken = Flaky.ls, ["day=02"]

    def ls(self: Flaky, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if any(path.endswith(name) for name in broken):
            raise OSError(errno.EIO, "the connection was reset")
        return listed(self, path, detail, **kwargs)

    monkeypatch.setattr(Flaky, "ls", ls)
    pattern = "flaky://bucket/day=*/log.libsvm"
    with pytest.raises(StoreError, match=r"cannot read flaky://bucket/day=\*/log\.libsvm, tried 4"):
        find_files(pattern)
    broken.clear()
    assert len(find_files(pattern)) == 2


def test_a_name_with_the_characters_of_a_pattern_is_that_file(tmp_path: Path, memory: None) -> None:
    (tmp_path / "a[1].libsvm").write_text("1 5:1\n")
    (file,) = find_files(put(tmp_path / "a[1].libsvm"))
    assert file.name == "a[1].libsvm"


def test_what_cannot_be_read_is_told_with_its_url(
    memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"cannot read memory://bucket/none\.tsv: "):
        find_files("memory://bucket/none.tsv")
    with pytest.raises(ConfigError, match=r"nope://x/y: Protocol not known: nope"):
        find_files("nope://x/y")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"gs://bucket/x: .*install gcsfs.*gcsfs for gs://"):
        find_files("gs://bucket/x")
    fsspec.filesystem("memory").mkdir("/bucket/folder")
    with pytest.raises(StoreError, match="memory://bucket/folder: it is a directory"):
        find_files("memory://bucket/folder")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'hps-ctr\[url\]'"):
        find_files("memory://bucket/x")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_network_that_fails_is_tried_again_and_then_told(
    kind: str, tmp_path: Path, memory: None
) -> None:
    path = write_log(tmp_path, kind)
    url = put(path, "flaky://bucket")
    _, wanted = read(path, kind)
    Flaky.failures = 3
    assert read(url, kind)[1] == wanted
    config = ReaderConfig(format=kind, batch_size=64)
    Flaky.failures = 10**9
    with pytest.raises(StoreError, match=f"flaky://bucket/{path.name}, tried 4 times: Runtime"):
        list(open_reader(url, tables=TABLES, config=config))


def test_what_fails_for_long_is_not_tried_again(
    tmp_path: Path, memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(write_log(tmp_path, "libsvm"), "flaky://bucket")
    monkeypatch.setattr(urls, "_PATIENCE_SECONDS", 0.0)
    Flaky.failures = 10
    with pytest.raises(StoreError, match=r"log\.libsvm, tried 1 time: RuntimeError"):
        read(url, "libsvm")
    assert Flaky.failures == 9


def test_a_file_that_changes_is_refused(tmp_path: Path, memory: None) -> None:
    path = write_log(tmp_path, "libsvm")
    url = put(path)
    reader = open_reader(url, tables=TABLES, config=ReaderConfig(format="libsvm", batch_size=64))
    path.write_text("1 1:1\n")
    put(path)
    with pytest.raises(StoreError, match=r"log\.libsvm has changed since this run began"):
        list(reader)


def test_a_position_of_another_size_is_refused(tmp_path: Path, memory: None) -> None:
    path = write_log(tmp_path, "libsvm")
    state = read(put(path), "libsvm")[1][1][2]
    path.write_text("1 1:1\n" * 300)
    with pytest.raises(ConfigError, match=r"bytes, but 'memory://bucket/logs/log\.libsvm' of 1800"):
        read(put(path), "libsvm", state=state)


def test_a_file_that_ends_early_and_a_damaged_one_are_told(tmp_path: Path, memory: None) -> None:
    path = write_log(tmp_path, "parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"memory://bucket/logs/log\.parquet is not a parquet"):
        read(put(path), "parquet")
    packed = tmp_path / "log.libsvm.gz"
    packed.write_bytes(gzip.compress(b"1 1:1\n" * 1000)[:-10])
    with pytest.raises(DataError, match=r"memory://bucket/logs/log\.libsvm\.gz: the gzip stream"):
        read(put(packed), "libsvm")


def test_only_what_is_wanted_of_parquet_is_read(tmp_path: Path, memory: None) -> None:
    rng = np.random.default_rng(0)
    columns = {"label": rng.integers(0, 2, 20000), "key": rng.integers(0, 2**60, 20000)}
    columns |= {f"unused{number}": rng.integers(0, 2**60, 20000) for number in range(8)}
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=5000, compression="none")
    url = put(path, "flaky://bucket")
    unused = [f"unused{number}" for number in range(8)]
    _, found = read(url, "parquet", ignore=unused, batch_size=5000)
    whole, size = Flaky.num_read, path.stat().st_size
    assert len(found) == 4 and whole < size / 2
    Flaky.num_read = 0
    read(url, "parquet", found[2][2], ignore=unused, batch_size=5000)
    assert Flaky.num_read <= whole - 3 * 5000 * 8, "nor the keys before a position"


def test_a_range_that_comes_short_is_told(
    tmp_path: Path, memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(write_log(tmp_path, "libsvm"), "flaky://bucket")
    monkeypatch.setattr(Flaky, "cat_file", lambda *given, **named: b"1 1:1")
    with pytest.raises(StoreError, match=r"log\.libsvm, tried 4 times: EOFError: 5 bytes came of"):
        read(url, "libsvm")


def test_text_is_fetched_once_and_ahead(
    tmp_path: Path, memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path, "libsvm")
    url = put(path, "flaky://bucket")
    (file,) = find_files(url)
    assert isinstance(file, urls.UrlFile)
    data = path.read_bytes()
    with file.open(ahead=100) as stream:
        assert stream.read(10) == data[:10] and Flaky.num_read == 100
        assert stream.read(80) + stream.read(20) == data[10:110] and Flaky.num_read == 110
        stream.seek(-7, 2)
        assert stream.read() == data[-7:] and stream.read(5) == b"" and stream.read() == b""
        stream.seek(len(data) + 5)
        assert stream.read(1) == b""
        stream.seek(3)
        assert stream.read() == data[3:]


def test_a_login_in_a_url_is_not_told(memory: None) -> None:
    with pytest.raises(StoreError, match="cannot read flaky://bucket/x: ") as raised:
        find_files("flaky://user:secret@bucket/x")
    assert "secret" not in str(raised.value)


def test_training_evaluating_and_predicting_take_urls(
    tmp_path: Path, memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_criteo(tmp_path / "log.tsv", 300)
    url, small = (
        put(path),
        ["--dim", "2", "--hidden", "4", "--batch-size", "64", "--torch-threads", "1"],
    )
    digests = []
    for name, log in (("a", str(path)), ("b", url)):
        store, out = tmp_path / name, tmp_path / f"{name}.npy"
        words = ["--dram", "8MiB", "--store", str(store)]
        more = ["--valid", log, "--test", log, *small]
        assert main(["train", log, *words, *more, "--limit", "128"]) == 0
        assert main(["train", log, *words, "--resume", "--test", log, *small[-2:]]) == 0
        assert main(["evaluate", log, *words]) == 0
        assert main(["predict", log, *words, "--out", str(out)]) == 0
        with hps.open(store) as server:
            digests.append([server.digest(table) for table in server.tables])
    assert digests[0] == digests[1]
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "b.npy")).all()
    assert main(["evaluate", "memory://none", "--store", str(tmp_path / "a")]) != 0
    assert "memory://none" in capsys.readouterr().err
    assert main(["predict", f"file://{path}", *words, "--out", str(path.with_suffix(".npy"))]) == 0


def test_what_a_url_hides_is_in_no_message_and_no_file_of_a_run(
    tmp_path: Path,
    memory: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"no file matches 'flaky://bucket/x\*'") as raised:
        find_files("flaky://me:secret@bucket/x*")
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="nope://b/x: Protocol not known") as raised:
        find_files("nope://me:secret@b/x")
    assert "secret" not in str(raised.value)
    url = put(write_criteo(tmp_path / "log.tsv", 300))
    known = urls.find_urls

    def find(given: str) -> list[urls.UrlFile]:
        return known(given.replace("me:secret@", "").partition("?")[0])

    monkeypatch.setattr("hps.reader.files.find_urls", find)
    first = url.replace("://", "://me:secret@") + "?sig=secret"
    store, report = tmp_path / "store", tmp_path / "report"
    base = ["--format", "criteo", "--store", str(store), "--dim", "2", "--hidden", "4"]
    base += ["--dram", "8MiB", "--torch-threads", "1", "--report", str(report)]
    words = ["train", first, "--test", first, *base, "--batch-size", "64", "--limit", "128"]
    words += ["--progressive"]
    monkeypatch.setattr(sys, "argv", ["hps", *words])
    assert main(words) == 0
    shown = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert shown and all(b"secret" not in content for content in shown)
    assert "bucket/logs/log.tsv?sig=..." in (report / "run.json").read_text()
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err
    words = ["train", url + "?sig=another", "--resume", *base]  # goes on with a new signature
    assert main(words) == 0
    assert "secret" not in "".join(capsys.readouterr())


def test_a_bucket_is_no_local_folder(
    tmp_path: Path, memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bucket"
    folder.mkdir()
    local = write_log(folder, "libsvm")
    url = put(local, "flaky://bucket")
    (file,) = find_files(url)
    assert isinstance(file, urls.UrlFile)
    monkeypatch.setattr(file, "_path", "bucket/log.libsvm")  # as s3fs names it
    assert not file.samefile(local)
    (same,) = find_files(f"file://{local}")
    assert same.samefile(local) and not same.samefile(write_log(tmp_path, "csv"))
