"""DIN: what of a history counts is decided by the candidate, a sum weighed by a small network.

Above it: the user, `hps train`. Below it: `hps.models.base`, sequences.py. Source: Zhou et al.,
"Deep Interest Network for Click-Through Rate Prediction", KDD 2018 (arXiv 1706.06978), equation 3
and figure 2; PReLU as in section 5.2.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from hps.models.base import MLP, ClickModel
from hps.models.fields import Axes, Fields
from hps.models.sequences import SequenceRows
from hps.types import Batch

_UNIT_WIDTH = 36  # of the activation unit's hidden layer, as in figure 2


class DIN(ClickModel):
    """logit = MLP(embeddings, dense), a sequence's embedding being sum_j a(e_j, v_A) e_j.

    e_j are the rows of the sequence's keys, v_A that of its target. The activation unit a is an MLP
    over (e_j, v_A, e_j - v_A, e_j * v_A) with one hidden layer; its outputs are weights as they
    are, not divided by their sum (no softmax), so that a history without keys gives zeros. One unit
    serves all sequences. Activations are PReLU with a slope for each unit of a layer: unlike Dice
    they make a logit of its own example alone. Sequences and targets have one dim; the other
    features may have others.

    Args: see `ClickModel`; `sequences` is needed.

    >>> import tempfile, torch, hps
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> offsets = torch.tensor([0, 1, 2, 5, 5])  # of two examples: an item each, then a history
    >>> ids = hps.Ids(torch.tensor([7, 8, 8, 9, 7]), offsets)
    >>> batch = hps.Batch({"ads": ids}, dense=torch.ones(2, 3), labels=torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         DIN(server, {"ads": 2}, 3, hidden=(8,), sequences={1: 0})(batch).shape
    torch.Size([2])
    """

    kind: ClassVar[str] = "din"
    takes_any_dims: ClassVar[bool] = True
    takes_sequences: ClassVar[bool] = True

    def _build(self, hidden: Sequence[int], dropout: float) -> None:
        counts = self.features.items()
        dims = [self.dims_of_tables[table] for table, count in counts for _ in range(count)]
        dim = dims[next(iter(self.sequences))]  # that of all sequences and targets
        self.unit = MLP(4 * dim, (_UNIT_WIDTH,), 0.0, output=1, activation=nn.PReLU)
        inputs = self.width + self.num_dense
        self.deep = MLP(inputs, hidden, dropout, output=1, activation=nn.PReLU)

    @property
    def output_bias(self) -> nn.Parameter:
        """As ClickModel has it."""
        return self.deep.output_bias

    def input_axes(self, fields: Fields) -> Axes:
        """As ClickModel has it."""
        # The unit takes whatever sequences there are: a new one is weighed as the others are.
        return {"deep.0.weight": {1: fields.side_by_side(self.dim)}}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [B]."""
        found = self.embed_apart(batch)
        vectors = [own for own in found if isinstance(own, torch.Tensor)]
        histories: list[SequenceRows] = []
        spread: list[torch.Tensor] = []
        for place, target in self.sequences.items():
            history, candidate = found[place], found[target]
            assert isinstance(history, SequenceRows) and isinstance(candidate, torch.Tensor)
            histories.append(history)
            spread.append(history.spread(candidate))
        # All sequences at once: the unit is asked once a batch.
        rows, targets = torch.cat([one.rows for one in histories]), torch.cat(spread)
        parts = [rows, targets, rows - targets, rows * targets]
        weighed = rows * self.unit(torch.cat(parts, dim=1))  # a(e_j, v_A) e_j of equation 3
        counts = [len(one.rows) for one in histories]
        sums = iter(
            history.sums(own)
            for history, own in zip(histories, torch.split_with_sizes(weighed, counts), strict=True)
        )
        pooled = iter(vectors)
        in_order = [
            next(sums) if place in self.sequences else next(pooled)
            for place in range(self.num_features)
        ]
        logits: torch.Tensor = self.deep(torch.cat([*in_order, self.dense_of(batch)], dim=1))
        return logits.squeeze(1)
