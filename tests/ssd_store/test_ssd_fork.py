"""A forked child that drops a store it inherited leaves the parent's files and threads alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from ssd_twin import dump, keys_of, make_rows, schema

from hps.errors import StoreError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(500))

# Opens the store, forks, lets the child end as programs do, then says so and waits.
FORK = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
from ssd_twin import schema
from hps.ssd_store import SsdStore

def files():
    found = [os.path.join(folder, name) for folder, _, names in os.walk({path!r}) for name in names]
    return sorted((name, os.stat(name).st_mtime_ns, os.stat(name).st_size) for name in found)

store = SsdStore.open({path!r}, [schema()], read_only={read_only}, snapshot_rows=1)
assert {read_only} or len(os.listdir("/proc/self/task")) > 1  # the thread that compacts
time.sleep(0.2)  # until it waits
before = files()
child = os.fork()
if child == 0:
    if {closes}:
        store.close()
    del store
    sys.exit(0)
for _ in range(400):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    sys.exit("the child hangs")
assert status == 0, status
assert files() == before, (before, files())
print("forked", flush=True)
sys.stdin.readline()
if not {read_only}:
    store.checkpoint("after")
store.close()
"""


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_forked_child_leaves_the_parents_store_alone(
    tmp_path: Path, read_only: bool, closes: bool
) -> None:
    with SsdStore.open(tmp_path, [schema()], snapshot_rows=2**20) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("first")
        expected = dump(store, "ads")
    script = FORK.format(
        tests=str(Path(__file__).parent), path=str(tmp_path), read_only=read_only, closes=closes
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert parent.stdout.readline() == b"forked\n"
        if read_only:
            with SsdStore.open(tmp_path, [schema()]) as writer:
                held = f"process {parent.pid} (checkpoint 1)"
                assert writer.delete_checkpoint("first") == [held]
        else:
            with pytest.raises(StoreError, match=f"open for writing by process {parent.pid}"):
                SsdStore.open(tmp_path, [schema()])
        parent.stdin.write(b"\n")
        parent.stdin.close()
        assert parent.wait(30) == 0
    with SsdStore.open(tmp_path, [schema()], read_only=True) as reader:
        assert dump(reader, "ads") == expected
        assert {one["tag"] for one in reader.checkpoints()} == (
            set() if read_only else {"first", "after"}
        )
