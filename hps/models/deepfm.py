"""DeepFM: a factorization machine and a deep network over the same embeddings.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: Guo et al., "DeepFM: A
Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017, equations 1 to 4.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel, dense_factors, pair_products
from hps.models.fields import Axes, Fields
from hps.types import Batch


class DeepFM(ClickModel):
    """logit = bias + first-order weights + <v_i, v_j> over all pairs + MLP(embeddings, dense).

    A dense column x_j takes part as a field whose vector is x_j times a learned one. Rows have
    dim + 1 columns; the last is the first-order weight. Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=5)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         DeepFM(server, {"ads": 2}, num_dense=3, hidden=(8,))(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "deepfm"
    has_first_order: ClassVar[bool] = True

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        num_dense = self.num_dense
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_first_order = nn.Parameter(torch.zeros(num_dense))
        self.dense_factors = dense_factors(num_dense, self.dim)
        self.deep = MLP(self.num_features * self.dim + num_dense, hidden, dropout, output=1)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        columns = {0: fields.columns()}
        return {
            "dense_first_order": columns,
            "dense_factors": columns,
            "deep.0.weight": {1: fields.side_by_side(self.dim)},
        }

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        # One split: its backward is one copy, that of two slices four passes over the rows.
        vectors, first_order = torch.split_with_sizes(self.embed(batch), [self.dim, 1], dim=2)
        dense = self.dense_of(batch)
        pairs = pair_products(vectors, dense, self.dense_factors)
        linear = first_order.sum(dim=(1, 2)) + dense @ self.dense_first_order
        deep: torch.Tensor = self.deep(torch.cat([vectors.flatten(1), dense], dim=1))
        return self.bias + linear + pairs + deep.squeeze(1)
