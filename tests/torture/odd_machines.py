"""Recipes O1 and O2: file systems that lack something, and a wall clock that jumps.

Above it: run.py, test_odd_machines.py. Below it: odd_calls.cc, `unshare` and overlayfs where the
system grants them. A process of its own (`python -m tests.torture.odd_machines FOLDER`) lives over
a store, a server and a shard with its log, and says "ok", or what did not hold.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import hps
from hps.service.shard.answers import Ack, Terms
from hps.service.shard.shard import Identity, Shard
from hps.ssd_store import verify
from hps.update_log.verify import verify_log
from tests.torture.scratch import scratch_folder

KEYS = np.arange(2000, dtype=np.uint64)
_FEW = 500
_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = Path(__file__).with_name("odd_calls.cc")
NO_DIRECT = "no direct I/O"
JUMPING = "jumping clock"
MACHINES = ("disk", "memory", "overlay", "overlay over a store", NO_DIRECT, JUMPING)
PLANTS = {"store-not-closed": "disk", "waits-by-wall-clock": JUMPING}  # and where each is found


def missing(machine: str) -> str:
    """Why a machine cannot be had here; "" if it can."""
    if machine.startswith("overlay"):
        command = ["unshare", "-m", "sh", "-c", _mount(Path("$D"))]
        with tempfile.TemporaryDirectory() as folder:
            _make_layers(Path(folder))
            try:
                tried = subprocess.run(command, env={**os.environ, "D": folder}, check=False)
            except OSError:
                return "no unshare"
        return "" if tried.returncode == 0 else "no right to mount an overlay"
    if machine in (NO_DIRECT, JUMPING) and not shutil.which("g++"):
        return "no g++ to build tests/torture/odd_calls.cc"
    return ""


def _make_layers(folder: Path) -> None:
    for name in ("lower", "upper", "between", "whole"):
        (folder / name).mkdir()


def _mount(folder: Path) -> str:
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/between"
    return f"mount -t overlay overlay -o {layers} {folder}/whole 2> /dev/null"


@contextmanager
def _library(machine: str) -> Iterator[str]:
    """Where the calls of a machine lie that only pretends."""
    if machine not in (NO_DIRECT, JUMPING):
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "odd_calls.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        yield str(library)


def run_machine(machine: str, seed: int, bug: str = "") -> str:
    """What a life on a machine says: "ok", or what did not hold."""
    environment = {**os.environ, "HPS_BUG": bug}
    flags = ["--no-direct"] if machine == NO_DIRECT else []
    with (
        tempfile.TemporaryDirectory() as disk,
        scratch_folder() as memory,
        _library(machine) as library,
    ):
        folder = memory if machine in ("memory", NO_DIRECT, JUMPING) else Path(disk)
        live = [sys.executable, "-m", "tests.torture.odd_machines"]
        if machine in (NO_DIRECT, JUMPING):
            word = "HPS_NO_DIRECT" if machine == NO_DIRECT else "HPS_JUMPING_CLOCK"
            environment |= {"LD_PRELOAD": library, word: "1"}
        if machine.startswith("overlay"):
            _make_layers(folder)
            if machine == "overlay over a store":
                (folder / "lower" / "life").mkdir()
                _live(folder / "lower" / "life", seed, [])
            script = f'{_mount(folder)} && cd {_ROOT} && exec "$@"'
            live = ["unshare", "-m", "sh", "-c", script, "sh", *live]
            folder = folder / "whole"
        command = [*live, str(folder / "life"), str(seed), *flags]
        ended = subprocess.run(
            command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=False
        )
        lines = ended.stdout.splitlines()
        return lines[-1] if lines else f"exit {ended.returncode}: {ended.stderr[-300:]}"


# In the process of its own.


def _config(path: Path, direct_io: bool) -> hps.Config:
    return hps.Config(
        path=path,
        tables=[hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0))],
        dram=hps.DramCacheConfig(bytes="64KiB"),
        ssd=hps.SsdStoreConfig(segment_bytes=2**16, direct_io=direct_io, keep_last=2),
        threads=2,
    )


def _push(server: hps.ParameterServer) -> None:
    server.push("ads", KEYS, -np.ones((len(KEYS), 4), np.float32))


def _live(folder: Path, seed: int, flags: list[str]) -> None:
    """Raises AssertionError for what does not hold."""
    chance = random.Random(seed)
    folder.mkdir(exist_ok=True)
    if "--no-direct" in flags:
        try:
            hps.ParameterServer(_config(folder / "direct", True)).close()
        except hps.ConfigError as error:
            assert "direct_io=False" in str(error), error
        else:
            raise AssertionError("direct I/O was granted")
    for direct_io in (False,) if "--no-direct" in flags else (False, True):
        _train(folder / "model", direct_io, chance)
    _serve(folder / "served")


def _train(path: Path, direct_io: bool, chance: random.Random) -> None:
    """Checkpoints, restores and compactions over several openings."""
    for _ in range(2):
        with hps.ParameterServer(_config(path, direct_io)) as server:
            before = server.pull("ads", KEYS, create=True).copy()
            ids = [one["id"] for one in server.checkpoints()]
            for number in range(1, 5):
                _push(server)
                server.checkpoint("kept" if number == 2 else None)
            listed = server.checkpoints()
            assert [one["id"] for one in listed] == sorted(one["id"] for one in listed)
            assert min(one["id"] for one in listed if one["tag"] is None) > max([0, *ids])
            assert sum(one["tag"] is None for one in listed) == 2, listed
            assert listed[-1]["current"], listed
            assert np.allclose(server.pull("ads", KEYS) - before, 4, atol=1e-3)
            if chance.random() < 0.5:
                server.compact()
            server.restore("kept")
            assert np.allclose(server.pull("ads", KEYS) - before, 2, atol=1e-3)
            with hps.open(path, checkpoint="kept", dram="64KiB") as reader:
                assert reader.digest("ads") == server.digest("ads")
        assert verify(path) == []
    assert list((path / "pins").iterdir()) == []


def _serve(path: Path) -> None:
    """Pushes that are acknowledged as durable, over two lives of a shard."""
    for _ in range(2):
        shard = Shard(_config(path, False))
        session = shard.open_session("trainer")
        before = float(shard.pull("ads", KEYS[:1])[0, 0])
        grads = -np.ones((_FEW, 4), np.float32)
        for sequence in range(session.marks.applied + 1, session.marks.applied + 4):
            identity = Identity("trainer", session.incarnation, sequence)
            shard.push(identity, "ads", KEYS[:_FEW], grads, terms=Terms(Ack.DURABLE, 60.0))
        assert abs(float(shard.pull("ads", KEYS[:1])[0, 0]) - before - 3) < 1e-3
        shard.close(checkpoint=False)
        assert verify(path) == [] == verify_log(path)


def _plant(bug: str) -> None:
    """Bugs of a process that lives on an odd machine."""
    if bug == "waits-by-wall-clock":
        import time

        from hps.service.shard import acknowledge, core, gate, mutations, sessions

        for module in (acknowledge, core, gate, mutations, sessions):
            module.monotonic = time.time  # type: ignore[attr-defined]
    if bug == "store-not-closed":
        from hps.ssd_store import SsdStore

        SsdStore.close = lambda self: None  # type: ignore[method-assign]


def main() -> None:
    """Lives once; the last line says what came of it."""
    _plant(os.environ.get("HPS_BUG", ""))
    try:
        _live(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
        print("ok")
    except (AssertionError, hps.HpsError) as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "))


if __name__ == "__main__":
    main()
