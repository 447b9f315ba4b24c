"""RowServer: what a model's training asks of the server that holds its rows; PinnedRows: of a
batch's rows.

Above it: SparseEmbedding, RowOptimizer, Pipeline, `hps.train`. Below it: the three that keep it,
`hps.ParameterServer` (rows in this process), `hps.RemoteParameterServer` (rows on servers) and
`hps.ClusterParameterServer` (rows on all ranks of a training).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hps.row_layout import Keys

if TYPE_CHECKING:
    from hps.batch_rows import RowUpdate
    from hps.config import TableConfig
    from hps.pipeline.pins import Pins


class PinnedRows(Protocol):
    """The rows of one batch of one table, made ready and held until they are released."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def num_occurrences(self) -> int:
        """L, keys of the batch with their repetitions."""

    @property
    def has_pool(self) -> bool:
        """True if `pool` works where the rows lie."""

    @property
    def is_released(self) -> bool:
        """True when nothing is held any more."""

    def unique_keys(self) -> Keys:
        """The distinct keys, uint64 [N]."""

    def gather(self, out: Any = None) -> Any:
        """The rows as they stand now: float32 [L, D]."""

    def pool(self, offsets: Any, weights: Any, mean: bool, out: Any) -> None:
        """Sums or means of bags, float32 [B, F * D]."""

    def are_of(self, keys: Any) -> bool:
        """True if these are the keys, byte for byte, in their order."""

    def release(self) -> None:
        """Lets go; nothing to do the second time."""


class SoleServer:
    """What a RowServer is whose training has one rank: a step asks no other."""

    exchanges_keys = False

    def divide(self, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing is divided."""
        return keys

    def exchange(self, keys: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Nothing is exchanged."""
        return keys

    def agree(self, flag: bool) -> bool:
        """There is nobody to agree with."""
        return flag

    def pipeline_opened(self, pipeline: object) -> None:
        """Nothing to do."""

    def pipeline_closing(self, pipeline: object, error: BaseException | None) -> None:
        """Nothing to do."""

    def pipeline_closed(self, pipeline: object) -> None:
        """Nothing to do."""


class RowServer(Protocol):
    """Tables of rows that a model reads and steps."""

    pending_gradients: Any

    @property
    def tables(self) -> "dict[str, TableConfig]":
        """Their configs by name."""

    @property
    def learning_rates(self) -> dict[str, float]:
        """By table; to be changed in place."""

    @property
    def device(self) -> str:
        """Where the rows lie, as torch names it."""

    @property
    def exchanges_keys(self) -> bool:
        """True if training has several ranks: a pipeline has `divide` and `exchange` called for
        every batch, and every step calls `apply`, also one that has nothing to apply."""

    @property
    def has_gpu_cache(self) -> bool:
        """True if batches pass through a gpu_cache: then `warm` goes before `pin`."""

    def pull(self, table: str, keys: Any, out: Any = None, create: bool = False) -> Any:
        """Embeddings of keys, float32 [L, dim]."""

    def pin(self, table: str, keys: Any) -> PinnedRows:
        """Makes the rows of a batch ready, in any thread."""

    def warm(self, table: str, keys: Any) -> "Pins":
        """Brings rows nearer, ahead of `pin`."""

    def want(self, table: str, keys: Any) -> None:
        """Says that a batch to come uses these keys."""

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server made these rows ready."""

    def apply(
        self, updates: "Sequence[RowUpdate]", applied: Callable[[], object] | None = None
    ) -> None:
        """One optimizer step of several tables: all of them or none."""

    def agree(self, flag: bool) -> bool:
        """True if it is on any rank."""

    def divide(self, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `exchange` wants, of a batch's keys by table; waits for no other rank."""

    def exchange(self, keys: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What `want`, `warm` and `pin` want instead of bare keys, by table; waits for the other
        ranks. None, given or returned: no rank has another batch."""

    def pipeline_opened(self, pipeline: object) -> None:
        """A pipeline's `with` block is entered."""

    def pipeline_closing(self, pipeline: object, error: BaseException | None) -> None:
        """It has been left, by an error or not; stages may still be at work."""

    def pipeline_closed(self, pipeline: object) -> None:
        """Its stages have ended, and no error has."""


class CutServer(RowServer, Protocol):
    """A RowServer whose rows can go back to checkpoints, and be counted."""

    def num_rows(self, table: str) -> int:
        """Stored rows of a table."""

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row."""

    def stats(self) -> dict[str, Any]:
        """Counters of each tier, then of each table."""

    def checkpoint(
        self,
        tag: str | None = None,
        model: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Makes everything durable in one cut."""

    def restore(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """Goes back to a checkpoint; returns its model and reader."""

    def checkpoint_state(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """(model, reader) of a checkpoint, without going back to it."""

    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints that are kept, oldest first."""
