"""A server and a pipeline know whose they are: not another store's, and not a forked child's."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.common.forked import _Refusals, is_inherited, refuse_in_children
from hps.contracts.updates import RowUpdate
from hps.ssd_store import verify
from tests.forking import in_forked_child, refused_in_child

ADS = hps.TableConfig(name="ads", dim=8)
KEYS = np.arange(500, dtype=np.uint64)
GRADS = np.ones((500, 8), np.float32)


class Holder:
    """Of what a child is refused."""

    _lock = 1
    _other = 2


def open_server(path: Path | str, **options: Any) -> hps.ParameterServer:
    """Threads of its own, so that a child lacks them."""
    return hps.ParameterServer(hps.Config(path=path, tables=[ADS], threads=3, **options))


def batches(count: int) -> list[hps.Batch]:
    ids = hps.Ids(keys_L=torch.arange(4), offsets=torch.arange(5))
    return [
        hps.Batch(features={"ads": ids}, dense=torch.zeros(4, 0), labels=torch.ones(4))
        for _ in range(count)
    ]


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_the_checkpoint_at_the_end_of_a_block_goes_into_no_other_store(
    tmp_path: Path, engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    ssd = hps.SsdStoreConfig(engine=engine)
    path = tmp_path / "model"
    with pytest.raises(hps.StoreError, match="another one has its path now"):  # noqa: SIM117
        with open_server(path, ssd=ssd) as first:
            first.push("ads", KEYS, GRADS)
            first.checkpoint("kept")
            first.push("ads", KEYS, GRADS)
            path.rename(tmp_path / "moved")
            with open_server(path, ssd=ssd) as innocent:
                innocent.push("ads", KEYS[:100], GRADS[:100])
    for folder, tag, rows in ((path, "last", 100), (tmp_path / "moved", "kept", 500)):
        assert verify(folder) == []
        with hps.open(folder) as reader:
            assert [one["tag"] for one in reader.checkpoints()] == [tag]
            assert reader.num_rows("ads") == rows


def test_a_server_by_a_relative_path_stays_at_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with open_server(tmp_path / "there" / "model") as other:
        other.push("ads", KEYS[:7], GRADS[:7])
    monkeypatch.chdir(tmp_path / "here")
    with open_server("model") as server:
        monkeypatch.chdir(tmp_path / "there")
        server.push("ads", KEYS, GRADS)
    for name, rows in (("here", 500), ("there", 7)):
        with hps.open(tmp_path / name / "model") as reader:
            assert reader.num_rows("ads") == rows


def test_a_forked_child_is_refused_every_verb_of_a_server(tmp_path: Path) -> None:
    server = open_server(tmp_path / "model")
    server.push("ads", KEYS, GRADS)
    server.checkpoint("first")
    expected = server.digest("ads")
    server.push("ads", KEYS, GRADS)

    def leave_block() -> None:
        with server:
            pass

    verbs = [
        lambda: server.pull("ads", KEYS),
        lambda: server.push("ads", KEYS, GRADS),
        lambda: server.assign("ads", KEYS, GRADS),
        lambda: server.erase("ads", KEYS),
        lambda: server.contains("ads", KEYS),
        lambda: server.pin("ads", KEYS),
        lambda: server.apply([RowUpdate("ads", KEYS, GRADS)]),
        lambda: server.checkpoint("child"),
        lambda: server.restore("first"),
        lambda: server.compact(),
        lambda: server.stats(),
        leave_block,
        lambda: server.close(),
    ]
    assert refused_in_child(verbs) == []
    assert [one["tag"] for one in server.checkpoints()] == ["first"]
    server.restore("first")
    assert server.digest("ads") == expected
    server.push("ads", KEYS, GRADS)
    server.checkpoint("second")
    server.close()


def test_objects_that_are_gone_cost_a_fork_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **when: registered.append(when))
    kept = Holder()
    for _ in range(1000):
        refuse_in_children(Holder(), "gone", ("_lock",))
    refuse_in_children(kept, "kept", ("_lock",))
    refuse_in_children(kept, "kept", ("_other",))
    gc.collect()
    assert not registered
    of_these = [one for one in _Refusals.alive if one.inherited._refusal[0] in ("gone", "kept")]
    assert len(of_these) == 2 and all(one.holder() is kept for one in of_these)

    def child() -> str:
        return f"{is_inherited(kept._lock)} {is_inherited(kept._other)}"

    assert in_forked_child(child) == "True True"
    assert kept._lock == 1


def test_a_lock_that_a_thread_held_at_the_fork_does_not_hang_the_child(tmp_path: Path) -> None:
    server = open_server(tmp_path / "model")
    tables = server.parts.tables
    with tables.lock, tables.updates:  # as by another thread, which the child lacks
        assert refused_in_child([lambda: server.pull("ads", KEYS)]) == []
    server.close()


def test_an_exception_in_a_child_leaves_a_block_as_it_is(tmp_path: Path) -> None:
    with open_server(tmp_path / "model") as server:
        server.push("ads", KEYS, GRADS)

        def child() -> str:
            with server:
                raise ValueError("the child's own")

        assert in_forked_child(child) == "ValueError: the child's own"


ENDS = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.parameter_server.test_identity import *
server = open_server({path!r}, ssd=hps.SsdStoreConfig(engine={engine!r}))
server.push("ads", KEYS, GRADS)
server.checkpoint("first")
pipeline = hps.Pipeline(batches(9), server, depth=2)
with server, pipeline as ahead:
    next(ahead)
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(60)
        {ending}
    assert os.waitpid(child, 0)[1] == 0
    server.push("ads", KEYS, GRADS)
"""


# Of RocksDB the child ends as those of multiprocessing do: its library's own exit joins threads
# that a child does not have.
@pytest.mark.parametrize(
    ("engine", "ending"), [("segments", "sys.exit(0)"), ("rocksdb", "os._exit(0)")]
)
def test_a_child_ends_by_itself_and_changes_nothing(
    tmp_path: Path, engine: str, ending: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path = tmp_path / "model"
    root = str(Path(__file__).resolve().parents[2])
    script = ENDS.format(root=root, path=str(path), engine=engine, ending=ending)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=root)
    assert verify(path) == []
    with hps.open(path) as reader:
        assert [one["tag"] for one in reader.checkpoints()] == ["first", "last"]
    assert list((path / "pins").iterdir()) == []


@pytest.mark.parametrize("depth", [0, 2])
def test_a_forked_child_is_refused_the_batches_of_a_pipeline(tmp_path: Path, depth: int) -> None:
    with open_server(tmp_path / "model") as server:
        with hps.Pipeline(batches(5), server, depth=depth) as ahead:
            next(ahead)

            def leave_block() -> None:
                ahead.__exit__(None, None, None)

            verbs = [lambda: next(ahead), lambda: ahead.stop_reading(), leave_block]
            assert refused_in_child(verbs) == []
            assert len(list(ahead)) == 4
        assert server.pins == 0
