"""Recipe C3 with life cycle on: long runs of the machines that compare a server with a dict.

Above it: run.py. Below it: tests/parameter_server/life_machines.py. Each run is drawn by a seed of
its own, so that one that fails can be made again.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hps.ssd_store import SsdStore
from hps.tiers.cached_tier import CachedTier
from tests.parameter_server.life_machines import (
    AdmittingMachine,
    BoundedMachine,
    LifeMachine,
    MortalMachine,
    TwoLevelMachine,
)
from tests.parameter_server.machines import run_machine

MACHINES: tuple[type[LifeMachine], ...] = (
    LifeMachine,
    MortalMachine,
    BoundedMachine,
    AdmittingMachine,
    TwoLevelMachine,
)
KINDS = {machine: ("native", "rocksdb", "gpu") for machine in MACHINES[:3]}
KINDS |= {machine: ("native", "rocksdb") for machine in MACHINES[3:]}  # gpu: no admission
NUM_STEPS = 60  # of a sequence
PLANTS = ("dead-rows-kept", "period-forgotten")


@dataclass
class ModelReport:
    """What runs met; `violations` must be empty."""

    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        needed = ("steps", "evictions", "deaths", "kills", "moves", "changes")
        return [name for name in needed if not self.tallies[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:,}" for name, number in sorted(self.tallies.items()))


def run_models(seed: int, sequences: int) -> ModelReport:
    """Runs so many sequences of each machine over each kind of tiers."""
    report = ModelReport()
    with _without_warnings():
        for machine in MACHINES:
            for kind in KINDS[machine]:
                _run(machine, kind, seed, sequences, report)
    return report


def _run(
    machine: type[LifeMachine], kind: str, seed: int, sequences: int, report: ModelReport
) -> None:
    try:
        told = run_machine(machine, kind, sequences, NUM_STEPS, seed)
    except Exception as error:
        where = f"seed {seed}, {machine.__name__} over {kind}"
        report.violations.append(f"{where}: {type(error).__name__}: {error}")
        return
    report.tallies["steps"] += sequences * NUM_STEPS
    for name in ("evictions", "deaths", "kills", "moves", "changes"):
        report.tallies[name] += getattr(told, f"num_{name}")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Of bounds that cannot be kept."""
    logger = logging.getLogger("hps")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def planted(plant: str) -> Iterator[None]:
    """A bug in this process, for a block."""
    where: Any = CachedTier if plant == "dead-rows-kept" else SsdStore
    name = "begin_period" if plant == "dead-rows-kept" else "follow_period"
    whole = getattr(where, name)
    setattr(where, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(where, name, whole)
