"""What Hypothesis's machines over a server share: how they are run, and how they end.

Above it: test_server_machine.py, test_life_machine.py. Below it: Hypothesis, tests/lab.py.
"""

import shutil
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.lab import evictions


def run_machine(machine: type[RuleBasedStateMachine], kind: str, max_examples: int) -> Any:
    """Runs sequences of a machine's rules over tiers of `kind`, in which rows must have moved;
    returns the machine, which has counted."""
    own: Any = type("Machine", (machine,), {"kind": kind, "num_evictions": 0, "num_deaths": 0})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        own,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
    assert own.num_evictions > 0
    return own


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
