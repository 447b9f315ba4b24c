"""A batch on its way from reader to model, and the legend of shape letters.

Above it: the training loop. Below it: the readers, which make batches.

    L  key occurrences       N  unique keys         B  examples      F  features of a table
    D  dim of an embedding   W  row width in floats
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hps.parameter_server import BatchRows


@dataclass(slots=True)
class Ids:
    """The keys of one table's features in a batch, feature-major, as TorchRec's KeyedJaggedTensor.

    Args:
        keys: int64 [L]; the 64 bits of each key. This order is the "order of occurrence".
        offsets: int64 [F*B + 1]; bag f*B + b holds keys[offsets[f*B + b]:offsets[f*B + b + 1]].
        weights: float32 [L] or None; multiplies each occurrence's embedding in pooling.
    """

    keys: "torch.Tensor"
    offsets: "torch.Tensor"
    weights: "torch.Tensor | None" = None


@dataclass(slots=True)
class Batch:
    """B examples of a click log.

    Args:
        features: table name -> Ids.
        dense: float32 [B, number of dense columns]; [B, 0] if the log has none.
        labels: float32 [B], 0 or 1.
        position: the reader's position after this batch; plain numbers and strings.
        rows: table name -> pinned rows; filled by hps.Pipeline, read by hps.SparseEmbedding.
    """

    features: Mapping[str, Ids]
    dense: "torch.Tensor"
    labels: "torch.Tensor"
    position: dict[str, Any] = field(default_factory=dict)
    rows: "dict[str, BatchRows] | None" = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])
