"""The machines of life_machines.py, the short forms; tests/torture/life_models.py has long ones.

Above it: pytest. Below it: life_machines.py, machines.py.
"""

import pytest

from tests.parameter_server.life_machines import (
    AdmittingMachine,
    BoundedMachine,
    LifeMachine,
    MortalMachine,
    TwoLevelMachine,
)
from tests.parameter_server.machines import run_machine
from tests.torture.life_models import PLANTS, planted

KINDS = ("twins", "three_twins", "native_dram", "native_gpu", "native", "rocksdb", "gpu")


@pytest.mark.parametrize("kind", KINDS)
def test_counts_agree_with_a_dict(kind: str) -> None:
    run_machine(LifeMachine, kind, max_examples=8)


@pytest.mark.parametrize("kind", ["native", "rocksdb", "gpu"])
def test_rows_die_early_as_a_dict_says(kind: str) -> None:
    machine = run_machine(BoundedMachine, kind, max_examples=8)
    assert machine.num_early > 0


@pytest.mark.parametrize("kind", KINDS)
def test_rows_die_as_a_dict_says(kind: str) -> None:
    machine = run_machine(MortalMachine, kind, max_examples=8)
    assert machine.num_deaths > 0


@pytest.mark.parametrize("kind", ["native_dram", "native_gpu", "native", "rocksdb", "gpu"])
def test_keys_wait_as_a_dict_says(kind: str) -> None:
    machine = run_machine(AdmittingMachine, kind, max_examples=6 if kind == "rocksdb" else 12)
    assert machine.num_deaths > 0 and machine.num_admitted > 0


@pytest.mark.parametrize("kind", ["native_dram", "native", "rocksdb"])
def test_another_table_admits_keys_as_a_dict_says(kind: str) -> None:
    machine = run_machine(TwoLevelMachine, kind, max_examples=6)
    assert machine.num_deaths > 0 and machine.num_admitted > 0


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found_by_the_dict(plant: str) -> None:
    with planted(plant), pytest.raises(AssertionError):
        run_machine(MortalMachine, "native", max_examples=40, seeded=7)
