"""agree: a step that may fail on one rank, and then fails on all of them.

Above it: cluster/folder/folders.py, cluster/folder/checkpoints.py, cluster/folder/reshard.py,
cluster/parameter_server.py. Below it: the control channel. Without it a rank that raised between
two collectives would leave the others waiting in the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from hps import errors
from hps.cluster.world.world import World
from hps.common.json_text import Json
from hps.errors import ClusterError, HpsError, StoreError

T = TypeVar("T")  # what JSON holds
# What is raised on the ranks where nothing failed: the same, where its meaning is the same there.
_SHARED = ("ConfigError", "CorruptionError", "NonFiniteError", "StoreError")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of a step on all ranks.

    Args:
        values: of each rank; None where it failed.
        failure: what to raise; None if no rank failed.
    """

    values: list[T | None]
    failure: Exception | None

    def value(self) -> list[T]:
        """The values, or raises the failure."""
        if self.failure is not None:
            raise self.failure
        return cast("list[T]", self.values)


def agree(world: World, what: str, act: Callable[[], T]) -> list[T]:
    """Runs `act` on every rank, then returns on all of them or raises on all of them.

    Args:
        world: of the ranks; its control channel is used.
        what: the step, in words; ranks that are in different steps all raise.
        act: returns what JSON holds.

    Returns:
        What act returned, of every rank.

    Raises:
        What `act` raised here; else, of the lowest rank that failed, an error of the same class (or
        ClusterError) that names the rank. ClusterError: a rank is gone.
    """
    return attempt(world, what, act).value()


def attempt(world: World, what: str, act: Callable[[], T]) -> Outcome[T]:
    """As `agree`, but returns the failure: every rank that gets it knows that all get it."""
    own: Exception | None = None
    try:
        told: Json = {"what": what}
        try:
            told["value"] = act()
        except Exception as error:  # told to the other ranks first, then raised
            own = _as_ours(error)
            told["error"] = [type(own).__name__, str(own)]
        heard = world.control.gather(told)
    except BaseException as error:
        # An interrupt, or a rank that is gone: the ranks are out of step for good.
        world.abort(f"{what}: {type(error).__name__}: {error}")
        raise
    return _outcome(world.rank, heard, own)


def _outcome(rank: int, heard: list[Json], own: Exception | None) -> Outcome[T]:
    steps = [told["what"] for told in heard]
    if len(set(steps)) > 1:
        raise ClusterError(
            f"rank {rank}: the ranks are in different steps ({steps}): all must call the same "
            "verbs in the same order"
        )
    values: list[T | None] = [told.get("value") for told in heard]
    if own is not None:
        return Outcome(values, own)
    for other, told in enumerate(heard):
        if "error" in told:
            name, text = told["error"]
            kind = getattr(errors, name) if name in _SHARED else ClusterError
            return Outcome(values, kind(f"rank {other}: {text}"))
    return Outcome(values, None)


def _as_ours(error: Exception) -> Exception:
    if not isinstance(error, OSError) or isinstance(error, HpsError):
        return error
    if error.errno is None:
        return StoreError(str(error))
    return StoreError(error.errno, f"{error.filename or 'the system'}: {error.strerror}")
