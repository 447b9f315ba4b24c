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
        keys_L: int64 [L]; the 64 bits of each key. This order is the "order of occurrence".
        offsets: int64 [F*B + 1]; bag f*B + b holds keys_L[offsets[f*B + b]:offsets[f*B + b + 1]].
        weights_L: float32 [L] or None; multiplies each occurrence's embedding in pooling.

    >>> import torch
    >>> one_feature = Ids(torch.tensor([7, 8, 7]), offsets=torch.tensor([0, 2, 3]))  # two examples
    >>> one_feature.keys_L[one_feature.offsets[0] : one_feature.offsets[1]].tolist()
    [7, 8]
    """

    keys_L: "torch.Tensor"
    offsets: "torch.Tensor"
    weights_L: "torch.Tensor | None" = None


@dataclass(slots=True)
class Batch:
    """B examples of a click log.

    Args:
        features: table name -> Ids.
        dense: float32 [B, number of dense columns]; [B, 0] if the log has none.
        labels: float32 [B], 0 or 1.
        position: the reader's position after this batch; plain numbers and strings.
        rows: table name -> pinned rows; filled by hps.Pipeline, read by hps.SparseEmbedding.

    >>> import torch
    >>> ads = Ids(torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    >>> len(Batch(features={"ads": ads}, dense=torch.zeros(2, 0), labels=torch.ones(2)))
    2
    """

    features: Mapping[str, Ids]
    dense: "torch.Tensor"
    labels: "torch.Tensor"
    position: dict[str, Any] = field(default_factory=dict)
    rows: "dict[str, BatchRows] | None" = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])
