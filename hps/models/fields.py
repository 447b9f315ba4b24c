"""Fields: the inputs of a model by name, from which it says what its weights are for.

Above it: `ClickModel.input_axes`, hps/train/changed_model.py, which takes weights from one set of
inputs to another. Below it: nothing.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

# Of a parameter, dimension -> what each position along it stands for; others stand for no input.
Axes = Mapping[str, Mapping[int, Sequence[Hashable]]]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What goes into a model, in the order in which a batch has it.

    Args:
        features: a name each; equal ones are the same feature.
        dense: of dense columns, likewise.
        dims: of each feature the width of its embedding; empty where all have one.

    >>> Fields(features=("C1",), dense=("I1",)).side_by_side(2)
    [('feature', 'C1', 0), ('feature', 'C1', 1), ('dense', 'I1')]
    """

    features: Sequence[Hashable]
    dense: Sequence[Hashable] = ()
    dims: Sequence[int] = ()

    def side_by_side(self, dim: int) -> list[Hashable]:
        """What each float of all vectors, then of the dense columns stands for, F * dim + C.

        Args:
            dim: of every vector; not asked for where the fields have dims of their own.

        >>> Fields(features=("C1", "C2"), dims=(1, 2)).side_by_side(0)
        [('feature', 'C1', 0), ('feature', 'C2', 0), ('feature', 'C2', 1)]
        """
        dims = self.dims or [dim] * len(self.features)
        return [
            *(
                ("feature", name, place)
                for name, own in zip(self.features, dims, strict=True)
                for place in range(own)
            ),
            *self.columns(),
        ]

    def columns(self) -> list[Hashable]:
        """What each dense column stands for, C."""
        return [("dense", name) for name in self.dense]

    def names(self) -> list[Hashable]:
        """What each field stands for: features, then dense columns, F + C."""
        return [*(("feature", name) for name in self.features), *self.columns()]
