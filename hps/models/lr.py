"""LR: logistic regression over the features and the dense columns.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: McMahan et al., "Ad Click
Prediction: a View from the Trenches", KDD 2013, section 2, whose own optimizer of the weights is
`hps.FTRL`.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import ClickModel
from hps.models.fields import Axes, Fields
from hps.types import Batch


class LogisticRegression(ClickModel):
    """logit = bias + sum of the features' weights + linear(dense).

    Rows have one column, the weight; tables of more are refused. It takes no `hidden` and no
    `dropout`. Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=1, optimizer=hps.FTRL(lr=0.1))]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         LogisticRegression(server, {"ads": 2}, num_dense=3)(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "lr"
    has_first_order: ClassVar[bool] = True
    has_vectors: ClassVar[bool] = False
    has_deep_part: ClassVar[bool] = False

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_first_order = nn.Parameter(torch.zeros(self.num_dense))

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        return {"dense_first_order": {0: fields.columns()}}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        linear = self.embed(batch).sum(dim=(1, 2)) + self.dense_of(batch) @ self.dense_first_order
        return self.bias + linear
