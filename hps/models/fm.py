"""FM: a factorization machine of degree two, without a deep part.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: Rendle, "Factorization
Machines", ICDM 2010, equation 1, and lemma 3.1 for the linear-time sum.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import ClickModel, dense_factors, pair_products
from hps.models.fields import Axes, Fields
from hps.types import Batch


class FactorizationMachine(ClickModel):
    """logit = bias + first-order weights + <v_i, v_j> over all pairs of fields.

    A dense column x_j takes part as a field whose vector is x_j times a learned one. Rows have
    dim + 1 columns; the last is the first-order weight. It takes no `hidden` and no `dropout`.
    Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=5)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         FactorizationMachine(server, {"ads": 2}, num_dense=3)(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "fm"
    has_first_order: ClassVar[bool] = True
    has_deep_part: ClassVar[bool] = False

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_first_order = nn.Parameter(torch.zeros(self.num_dense))
        self.dense_factors = dense_factors(self.num_dense, self.dim)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        columns = {0: fields.columns()}
        return {"dense_first_order": columns, "dense_factors": columns}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        vectors, first_order = torch.split_with_sizes(self.embed(batch), [self.dim, 1], dim=2)
        dense = self.dense_of(batch)
        linear = first_order.sum(dim=(1, 2)) + dense @ self.dense_first_order
        return self.bias + linear + pair_products(vectors, dense, self.dense_factors)
