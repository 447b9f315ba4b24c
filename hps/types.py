"""A batch on its way from reader to model, and the legend of shape letters.

Above it: the training loop. Below it: the readers, which make batches.

    L  key occurrences       N  unique keys         B  examples      F  features of a table
    D  dim of an embedding   W  row width in floats
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hps import _C
from hps.common.arrays import AnyArray
from hps.common.json_text import Json
from hps.common.row_layout import Keys

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling, Bags

# In `Batch.groups`, of an example whose group is missing: the hash of nothing, XXH64 of no byte
# with seed 0. A group's own key has the name of its column in the seed.
NO_GROUP = 0xEF46DB3751D8E999 - 2**64


class Pins(Protocol):
    """What holds rows of one table in their slots."""

    @property
    def is_released(self) -> bool:
        """True when nothing is held any more."""

    def release(self) -> None:
        """Drops them; nothing to do the second time."""


class PinnedRows(Protocol):
    """The rows of one batch of one table, made ready and held until they are released."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def num_occurrences(self) -> int:
        """L, keys of the batch with their repetitions."""

    @property
    def joint(self) -> object:
        """The JointRows of which these rows are a part, or None."""

    @property
    def is_released(self) -> bool:
        """True when nothing is held any more."""

    def unique_keys(self) -> Keys:
        """The distinct keys, uint64 [N]."""

    def gather(self, out: AnyArray | None = None) -> AnyArray:
        """The rows as they are now: float32 [L, D]."""

    def pool(self, pooling: "BagPooling", out: "torch.Tensor") -> None:
        """Sums or means of bags, float32 [B, F * D]."""

    def are_of(self, keys: AnyArray) -> bool:
        """True if these are the keys, byte for byte, in their order."""

    def bring_ahead(self) -> Pins | None:
        """Brings what the step of these rows would have to wait for besides, such as records of
        keys that wait for a row, and holds it; None if there is nothing."""

    def release(self) -> None:
        """Lets go; nothing to do the second time."""


@dataclass(slots=True)
class Ids:
    """The keys of one table's features in a batch, feature-major, as TorchRec's KeyedJaggedTensor.

    Args:
        keys_L: int64 [L]; the 64 bits of each key. This order is the "order of occurrence".
        offsets: int64 [F*B + 1]; bag f*B + b holds keys_L[offsets[f*B + b]:offsets[f*B + b + 1]].
        weights_L: float32 [L] or None; multiplies each occurrence's embedding in pooling.
        bags: the offsets, checked and measured; None until that was done.

    >>> import torch
    >>> one_feature = Ids(torch.tensor([7, 8, 7]), offsets=torch.tensor([0, 2, 3]))  # two examples
    >>> one_feature.keys_L[one_feature.offsets[0] : one_feature.offsets[1]].tolist()
    [7, 8]
    """

    keys_L: "torch.Tensor"
    offsets: "torch.Tensor"
    weights_L: "torch.Tensor | None" = None
    bags: "Bags | None" = None

    @property
    def known_bags(self) -> "Bags | None":
        """The bags, unless other offsets have been set since."""
        bags = self.bags
        if bags is None or not _C.are_same_tensors(bags.offsets, self.offsets):
            return None
        return bags

    def to(self, device: "str | torch.device") -> "Ids":
        """The same on a device, or itself if it is there; offsets are checked on the way.

        Raises:
            ConfigError: offsets that divide the keys into no bags.
        """
        device = str(device)
        if str(self.keys_L.device) == device:
            return self
        from hps.common.bags import make_bags

        bags = self.known_bags or make_bags(self.offsets, len(self.keys_L), "Batch.to")
        return self.moved(device, bags.to(device))

    def moved(self, device: str, bags: "Bags") -> "Ids":
        """The same on another device, where the bags are."""
        weights = self.weights_L
        if weights is not None:
            weights = weights.to(device, non_blocking=True)
        return Ids(self.keys_L.to(device, non_blocking=True), bags.offsets, weights, bags)


@dataclass(slots=True)
class Batch:
    """B examples of a click log.

    Args:
        features: table name -> Ids.
        dense: float32 [B, number of dense columns]; [B, 0] if the log has none.
        labels: float32 [B], 0 or 1.
        position: the reader's position after this batch; plain numbers and strings.
        rows: table name -> pinned rows; filled by hps.Pipeline, read by hps.SparseEmbedding.
        global_size: examples of the batch of which this is one rank's part; B without ranks.
        weights: float32 [B], finite and at least 0: how much each example counts in the loss; None
            where all count alike.
        groups: int64 [B]; the 64 bits of the key of the group, most often a user, that each example
            belongs to, NO_GROUP of one without; None where the log has none.
        global_weight: sum of the weights of the batch of which this is one rank's part, rounded
            once; without weights as global_size.

    >>> import torch
    >>> ads = Ids(torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    >>> len(Batch(features={"ads": ads}, dense=torch.zeros(2, 0), labels=torch.ones(2)))
    2
    """

    features: Mapping[str, Ids]
    dense: "torch.Tensor"
    labels: "torch.Tensor"
    position: Json = field(default_factory=dict)
    rows: "dict[str, PinnedRows] | None" = None
    global_size: int = -1
    weights: "torch.Tensor | None" = None
    groups: "torch.Tensor | None" = None
    global_weight: float = -1.0

    def __post_init__(self) -> None:
        if self.global_size < 0:
            self.global_size = len(self)
        if self.global_weight < 0:
            self.global_weight = float(self.global_size)
            if self.weights is not None:
                self.global_weight = math.fsum(self.weights.tolist())

    def to(self, device: "str | torch.device") -> "Batch":
        """The same batch on a device, or itself if it is there.

        The copies are queued on the device's current stream and not waited for. Pinned rows stay
        what they are.

        Args:
            device: as torch has or names it; `server.device` is where its rows lie.

        Raises:
            ConfigError: a table's offsets divide its keys into no bags.
        """
        device = str(device)
        if str(self.labels.device) == device:
            return self
        moved = {id(ids): ids for ids in self.features.values()}  # shared ones once
        moved = _ids_moved(moved, device)
        return Batch(
            features={table: moved[id(ids)] for table, ids in self.features.items()},
            dense=self.dense.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            position=self.position,
            rows=self.rows,
            global_size=self.global_size,
            weights=_moved(self.weights, device),
            groups=_moved(self.groups, device),
            global_weight=self.global_weight,
        )

    def with_ids_of(self, tables: Mapping[str, str]) -> "Batch":
        """The same batch, in which some tables have the ids of other ones: the same Ids, no copy.

        Args:
            tables: name -> the table whose ids it has; what is in the batch already stays as it is,
                and the batch itself is returned where all are.

        >>> import torch
        >>> ads = Ids(torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
        >>> batch = Batch(features={"ads": ads}, dense=torch.zeros(2, 0), labels=torch.ones(2))
        >>> batch.with_ids_of({"weights": "ads"}).features["weights"] is ads
        True
        """
        own = self.features
        missing = [name for name, of in tables.items() if name not in own and of in own]
        if not missing:
            return self
        return Batch(
            features={**own, **{name: own[tables[name]] for name in missing}},
            dense=self.dense,
            labels=self.labels,
            position=self.position,
            rows=self.rows,
            global_size=self.global_size,
            weights=self.weights,
            groups=self.groups,
            global_weight=self.global_weight,
        )

    def __len__(self) -> int:
        return int(self.labels.shape[0])


def _ids_moved(given: "dict[int, Ids]", device: str) -> "dict[int, Ids]":
    """The same on a device; bags of those that have none are measured together."""
    from hps.common.bags import bags_of

    away = {key: ids for key, ids in given.items() if str(ids.keys_L.device) != device}
    bags = bags_of(away, device, "Batch.to")
    return {key: ids.moved(device, bags[key]) if key in bags else ids for key, ids in given.items()}


def _moved(values: "torch.Tensor | None", device: str) -> "torch.Tensor | None":
    return None if values is None else values.to(device, non_blocking=True)
