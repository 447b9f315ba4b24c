"""DCN-V2: explicit feature crosses of growing degree beside a deep network.

Above it: the user, `hps train`. Below it: `hps.models.base`. Source: Wang et al., "DCN V2: Improved
Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021 (arXiv
2008.13535), equation 1; the parallel structure of figure 1b.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel
from hps.models.fields import Axes, Fields
from hps.models.training_ops import TrainedLinear
from hps.types import Batch

_NUM_CROSSES = 3


class DCNv2(ClickModel):
    """x_(l+1) = x_0 * (W_l x_l + b_l) + x_l, three times; logit = linear(crosses, MLP(x_0)).

    x_0 holds all embeddings and the dense columns side by side. Tables may differ in
    dim. Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         DCNv2(server, {"ads": 2}, num_dense=3, hidden=(8,))(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "dcn_v2"
    takes_any_dims: ClassVar[bool] = True

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        num_dense = self.num_dense
        width = self.width + num_dense
        self.crosses = nn.ModuleList(TrainedLinear(width, width) for _ in range(_NUM_CROSSES))
        self.deep = MLP(width, hidden, dropout)
        self.output = nn.Linear(width + self.deep.output_width, 1)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.output.bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        start = fields.side_by_side(self.dim)
        deep: list[Hashable] = [("deep", place) for place in range(self.deep.output_width)]
        axes: dict[str, dict[int, Sequence[Hashable]]] = {}
        if len(self.deep):
            axes["deep.0.weight"] = {1: start}
        else:  # what comes out of no layer is what goes in
            deep = [("deep", one) for one in start]
        for layer in range(_NUM_CROSSES):
            # A new coordinate has a weight and a bias of 0: it passes through as it is.
            axes[f"crosses.{layer}.weight"] = {0: start, 1: start}
            axes[f"crosses.{layer}.bias"] = {0: start}
        return {**axes, "output.weight": {1: [*start, *deep]}}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        vectors, _ = self.embed_side_by_side(batch)
        start = torch.cat([vectors, self.dense_of(batch)], dim=1)
        crossed = start
        for cross in self.crosses:
            crossed = torch.addcmul(crossed, start, cross(crossed))
        logits: torch.Tensor = self.output(torch.cat([crossed, self.deep(start)], dim=1))
        return logits.squeeze(1)
