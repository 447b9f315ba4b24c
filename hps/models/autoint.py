"""AutoInt: self-attention over the feature vectors, layer by layer; AutoInt+ with a deep part.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: Song et al., "AutoInt:
Automatic Feature Interaction Learning via Self-Attentive Neural Networks", CIKM 2019 (arXiv
1810.11921), equations 2 to 9; its settings for criteo are three layers of two heads, each 32 wide
for vectors of 16.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel, dense_factors
from hps.models.fields import Axes, Fields
from hps.types import Batch

_NUM_LAYERS = 3
_NUM_HEADS = 2
_HEAD_WIDTHS = 2  # of a head, in dims


class AutoInt(ClickModel):
    """logit = linear(the fields after three attention layers) [+ MLP(embeddings, dense)].

    A dense column x_j is a field whose vector is x_j times a learned one. A layer has two heads,
    each 2 dim wide, so that its fields come out 4 dim wide. With `hidden` it is the paper's
    AutoInt+, without (`hidden=()`) AutoInt alone. Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         AutoInt(server, {"ads": 2}, num_dense=3, hidden=(8,))(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "autoint"

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        self.dense_factors = dense_factors(self.num_dense, self.dim)
        head_width = _HEAD_WIDTHS * self.dim
        width = _NUM_HEADS * head_width
        self.layers = nn.Sequential(
            *(
                _AttentionLayer(width if layer else self.dim, head_width)
                for layer in range(_NUM_LAYERS)
            )
        )
        self.output = nn.Linear((self.num_features + self.num_dense) * width, 1)
        self.deep = None
        if hidden:
            inputs = self.num_features * self.dim + self.num_dense
            self.deep = MLP(inputs, hidden, dropout, output=1)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.output.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        # Attention takes whatever fields there are: a new one has its share at once.
        width = self.output.in_features // (self.num_features + self.num_dense)
        mixed = [(name, place) for name in fields.names() for place in range(width)]
        axes: dict[str, dict[int, Sequence[Hashable]]] = {
            "dense_factors": {0: fields.columns()},
            "output.weight": {1: mixed},
        }
        if self.deep is not None:
            axes["deep.0.weight"] = {1: fields.side_by_side(self.dim)}
        return axes

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        vectors, dense = self.embed(batch), self.dense_of(batch)
        fields = torch.cat([vectors, dense.unsqueeze(2) * self.dense_factors], dim=1)
        logits: torch.Tensor = self.output(self.layers(fields).flatten(1))
        if self.deep is not None:
            logits = logits + self.deep(torch.cat([vectors.flatten(1), dense], dim=1))
        return logits.squeeze(1)


class _AttentionLayer(nn.Module):
    """ReLU(heads side by side + W_Res e): each field as a mixture of all, equations 5 to 8.

    The products of queries and keys are not scaled down, as in the paper.

    Args:
        width: of a field that comes in.
        head_width: of each head; a field comes out `_NUM_HEADS` times as wide.
    """

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        # Queries, keys, values and residual: one product is faster than four.
        self.projections = nn.Linear(width, 4 * _NUM_HEADS * head_width, bias=False)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """[B, fields, width] to [B, fields, _NUM_HEADS * head_width]."""
        query, key, value, residual = self.projections(fields).chunk(4, dim=2)
        # Not torch's fused attention: on a GPU its backward need not repeat its bits.
        shares = torch.softmax(_heads(query) @ _heads(key).transpose(2, 3), dim=3)
        mixed = (shares @ _heads(value)).transpose(1, 2).flatten(2)
        return torch.relu(mixed + residual)


def _heads(values: torch.Tensor) -> torch.Tensor:
    """[B, fields, heads * width] as [B, heads, fields, width]."""
    num_examples, num_fields, width = values.shape
    return values.view(num_examples, num_fields, _NUM_HEADS, width // _NUM_HEADS).transpose(1, 2)
