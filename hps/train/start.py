"""Before several ranks train: each has what it needs, and all have been asked for the same.

Above it: opening.py, checks.py, reading.py. Below it: `hps.cluster.world.agreement`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import torch

from hps.cluster.world.agreement import attempt
from hps.common.json_text import Json, JsonView
from hps.common.version import __version__
from hps.errors import ConfigError, HpsError
from hps.models.own import code_digest
from hps.reader.urls import LogFile
from hps.train.options import TrainOptions

if TYPE_CHECKING:
    from hps.cluster.world.world import World
    from hps.reader.reader import Reader

# What may differ from host to host; none of it changes a bit. Of logs, names and sizes must agree.
_OF_A_HOST = (
    "data",
    "device",
    "dram",
    "gpu",
    "held_out",
    "instruction_set",
    "report",
    "store",
    "tensorboard",
    "test",
    "threads",
    "torch_threads",
    "trace",
    "valid",
)

T = TypeVar("T")


def start_together(
    world: "World",
    options: TrainOptions,
    prepare: "Callable[[], tuple[Reader, Mapping[str, Sequence[LogFile]]]]",
) -> "Reader":
    """Prepares on every rank, then compares what they have; all go on or none.

    Args:
        prepare: what may fail on one rank alone: opens the log, finds the files of
            the logs to measure on, by their kind.

    Raises:
        ConfigError: two ranks differ; names the rank, the field and both values.
        HpsError: what `prepare` raised here or on another rank.
    """
    prepared: list[Reader] = []

    def facts() -> Json:
        reader, measured = prepare()
        prepared.append(reader)
        return facts_of(options, reader, measured)

    of_ranks = together(world, "preparing to train", facts)

    def compare() -> None:
        if world.rank == 0:  # then it alone says what it found
            _compare(of_ranks)

    together(world, "comparing the ranks", compare)
    return prepared[0]


def together(world: "World", what: str, act: Callable[[], T]) -> list[T]:
    """As `cluster.world.agreement.agree`, before training: of an error the ranks leave in step."""
    outcome = attempt(world, what, act)
    if isinstance(outcome.failure, HpsError):
        outcome.failure.is_shared = True  # the ranks can leave in step
    return outcome.value()


def facts_of(
    options: TrainOptions, reader: "Reader", measured: "Mapping[str, Sequence[LogFile]]"
) -> Json:
    """What all ranks must have in common, by name; what JSON holds."""
    facts: Json = {
        "hps version": __version__,
        "torch version": torch.__version__,
        "gpu tier": options.gpu is not None,
        "model's file": None if options.model is None else code_digest(options.model),
        "files": reader.files,
        **{
            f"{name} files": [[path.name, path.stat().st_size] for path in files]
            for name, files in measured.items()
        },
    }
    for field in fields(options):
        if field.name not in _OF_A_HOST:
            value = getattr(options, field.name)
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            facts[field.name] = list(value) if is_list else value
    if options.features is not None:
        facts["features"] = repr(options.features)
        facts["features as measured"] = None if reader.transform is None else reader.transform.name
    return facts


def _compare(of_ranks: Sequence[JsonView]) -> None:
    first = of_ranks[0]
    for rank, facts in enumerate(of_ranks):
        for name in sorted({*first, *facts}):
            if facts.get(name) != first.get(name):
                raise ConfigError(
                    f"rank {rank} has {name}={facts.get(name)!r}, rank 0 has "
                    f"{first.get(name)!r}; start all ranks with the same flags, files and versions"
                )
