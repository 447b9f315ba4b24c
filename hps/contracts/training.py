"""RowServer: what a model's training asks of the server that holds its rows; Ranks: what it asks of
the other ranks, if there are any.

Above it: SparseEmbedding, RowOptimizer, Pipeline, `hps.train`. Below it: the three that keep it,
`hps.ParameterServer` (rows in this process), `hps.RemoteParameterServer` (rows on servers) and
`hps.ClusterParameterServer` (rows on all ranks of a training).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hps.checkpoint.blobs import Dense, ModelState
from hps.common.arrays import AnyArray
from hps.common.json_text import Json, JsonView
from hps.contracts.joint import JointRows, JointServer, JointUpdate
from hps.contracts.reads import PooledRead
from hps.contracts.updates import RowUpdate
from hps.types import Ids, PinnedRows, Pins

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.config import TableConfig


class Ranks(Protocol):
    """The ranks of a training that has several, as its server knows them.

    A pipeline has `divide` and `exchange` called for every batch, and every step calls `apply`,
    also one that has nothing to apply.
    """

    def agree(self, flag: bool) -> bool:
        """True if it is on any rank; every rank calls it."""

    def divide(self, keys: Mapping[str, AnyArray]) -> Mapping[str, object]:
        """What `exchange` wants, of a batch's keys by table; waits for no other rank.

        Raises:
            BatchMemoryError: a device has too little memory for it now; nothing was taken.
        """

    def exchange(self, own: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """What `want`, `warm` and `pin` want instead of bare keys, by table; waits for the other
        ranks. None, given or returned: no rank has another batch."""

    def moved(self, exchanged: Mapping[str, object], keys: Mapping[str, AnyArray]) -> None:
        """The keys of a batch whose keys were exchanged lie elsewhere now, by table."""

    def pipeline_opened(self, pipeline: object) -> None:
        """A pipeline's `with` block is entered."""

    def pipeline_closing(self, pipeline: object, error: BaseException | None) -> None:
        """It has been left, by an error or not; stages may still be at work."""

    def pipeline_closed(self, pipeline: object) -> None:
        """Its stages have ended, and no error has."""


class QueuedServer(Protocol):
    """Verbs of a server whose rows lie on a device, for several tables at once: what they ask of
    the device is queued for all tables before the host waits, once for all."""

    def warming(self, keys: Mapping[str, AnyArray]) -> Mapping[str, Pins]:
        """`RowServer.warm` of each table's keys, of all tables or none: what waits for them, by
        table; nothing of a table that lacks no row."""

    def pinning(self, keys: Mapping[str, AnyArray]) -> Mapping[str, PinnedRows]:
        """`RowServer.pin` of each table's keys, of all tables or none."""

    def pin_joint(self, features: Mapping[str, Ids], num_examples: int) -> JointRows | None:
        """`pinning` of a batch's keys, and its bags: rows that are read and stepped side by side;
        None where rows cannot be."""

    def apply_joint(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> bool:
        """One optimizer step of the tables of such rows: all of them or none. False, and nothing is
        done, if rows of one were released."""

    def release(self, rows: "Sequence[PinnedRows]") -> None:
        """Releases rows of several tables at once; nothing to do for those that are released."""


class BlobReads(Protocol):
    """Reads what a checkpoint holds beside rows, as bytes by name."""

    def __call__(
        self, tag: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """All blobs of a checkpoint, or those of `names` alone."""


class KeptCheckpoints(Protocol):
    """Checkpoints, and what they hold beside rows."""

    def checkpoints(self) -> list[Json]:
        """Those that are kept, oldest first."""

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """(model, reader) of a checkpoint, without going back to it."""


class StepListener(Protocol):
    """Who holds rows for this step and those after it: an open `hps.Pipeline`."""

    def step_finished(self) -> None:
        """Called once the pending gradients are applied, or dropped in a skipped step."""

    def give_back_ahead(self) -> bool:
        """Called where the training loop's own look-up is refused: lets go of rows that only later
        batches use. True if there were any, so that trying again may help."""


class Pending(Protocol):
    """Gradients that backward has collected and no step has applied yet, as a server sees them;
    what they are is known to hps/nn/gradients.py alone."""

    @property
    def listeners(self) -> Sequence[StepListener]:
        """The open pipelines."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is pending."""


class RowServer(KeptCheckpoints, Protocol):
    """Tables of rows that a model reads and steps."""

    pending_gradients: Pending | None

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
    def ranks(self) -> Ranks | None:
        """Those that train together; None where there is one."""

    @property
    def joint(self) -> JointServer | None:
        """Look-ups and steps of several tables at once; None where they go table by table."""

    @property
    def queued(self) -> QueuedServer | None:
        """Of rows on a device: look-ups of several tables at once; else None."""

    @property
    def has_gpu_cache(self) -> bool:
        """True if batches pass through a gpu_cache: then `warm` goes before `pin`."""

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """Embeddings of keys, float32 [L, dim]."""

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """Sums or means of bags, float32 [B, F * dim], into `out`, which lies on `device`."""

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """Sums or means of bags of several tables, each into its `out`."""

    def pin(self, table: str, keys: AnyArray) -> PinnedRows:
        """Makes the rows of a batch ready, in any thread."""

    def warm(self, table: str, keys: AnyArray) -> Pins:
        """Brings rows nearer, ahead of `pin`."""

    def want(self, table: str, keys: AnyArray) -> None:
        """Says that a batch to come uses these keys."""

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server made these rows ready."""

    def apply(
        self, updates: "Sequence[RowUpdate]", applied: Callable[[], object] | None = None
    ) -> None:
        """One optimizer step of several tables: all of them or none."""

    @property
    def checkpoint_blobs(self) -> BlobReads | None:
        """Reads single blobs of a checkpoint; None where model and reader come together alone."""


class TrainingServer(RowServer, Protocol):
    """A RowServer whose rows can go back to checkpoints, and be counted."""

    @property
    def period(self) -> int:
        """That updates count in; ConfigError of a server without periods."""

    def advance_period(self, to: int | None = None) -> int:
        """Begins the next period, or a later one; to be called while no pipeline is open."""

    def num_rows(self, table: str) -> int:
        """Stored rows of a table."""

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row."""

    def stats(self) -> Json:
        """Counters of each tier, then of each table."""

    def checkpoint(
        self,
        tag: str | None = None,
        model: ModelState | None = None,
        reader: JsonView | None = None,
    ) -> Json:
        """Makes everything durable in one checkpoint."""

    def restore(self, tag: str | int | None = None) -> Dense:
        """Goes back to a checkpoint; returns its model and reader."""
