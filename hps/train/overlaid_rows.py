"""OverlaidRows: a server's rows as a followed model reads them, some of them from elsewhere.

Above it: loaded.py, whose modules look rows up here. Below it: a ParameterServer, and overlays
(`hps._C.RowOverlay`): immutable rows by key, in place of the table's. A version that has changed
many rows is read from its overlay from one call on, while its rows go into the server piece by
piece; a reader of the overlay sees none of that, for it reads those keys there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hps import _C
from hps.checkpoint.blobs import Dense
from hps.common.arrays import AnyArray, as_keys, as_numpy, is_on, on_host, put, to_host
from hps.common.json_text import Json
from hps.common.row_layout import Floats, Keys
from hps.config import TableConfig
from hps.contracts.joint import (
    JointIds,
    JointRows,
    JointServer,
    JointUpdate,
    Overlays,
    Places,
)
from hps.contracts.reads import PooledRead
from hps.contracts.training import BlobReads, Pending, RowServer
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.tiers.pulled_bags import pool_pulled
from hps.types import Ids, PinnedRows, Pins

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling


class OverlaidRows:
    """A RowServer over another one, for reading.

    Args:
        server: of the rows.

    Attributes: `overlays`, by table; none at first. It may be set while nobody reads, and emptied
    at any time once the server has the same rows. Bags with several keys, and tables on a device,
    are looked up twice while there is an overlay of their table.
    """

    def __init__(self, server: RowServer) -> None:
        self._server = server
        self.overlays: Overlays = {}
        self.pending_gradients: Pending | None = None
        joint = server.joint
        self._joint = None if joint is None else _OverlaidJoint(joint, self)

    @property
    def tables(self) -> dict[str, TableConfig]:
        """As RowServer has it."""
        return self._server.tables

    @property
    def learning_rates(self) -> dict[str, float]:
        """As RowServer has it."""
        return self._server.learning_rates

    @property
    def device(self) -> str:
        """As RowServer has it."""
        return self._server.device

    @property
    def ranks(self) -> None:
        """None: there are no other ranks."""

    @property
    def joint(self) -> JointServer | None:
        """As RowServer has it."""
        return self._joint

    @property
    def queued(self) -> None:
        """None: nothing is pinned here."""

    @property
    def has_gpu_cache(self) -> bool:
        """As RowServer has it."""
        return self._server.has_gpu_cache

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """As RowServer has it; it creates none."""
        if create:
            raise _not_trained("pull(create=True)")
        overlay = self.overlays.get(table)
        rows = self._server.pull(table, keys, out)
        if overlay is not None:
            host: Floats = to_host(rows) if is_on(rows, self.device) else as_numpy(rows, "rows")
            found = overlay.write_over(on_host(as_keys(keys, self.device)), host)
            if found and is_on(rows, self.device):
                put(host, rows)
        return rows

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """As RowServer has it."""
        if table not in self.overlays:
            self._server.pull_pooled(table, keys, pooling, out)
            return

        def pull(unique: Keys, rows: Floats) -> None:
            self.pull(table, unique, rows)

        target = out if is_on(out, self.device) else as_numpy(out, "out")
        bags = pooling.arguments(self.device)
        dim = self.tables[table].dim
        pool_pulled(pull, dim, on_host(as_keys(keys, self.device)), bags, target)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As RowServer has it."""
        for read in reads:
            self.pull_pooled(read.table, read.keys, read.pooling, read.out)

    def pin(self, table: str, keys: AnyArray) -> PinnedRows:
        """Raises ConfigError: pinned rows are to be trained."""
        raise _not_trained("pin")

    def warm(self, table: str, keys: AnyArray) -> Pins:
        """As RowServer has it."""
        return self._server.warm(table, keys)

    def want(self, table: str, keys: AnyArray) -> None:
        """As RowServer has it."""
        self._server.want(table, keys)

    def holds(self, rows: PinnedRows) -> bool:
        """False: none is pinned here."""
        return False

    def apply(
        self, updates: Sequence[RowUpdate], applied: Callable[[], object] | None = None
    ) -> None:
        """Raises ConfigError: rows that are followed are not trained."""
        raise _not_trained("apply")

    @property
    def checkpoint_blobs(self) -> BlobReads | None:
        """As RowServer has it."""
        return self._server.checkpoint_blobs

    def checkpoints(self) -> list[Json]:
        """As RowServer has it."""
        return self._server.checkpoints()

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """As RowServer has it."""
        return self._server.checkpoint_state(tag)


class _OverlaidJoint:
    """A JointServer whose look-ups read overlays."""

    def __init__(self, joint: JointServer, rows: OverlaidRows) -> None:
        self._joint = joint
        self._rows = rows

    @property
    def threads(self) -> _C.ThreadPool:
        """As JointServer has it."""
        return self._joint.threads

    def look_up(
        self,
        ids: JointIds,
        places: Places,
        out: "torch.Tensor",
        overlays: Overlays | None = None,
    ) -> JointRows:
        """As JointServer has it."""
        return self._joint.look_up(ids, places, out, overlays or self._rows.overlays)

    def pin(self, features: Mapping[str, Ids], num_examples: int) -> JointRows:
        """Raises ConfigError: pinned rows are to be trained."""
        raise _not_trained("pin")

    def pinned(self, features: Mapping[str, Ids], num_examples: int) -> JointRows | None:
        """None: none is."""
        return None

    def apply(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> None:
        """Raises ConfigError: rows that are followed are not trained."""
        raise _not_trained("apply")


def _not_trained(verb: str) -> ConfigError:
    return ConfigError(f"{verb}: these are the rows of a published version, which are not trained")
