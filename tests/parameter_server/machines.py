"""What Hypothesis's machines over a server share: how they are run, are killed, and end.

Above it: test_server_machine.py, life_machines.py, test_life_machine.py. Below it: Hypothesis,
tests/lab.py.
"""

import shutil
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.lab import evictions

_MOST_RUNS = 6
_COUNTS = "evictions", "deaths", "kills", "moves", "changes"


def run_machine(
    machine: type[RuleBasedStateMachine],
    kind: str,
    max_examples: int,
    num_steps: int = 30,
    seeded: int | None = None,
) -> Any:
    """Runs sequences of a machine's rules over tiers of `kind`, and more of them until rows have
    moved, which a few short ones may not bring about; returns the machine, which has counted.

    Args:
        machine: a class; a new one of it is run.
        kind: as tests.lab.Lab takes it.
        max_examples: sequences.
        num_steps: of each.
        seeded: what they are drawn by; one that fails is told as it is, without a shorter one. None
            draws others each time.
    """
    own: Any = type("Machine", (machine,), {"kind": kind, **{f"num_{one}": 0 for one in _COUNTS}})
    options: dict[str, Any] = {}
    if seeded is not None:
        own = seed(seeded)(own)
        options = {"database": None, "phases": [Phase.generate]}
    for _ in range(_MOST_RUNS if seeded is None else 1):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            own,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=num_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                **options,
            ),
        )
        if own.num_evictions > 0:
            return own
    raise AssertionError("no row was evicted in any of the runs")


def copy_as_killed(store: Path, image: Path) -> None:
    """Copies a store that is open as a kill would leave it at one moment, though its threads may
    write meanwhile: until none did."""
    for _ in range(200):
        before = _seen(store)
        try:
            shutil.copytree(store, image, symlinks=True)
            if before == _seen(store):
                return
        except (OSError, shutil.Error):  # a file went
            pass
        shutil.rmtree(image, ignore_errors=True)
    raise AssertionError(f"{store} never was at rest")


def _seen(store: Path) -> list[tuple[str, int, int, int]] | None:
    """Every file with its size, time and number; None if one went meanwhile."""
    try:
        told = [(str(path), path.lstat()) for path in sorted(store.rglob("*"))]
    except OSError:
        return None
    return [(name, one.st_size, one.st_mtime_ns, one.st_ino) for name, one in told]


def end(machine: Any) -> None:
    """Counts the evictions of a machine's server, releases what is pinned, closes it, removes its
    folder."""
    if hasattr(machine, "server"):
        type(machine).num_evictions += evictions(machine.server)
        if machine.pinned is not None:
            machine.pinned[1].release()
        assert machine.server.pins == 0
        machine.server.close()
    shutil.rmtree(machine.folder, ignore_errors=True)
