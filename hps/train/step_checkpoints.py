"""StepCheckpoints: the checkpoints that a training run takes between two steps.

Above it: beginning.py, loop.py, closing.py. Below it: the server of the run, `Boundary`.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.errors import ConfigError, HpsError

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.boundary import Boundary
    from hps.train.run_publisher import RunPublisher
    from hps.train.trainer import Trainer


class StepCheckpoints:
    """Takes checkpoints and counts them and their time. Every rank takes the same ones.

    Args:
        server: of the rows.
        boundary: says when one is due, and is told of each.
        publisher: told of each.
    """

    def __init__(
        self, server: "TrainingServer", boundary: "Boundary", publisher: "RunPublisher"
    ) -> None:
        self._server = server
        self.boundary = boundary
        self.publisher = publisher
        self.seconds = 0.0
        self.count = 0
        self.newest: float | None = None  # when it was taken, seconds since 1970

    def batches_of(self, tag: str) -> int | None:
        """Batches that the model under a tag was trained on; None where there is none."""
        if not any(entry["tag"] == tag for entry in self._server.checkpoints()):
            return None
        model, _ = self._server.checkpoint_state(tag)
        return None if model is None else int(model.get("totals", {}).get("batches", -1))

    def take(self, tag: str | None, trainer: "Trainer", position: Json) -> None:
        """All it takes to go on: the rows, the dense side, the position of the reader.

        Args:
            tag: under which it is kept; None for none.
            trainer: of the dense side, between two steps.
            position: after the last applied batch.
        """
        start = time.perf_counter()
        self._server.checkpoint(tag=tag, model=trainer.state(), reader=position)
        self.boundary.checkpoint_done()
        self.publisher.tell(trainer.totals.examples)
        self.count += 1
        self.newest = time.time()
        self.seconds += time.perf_counter() - start

    def save_before(self, error: HpsError, trainer: "Trainer", position: Json) -> None:
        """What has been trained is not lost by an error between two steps, which is told of it.

        Args:
            error: that is to be raised.
            trainer, position: as `take` has them.
        """
        if self.boundary.is_saved:
            return
        with suppress(HpsError):  # the same fault may refuse it, too
            self.take(None, trainer, position)
            error.add_note("what was trained until here is in a checkpoint; --resume goes on there")

    def take_named(
        self, tag: str, trainer: "Trainer", position: Json, say: Callable[[str], object]
    ) -> None:
        """As `take`. Where the tag has become a promoted name meanwhile, without it: what was
        trained is not lost for its name.

        Args:
            say: told of that.
        """
        try:
            self.take(tag, trainer, position)
        except ConfigError:
            entries = self._server.checkpoints()
            if not any(tag in entry.get("names", ()) for entry in entries):
                raise
            self.take(None, trainer, position)
            say(
                f"the tag {tag!r} became a promoted name while the run was under way: its "
                "checkpoint is kept without a tag, as the newest one; give it another name with "
                "'hps models STORE --promote id:N --as NAME', as newer ones take its place"
            )

    def is_current(self, tag: str) -> bool:
        """True if the rows are at the checkpoint of this tag."""
        entries = self._server.checkpoints()
        return any(entry["tag"] == tag and entry.get("current") for entry in entries)
