"""PlacedRows: the pinned rows of one batch of several tables on a device, read into rows that the
tables share and stepped by the gradient of these.

Above it: parameter_server/batches.py; SparseEmbeddings, RowOptimizer and Pipeline, by the contract
of JointRows. Below it: tables_together.py, BatchRows. joint_rows.py is the same over native caches
of the host.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import ref

import torch

from hps.common.arrays import HOST
from hps.common.bags import BagPooling, bags_of, own_copy, refuse_infinite_weights
from hps.common.row_layout import Labels
from hps.contracts.joint import KeptIds, Places
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.tiers.batch_rows import BatchRows

if TYPE_CHECKING:
    from hps.tiers.tables_together import TablesTogether
    from hps.types import Ids, PinnedRows


def poolings_of(features: "Mapping[str, Ids]", device: str) -> list[BagPooling]:
    """How the bags of each table are pooled, sums, on the device: by weights of its own, and, where
    the batch was moved there, by the offsets that the batch has, which are to stay as they are.

    Raises:
        ConfigError: offsets that divide the keys into no bags, or a weight (on the host) that is
            not finite; or not a weight a key.
    """
    found = []
    bags = bags_of(features, device, f"tables {list(features)}")
    for table, ids in features.items():
        where, weights = f"table {table!r}", ids.weights_L
        if weights is not None:
            if weights.dtype != torch.float32 or weights.shape != ids.keys_L.shape:
                raise ConfigError(
                    f"{where}: weights are {weights.dtype} of shape {tuple(weights.shape)}; "
                    f"float32 [{len(ids.keys_L)}] is needed"
                )
            if weights.device.type == HOST:
                refuse_infinite_weights(weights.detach().numpy(), where)
            weights = own_copy(weights.to(device, non_blocking=True))
        found.append(BagPooling(bags[table], weights, is_mean=False))
    return found


class PlacedRows:
    """Keeps the contract of JointRows.

    Args:
        together: the verbs over the tables.
        rows: pinned, by table.
        features: of the batch, of the same tables.
        poolings: of each of them.
        num_examples: B.
    """

    def __init__(
        self,
        together: "TablesTogether",
        rows: Mapping[str, BatchRows],
        features: "Mapping[str, Ids]",
        poolings: Sequence[BagPooling],
        num_examples: int,
    ) -> None:
        self.tables = tuple(rows)
        self.num_examples = num_examples
        self.together = together
        self._rows = dict(rows)
        self._keys = {table: own.keys_L for table, own in features.items()}
        self._poolings = dict(zip(rows, poolings, strict=True))
        self._kept = KeptIds(features, num_examples)
        for own in self._rows.values():
            own.placed = ref(self)  # not the contrary as well: what is dropped is let go at once

    @property
    def is_released(self) -> bool:
        """As JointRows has it."""
        return not self.together.hold_all(self._rows.values())

    def are_of(self, features: "Mapping[str, Ids]", num_examples: int) -> bool:
        """As JointRows has it."""
        return self._kept.are(features, num_examples) and not self.is_released

    def parts(self, tables: Sequence[str]) -> tuple[list[BatchRows], list[BagPooling]]:
        """Rows and bags of some of the tables."""
        return [self._rows[one] for one in tables], [self._poolings[one] for one in tables]

    def pool(self, places: Places, out: torch.Tensor) -> None:
        """As JointRows has it.

        Raises:
            ConfigError: rows of a table were released; nothing is pooled.
        """
        wide = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
        if not self.together.pool_placed(self, places, wide):
            raise ConfigError(f"the rows of this batch of {list(self.tables)} were released")
        if wide is not out:
            out.copy_(wide)

    def of_tables(self) -> "Mapping[str, PinnedRows]":
        """As JointRows has it."""
        return dict(self._rows)

    def updates(
        self, places: Places, grads: torch.Tensor, clicks: Labels | None
    ) -> list[RowUpdate]:
        """As JointRows has it. Of tables on a device, which count no clicks."""
        assert clicks is None, "clicks of tables on a device"
        found = []
        for table, name in enumerate(places.tables):
            dim, columns = places.dims[table], places.columns[table]
            by_feature = [grads[:, column : column + dim] for column in columns]
            rows, own = self._rows[name], self._poolings[name]
            # Where bags are single, a bag's gradient is its occurrence's.
            is_plain = own.bags.are_single and own.weights is None
            pooling = (
                None if is_plain else BagPooling(own.bags, own.weights, places.are_means[table])
            )
            pinned = None if rows.is_released else rows
            values = torch.cat(by_feature).float()
            found.append(RowUpdate(name, self._keys[name], values, pinned, pooling))
        return found

    def release(self) -> None:
        """As JointRows has it."""
        self.together.release(list(self._rows.values()))
