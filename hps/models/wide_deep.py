"""Wide & Deep: a linear model beside a deep network, trained together.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: Cheng et al., "Wide & Deep
Learning for Recommender Systems", DLRS 2016, section 3, equation 3.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel
from hps.models.fields import Axes, Fields
from hps.types import Batch


class WideAndDeep(ClickModel):
    """logit = bias + sum of first-order weights + linear(dense) + MLP(embeddings, dense).

    Crossed features of the wide part are columns of the log as any other. Rows have dim + 1
    columns; the last is the wide part's weight. Tables may differ in dim.
    Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=5)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         WideAndDeep(server, {"ads": 2}, num_dense=3, hidden=(8,))(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "wide_deep"
    has_first_order: ClassVar[bool] = True
    takes_any_dims: ClassVar[bool] = True

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        num_dense = self.num_dense
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_first_order = nn.Parameter(torch.zeros(num_dense))
        self.deep = MLP(self.width + num_dense, hidden, dropout, output=1)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        return {
            "dense_first_order": {0: fields.columns()},
            "deep.0.weight": {1: fields.side_by_side(self.dim)},
        }

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        vectors, first_order = self.embed_side_by_side(batch)
        dense = self.dense_of(batch)
        wide = first_order.sum(dim=(1, 2)) + dense @ self.dense_first_order
        deep: torch.Tensor = self.deep(torch.cat([vectors, dense], dim=1))
        return self.bias + wide + deep.squeeze(1)
