"""Together: blocks and steps that all ranks are in, which end on all of them or on none.

Above it: cluster/parameter_server.py and its parts. Below it: agreement.py, the world.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hps.cluster.world.agreement import attempt
from hps.cluster.world.world import World
from hps.common.forked import refuse_in_children
from hps.errors import HpsError

T = TypeVar("T")


class Together:
    """What the rank of a server does with the others.

    Args:
        world: all ranks.
        where: the server, in words.
    """

    def __init__(self, world: World, where: str) -> None:
        self.world = world
        self.is_alone = world.size == 1
        refuse_in_children(self, where, ("world",))

    def agreed(self, what: str, act: Callable[[], T]) -> T:
        """What `act` returns here; where it fails on a rank, every rank raises."""
        found: list[T] = []

        def keep() -> None:
            found.append(act())

        failure = attempt(self.world, what, keep).failure
        if failure is None:
            return found[0]
        if isinstance(failure, HpsError):
            failure.is_shared = True
        raise failure

    @contextmanager
    def block(self, what: str) -> Iterator[None]:
        """What all ranks are in: an error of this rank alone ends it for the others, too."""
        try:
            yield
        except BaseException as error:
            if not is_shared(error):
                self.abort(what, error)
            raise

    def abort(self, what: str, error: BaseException) -> None:
        """Tells the other ranks that this one is out of step with them for good."""
        self.world.abort(f"{what}: {type(error).__name__}: {error}")


def is_shared(error: BaseException) -> bool:
    """True if every rank has raised it, or a rank that all know of."""
    return isinstance(error, HpsError) and error.is_shared
