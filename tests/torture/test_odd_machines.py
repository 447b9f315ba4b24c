"""Recipes O1 and O2, the short form: an overlay, no direct I/O, a wall clock that jumps."""

import random

import pytest

from tests.torture.odd_machines import MACHINES, PLANTS, missing, run_machine


@pytest.mark.parametrize("machine", MACHINES[3:])
def test_a_store_lives_on_an_odd_machine(machine: str) -> None:
    if reason := missing(machine):
        pytest.skip(reason)
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    assert run_machine(machine, seed) == "ok"


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_is_found_on_its_machine(bug: str) -> None:
    if reason := missing(PLANTS[bug]):
        pytest.skip(reason)
    # The clock may happen not to jump while somebody waits: then another life is tried.
    assert any(run_machine(PLANTS[bug], seed, bug) != "ok" for seed in range(1, 61))
