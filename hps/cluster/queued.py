"""QueuedRanks: what batches of several tables ask of the device of a rank, for all tables at once.

Above it: parameter_server.py, the pipeline's stages. Below it: the same of the rank's own server;
rows.py. The keys are those that the ranks sent to this one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from hps.cluster.exchange.cluster_rows import ClusterRows
from hps.cluster.exchange.key_exchange import ExchangedKeys
from hps.cluster.rows import RowVerbs
from hps.common.arrays import AnyArray
from hps.contracts.joint import JointUpdate
from hps.contracts.training import QueuedServer
from hps.types import Ids, PinnedRows, Pins


class QueuedRanks:
    """Keeps the contract of QueuedServer for batches whose keys were exchanged.

    Args:
        local: of the rank's own server.
        rows: pins.
    """

    def __init__(self, local: QueuedServer, rows: RowVerbs) -> None:
        self._local = local
        self._rows = rows

    def warming(self, keys: Mapping[str, AnyArray]) -> Mapping[str, Pins]:
        """As QueuedServer has it."""
        return self._local.warming({table: own.received for table, own in _exchanged(keys).items()})

    def pinning(self, keys: Mapping[str, AnyArray]) -> Mapping[str, PinnedRows]:
        """As QueuedServer has it."""
        exchanged = _exchanged(keys)
        self._rows.make_room(exchanged)
        pinned = self._local.pinning({table: own.at_rows for table, own in exchanged.items()})
        return {
            table: self._rows.rows_of(table, exchanged[table], one) for table, one in pinned.items()
        }

    def pin_joint(self, features: Mapping[str, Ids], num_examples: int) -> None:
        """None: rows of ranks come table by table."""

    def apply_joint(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> bool:
        """As QueuedServer has it; there are no such rows."""
        return False

    def release(self, rows: Sequence[PinnedRows]) -> None:
        """As QueuedServer has it."""
        self._local.release([cast("ClusterRows", one).pinned for one in rows])


def _exchanged(keys: Mapping[str, AnyArray]) -> Mapping[str, ExchangedKeys]:
    """What a pipeline over several ranks has in place of keys."""
    return cast("Mapping[str, ExchangedKeys]", keys)
