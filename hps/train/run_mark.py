"""RunMark: a file in a cluster's folder that says that torchrun's run has begun to train there.

Above it: `hps train` under torchrun. A restart goes on without being asked to: with what its own
run has made, never with a model that its first attempt was refused to train on.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hps.cluster.world import World
    from hps.config import RankEnvironment


class RunMark:
    """The mark in one folder. Where it cannot be written, a restart has to be told to resume.

    Args:
        folder: of the cluster, as this host sees it.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "RUN"

    def set(self) -> None:
        """The run trains from now on."""
        with suppress(OSError):
            self._path.touch()

    def is_restart(self, world: "World", place: "RankEnvironment") -> bool:
        """True if torchrun has started the ranks anew after they had begun to train; the same on
        every rank. A first attempt takes the mark of an earlier run away."""
        # A host that joins after a restart has seen none itself.
        if world.control.any(place.num_restarts > 0):
            return world.control.any(self._path.exists())
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        world.control.barrier()  # no rank sets the mark before all have taken it away
        return False
