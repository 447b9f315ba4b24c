"""A shard over the native log is killed at random, and opens at its marks each time.

Above it: pytest. Below it: shard_worker.py. What was acknowledged as logged or durable is there,
nothing is there twice, and rows and marks agree.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.service.shard.shard_worker import TALLIES, Ledger
from tests.torture.scratch import scratch_folder

_ROOT = Path(__file__).resolve().parents[3]
_LONGEST_LIFE = 0.25  # seconds


def _kill(process: "subprocess.Popen[str]", order: dict[str, object], seconds: float) -> bool:
    """One life; False if it ended by itself, which it does when something is wrong."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    pid = int(process.stdout.readline())
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # not reaped before the next line, so the pid is still its own
    process.stdin.write("\n")
    process.stdin.flush()
    return os.WIFSIGNALED(int(process.stdout.readline()))


def _run(
    kills: int, plant: str = "", longest_life: float = _LONGEST_LIFE
) -> tuple[bool, dict[str, int]]:
    """Whether all was well, and what was met."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with scratch_folder() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.shard.shard_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        order = {"folder": str(folder), "seed": seed, "plant": plant}
        is_well = True
        for _ in range(kills):
            is_well = is_well and _kill(process, order, chance.random() * longest_life)
        while is_well:  # the last life shows that it opens, however slow the machine is
            before = Ledger(folder / "ledger").tally("is_working")
            longest_life *= 2
            is_well = _kill(process, order, longest_life)
            if Ledger(folder / "ledger").tally("is_working") > before:
                break
        ledger = Ledger(folder / "ledger")
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()
        return is_well, {name: ledger.tally(name) for name in TALLIES}


def test_a_shard_that_is_killed_is_always_at_its_marks() -> None:
    met: Counter[str] = Counter()
    for attempt in range(10):  # what a run under load has missed, one of longer lives will meet
        is_well, found = _run(15, longest_life=_LONGEST_LIFE * min(1 + attempt, 6))
        print(found)
        assert is_well
        met.update(found)
        if all(met.values()):
            break
    assert all(met.values()), f"the run proves nothing: {met}"


def test_a_push_that_is_not_logged_is_found_by_kills() -> None:
    for _ in range(6):  # in short lives, nothing may be unlogged since the last checkpoint
        is_well, met = _run(40, "unlogged")
        print(met)
        if not is_well:
            break
    assert not is_well, met
