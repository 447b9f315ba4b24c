"""DLRM: dot products between all pairs of feature vectors, the dense columns being one of them.

Above it: the user, `hps train`. Below it: `hps.models.base`.
Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv 1906.00091, section 2.
"""

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel
from hps.models.fields import Axes, Fields
from hps.models.training_ops import pair_dots, places_of
from hps.types import Batch


class DLRM(ClickModel):
    """logit = top MLP(bottom, dot products of all pairs of the features and bottom).

    bottom = MLP(dense), of the embeddings' dim; without dense columns there is none. The bottom MLP
    has one hidden layer as wide as the last of `hidden`. Arguments: see `ClickModel`.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> ids = hps.Ids(torch.tensor([7, 8, 7, 9]), offsets=torch.arange(5))  # 2 features
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         DLRM(server, {"ads": 2}, num_dense=3, hidden=(8,))(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "dlrm"

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        num_dense = self.num_dense
        bottom_hidden = [*tuple(hidden)[-1:], self.dim]
        self.bottom = MLP(num_dense, bottom_hidden, 0.0) if num_dense else None
        num_vectors = self.num_features + (1 if num_dense else 0)
        pairs = torch.triu_indices(num_vectors, num_vectors, offset=1)
        self._flat_pairs = pairs[0] * num_vectors + pairs[1]
        self._pair_places = places_of(self._flat_pairs, num_vectors)
        width = len(self._flat_pairs) + (self.dim if num_dense else 0)
        if width == 0:
            width = self.dim  # a single feature has no pair; its own vector goes to the top
        self.top = MLP(width, hidden, dropout, output=1)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.top.output_bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        names: list[Hashable] = [("feature", name) for name in fields.features]
        inputs: list[Hashable] = []
        axes: dict[str, dict[int, Sequence[Hashable]]] = {}
        if fields.dense:
            names.append("bottom")
            inputs += [("bottom", place) for place in range(self.dim)]
            axes["bottom.0.weight"] = {1: fields.columns()}
        inputs += [frozenset(pair) for pair in combinations(names, 2)]
        return {**axes, "top.0.weight": {1: inputs or fields.side_by_side(self.dim)}}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        vectors = self.embed(batch)
        dense = self.dense_of(batch)
        parts = []
        if self.bottom is not None:
            parts.append(self.bottom(dense))
            vectors = torch.cat([vectors, parts[0].unsqueeze(1)], dim=1)
        if len(self._flat_pairs):
            pairs, places = (of.to(vectors.device) for of in (self._flat_pairs, self._pair_places))
            parts.append(pair_dots(vectors, pairs, places))
        top: torch.Tensor = self.top(torch.cat(parts or [vectors.flatten(1)], dim=1))
        return top.squeeze(1)
