"""RunMark: a file in a cluster's folder that says which run of torchrun has begun to train there.

Above it: `hps train` under torchrun. A restart goes on without being asked to: with what its own
run has made, never with a model that its first attempt was refused to train on, nor at the position
of another run, which may be one in other data.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hps.errors import StoreError

if TYPE_CHECKING:
    from hps.cluster.world.world import World
    from hps.config import RankEnvironment
    from hps.train.options import TrainOptions


class RunMark:
    """The mark in one folder.

    Args:
        folder: of the cluster, as this host sees it.
        run: names it; the same in all attempts on this host.
    """

    def __init__(self, folder: str | Path, run: str) -> None:
        self._path = Path(folder).absolute() / "RUN"
        self._run = run

    def set(self) -> None:
        """The run trains from now on; a restart has nothing to do that --new-data asks for.

        Raises:
            StoreError: it cannot be written; a restart would not know what its run has done.
        """
        try:
            self._path.write_text(self._run)
        except OSError as error:
            raise StoreError(error.errno, f"{self._path}: {error.strerror}") from error

    def remove(self) -> None:
        """The run is over, or not begun."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def is_restart(self, world: "World", place: "RankEnvironment") -> bool:
        """True if torchrun has started the ranks anew after they had begun to train; the same on
        every rank. A first attempt takes the mark of an earlier run away; where it died before it
        could, the run's name tells."""
        # A host that joins after a restart has seen none itself.
        if world.control.any(place.num_restarts > 0):
            return world.control.any(self._is_set())
        self.remove()
        world.control.barrier()  # no rank sets the mark before all have taken it away
        return False

    def _is_set(self) -> bool:
        with suppress(OSError):
            return self._path.read_text(errors="replace") == self._run
        return False


def name_of_run(options: "TrainOptions", place: "RankEnvironment") -> str:
    """The same in all attempts of one run of torchrun.

    Args:
        options: as the flags say.
        place: of any rank of this host.
    """
    return hashlib.sha256(f"{place.run_id} {options!r}".encode()).hexdigest()[:32]
