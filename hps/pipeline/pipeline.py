"""Pipeline: yields a reader's batches with their rows pinned in place, and lets go of them in time.

Above it: the user's training loop. Below it: a reader (any iterable of `hps.Batch`) and
`ParameterServer.pin`. Depth 0 runs the four stages one after the other in the caller's thread.
"""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hps.errors import CapacityError, ConfigError, PendingGradientError
from hps.gradients import pending_of
from hps.pipeline.clock import StageClock
from hps.types import Batch

if TYPE_CHECKING:
    from hps.batch_rows import BatchRows
    from hps.parameter_server import ParameterServer


class Pipeline:
    """An iterable context manager over batches whose rows stay in place until their step is done.

    A batch's rows are pinned when it is yielded and released when `RowOptimizer.step()` has applied
    its gradient, when the next batch is asked for and it has none, or when the `with` block is
    left. Asking for the next batch while a gradient is pending raises, unless `accumulate` batches
    may be pending.

    Args:
        batches: yields `hps.Batch`; taken up once.
        server: an open `hps.ParameterServer`.
        depth: batches prepared ahead; 0 only until the stages have threads of their own.
        accumulate: how many batches' gradients one step may gather.

    Raises:
        ConfigError: a depth or accumulate that cannot work.

    >>> import hps, tempfile, torch
    >>> tables = [hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=0.1))]
    >>> ids = hps.Ids(keys_L=torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    >>> log = [hps.Batch(features={"ads": ids}, dense=torch.zeros(2, 0), labels=torch.ones(2))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    ...         with hps.Pipeline(log, server, depth=0) as batches:
    ...             for batch in batches:
    ...                 embedding(batch).sum().backward()
    ...                 optimizer.step()
    ...         server.num_rows("ads")
    2
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        server: "ParameterServer",
        depth: int = 0,
        accumulate: int = 1,
    ) -> None:
        if depth != 0:
            raise ConfigError(
                f"Pipeline(depth={depth!r}): only depth=0 is built so far; it gives the same rows"
            )
        if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
            raise ConfigError(f"Pipeline(accumulate={accumulate!r}) must be a whole number >= 1")
        self.accumulate = accumulate
        self._batches = batches
        self._server = server
        self._pending = pending_of(server)
        self._clock = StageClock()
        self._iterator: Iterator[Batch] | None = None
        self._held: list[Batch] = []  # yielded, rows pinned, oldest first; the last is the current
        self._num_collected = 0  # of the pending gradients, when the current batch was yielded
        self._position = _position_of(batches)  # of the last applied batch
        self._yielded_position = self._position

    def __enter__(self) -> "Pipeline":
        if self._iterator is not None:
            raise ConfigError("Pipeline: entered twice; make a new one for another pass")
        self._iterator = iter(self._batches)
        self._pending.listeners.append(self)
        self._server.num_open_pipelines += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.stop_compute()
        self._pending.listeners.remove(self)
        self._server.num_open_pipelines -= 1
        self._iterator = iter(())
        self._release(self._held)
        self._held = []

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._clock.stop_compute()
        if self._iterator is None:
            raise ConfigError("Pipeline: iterate inside its `with` block, which releases the rows")
        self._settle()
        with self._clock.busy("network"):
            batch = next(self._iterator)
        with self._clock.busy("fetch"):
            batch.rows = self._pin(batch)
        self._held.append(batch)
        self._yielded_position = batch.position
        self._num_collected = self._pending.num_collected
        self._clock.start_compute()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The reader's position after the last applied batch, for `checkpoint(reader=...)`.

        A batch counts as applied once its step is done, or once the next batch is asked for and it
        left no gradient.
        """
        return dict(self._position)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Busy and wait seconds of each stage so far."""
        return self._clock.seconds()

    def step_finished(self) -> None:
        """Releases the rows of the step; `RowOptimizer.step()` calls it."""
        self._position = self._yielded_position
        self._release(self._held)
        self._held = []

    def _settle(self) -> None:
        """Decides what becomes of the batches that are out, before another one is taken."""
        is_new = self._pending.num_collected != self._num_collected
        if self._held and (self._pending.is_empty or not is_new):
            # The current batch has left no gradient: drop its rows.
            self._release([self._held.pop()])
        if self._pending.is_empty:
            self._position = self._yielded_position
            self._release(self._held)
            self._held = []
        elif len(self._held) >= self.accumulate or not self._held:
            raise PendingGradientError(
                f"Pipeline: the next batch was asked for while gradients of {len(self._held)} "
                f"batch(es) are pending (accumulate={self.accumulate}); call RowOptimizer.step() "
                "to apply them, zero_grad() to drop them, or pass a larger accumulate"
            )

    def _pin(self, batch: Batch) -> "dict[str, BatchRows]":
        """Pins the rows of all tables of a batch, or of none."""
        rows: dict[str, BatchRows] = {}
        try:
            for table, ids in batch.features.items():
                rows[table] = self._server.pin(table, ids.keys_L)
        except BaseException as error:
            for pinned in rows.values():
                pinned.release()
            if isinstance(error, CapacityError) and self._held:
                raise CapacityError(
                    f"{error} ({len(self._held)} batch(es) before it wait for a step: "
                    f"accumulate={self.accumulate})"
                ) from error
            raise
        return rows

    def _release(self, batches: list[Batch]) -> None:
        for batch in batches:
            for rows in (batch.rows or {}).values():
                self._pending.forget_rows(rows)
                rows.release()
            batch.rows = None


def _position_of(batches: Iterable[Batch]) -> dict[str, Any]:
    """Where a reader stands before its first batch; empty for an iterable that does not say."""
    state_dict = getattr(batches, "state_dict", None)
    return dict(state_dict()) if callable(state_dict) else {}
