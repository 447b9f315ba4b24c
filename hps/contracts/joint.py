"""Joint look-ups: the keys of several tables, looked up and stepped in one native call a phase.

Above it: `hps.SparseEmbeddings`, `hps.RowOptimizer`, `hps.Pipeline`. Below it: the server that does
it, `hps.ParameterServer`: JointServer with its working rows on the host, JointRows also of rows
that a pipeline has pinned on a device (hps/tiers/placed_rows.py). Other servers go table by table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hps import _C
from hps.common.arrays import AnyArray, as_contiguous, as_keys
from hps.common.row_layout import Labels
from hps.contracts.updates import RowUpdate
from hps.types import Ids, PinnedRows

if TYPE_CHECKING:
    import torch

# Rows, by table, that are read in place of its own.
Overlays = Mapping[str, _C.RowOverlay]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the features of some tables are in the rows of an output [B, width].

    Args:
        tables: their names, each once.
        dims: of each table.
        are_means: of each table, whether its bags are means.
        columns: of each table, the first column of each of its features, in their order.
        features: of each table, the places of those features among all.
        width: of the output, in floats.
        counts: of each table, how many features it has.
        first_columns: of each table, if its features follow each other in the output; None unless
            those of every table do.
        native: the same, for the native core.
    """

    tables: tuple[str, ...]
    dims: tuple[int, ...]
    are_means: tuple[bool, ...]
    columns: tuple[tuple[int, ...], ...]
    features: tuple[tuple[int, ...], ...]
    width: int
    counts: tuple[int, ...]
    first_columns: tuple[int, ...] | None
    native: _C.TablePlaces

    @staticmethod
    def of(
        tables: Sequence[str],
        dims: Sequence[int],
        are_means: Sequence[bool],
        columns: Sequence[Sequence[int]],
        features: Sequence[Sequence[int]],
    ) -> "Places":
        """Of features whose columns leave no gap."""
        width = sum(dim * len(own) for dim, own in zip(dims, columns, strict=True))
        own_columns = [list(own) for own in columns]
        own_features = [list(own) for own in features]
        return Places(
            tuple(tables),
            tuple(dims),
            tuple(are_means),
            tuple(map(tuple, columns)),
            tuple(map(tuple, features)),
            width,
            tuple(map(len, columns)),
            _first_columns(dims, columns),
            _C.TablePlaces(list(dims), list(are_means), own_columns, own_features, width),
        )

    def ordered(self, tables: tuple[str, ...]) -> "Places":
        """The same with the tables in another order; KeyError if they are others."""
        by_name = dict(zip(self.tables, range(len(self.tables)), strict=True))
        order = [by_name[table] for table in tables]
        return Places.of(
            tables,
            [self.dims[place] for place in order],
            [self.are_means[place] for place in order],
            [self.columns[place] for place in order],
            [self.features[place] for place in order],
        )


def _first_columns(dims: Sequence[int], columns: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    for dim, own in zip(dims, columns, strict=True):
        if not own or list(own) != list(range(own[0], own[0] + dim * len(own), dim)):
            return None
    return tuple(own[0] for own in columns)


class JointIds(Protocol):
    """The keys of some tables' features for B examples, and their bags."""

    @property
    def num_examples(self) -> int:
        """B."""

    def give_to(self, batch: _C.TableBatch) -> None:
        """Makes them the batch's; ValueError if a dtype or shape does not fit."""


@dataclass(slots=True)
class KeysByTable:
    """Keys of tables in tensors of their own: what a batch has of each of them."""

    features: list[Ids]
    num_examples: int

    def give_to(self, batch: _C.TableBatch) -> None:
        """As JointIds has it.

        Raises:
            ConfigError: a tensor is not on the host, or keys are not int64 or uint64 [L].
        """
        try:
            # What they are the native core finds out, at a fraction of what it costs here.
            batch.take_parts(self.features, self.num_examples)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            # Numbers with gaps between them; or something is wrong, and is told here.
            own = [_Arrays(ids.keys_L, ids.offsets, ids.weights_L) for ids in self.features]
            batch.take_parts(own, self.num_examples)


class _Arrays:
    """Ids as arrays without gaps."""

    def __init__(self, keys: AnyArray, offsets: AnyArray, weights: AnyArray | None) -> None:
        self.keys_L = as_keys(keys)
        self.offsets = as_contiguous(offsets, "offsets")
        self.weights_L = None if weights is None else as_contiguous(weights, "weights")


@dataclass(slots=True)
class KeysOfAll:
    """Keys of all features of `places` in the same arrays or tensors, feature after feature."""

    keys: AnyArray
    offsets: AnyArray
    weights: AnyArray | None
    places: Places
    num_examples: int

    def give_to(self, batch: _C.TableBatch) -> None:
        """As KeysByTable has it."""
        places = (self.places.native, self.num_examples)
        try:
            batch.take_joint(self.keys, self.offsets, self.weights, *places)
        except (RuntimeError, TypeError, ValueError):  # as there
            own = _Arrays(self.keys, self.offsets, self.weights)
            batch.take_joint(own.keys_L, own.offsets, own.weights_L, *places)


_Placed = tuple[int, tuple[int, ...], tuple[int, ...], object]
_Tensors = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor | None"]


class KeptIds:
    """The tensors of a batch and their memory, kept so that no others come to lie there, and what
    tells them from others, and from themselves after a change in place or of their memory. What is
    written past torch, by `.numpy()` or by `.data`, it does not tell.

    Args:
        features: of the batch, by table.
        num_examples: B.
    """

    def __init__(self, features: Mapping[str, Ids], num_examples: int) -> None:
        self._num_examples = num_examples
        self._kept = [
            (table, own.keys_L, own.offsets, own.weights_L, _memory_of(own), _num_changes(own))
            for table, own in features.items()
        ]

    def are(self, features: Mapping[str, Ids], num_examples: int) -> bool:
        """True if a batch has these very tensors, and none was changed."""
        return num_examples == self._num_examples and _C.are_kept(self._kept, features)

    def lie_at(self, features: Mapping[str, Ids], num_examples: int) -> bool:
        """True if a batch's tensors are these or others over all of their memory, and none was
        changed."""
        if num_examples != self._num_examples or len(features) != len(self._kept):
            return False
        for table, *_, memory, changes in self._kept:
            own, kept = features.get(table), Ids(*memory)
            if own is None or changes < 0 or _num_changes(kept) != changes:
                return False
            if _placed(own) != _placed(kept):
                return False
        return True


def _num_changes(ids: Ids) -> int:
    """Grows with each change in place; below 0 where torch does not count them."""
    return _C.num_changes(ids.keys_L, ids.offsets, ids.weights_L)


def _tensors_of(ids: Ids) -> _Tensors:
    return ids.keys_L, ids.offsets, ids.weights_L


def _memory_of(ids: Ids) -> _Tensors:
    """Tensors over the memory that they have now, which count changes together with them."""
    weights = ids.weights_L
    return ids.keys_L.detach(), ids.offsets.detach(), None if weights is None else weights.detach()


def _placed(ids: Ids) -> list[_Placed | None]:
    return [
        None if one is None else (one.data_ptr(), tuple(one.shape), one.stride(), one.dtype)
        for one in _tensors_of(ids)
    ]


class JointRows(Protocol):
    """What one look-up found of some tables: their rows, in place or pinned."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def num_examples(self) -> int:
        """B."""

    @property
    def is_released(self) -> bool:
        """True if no row is pinned, or none is any more."""

    def are_of(self, features: Mapping[str, Ids], num_examples: int) -> bool:
        """True if the rows of these very features, as they are, are pinned."""

    def pool(self, places: Places, out: "torch.Tensor") -> None:
        """The bags of pinned rows, at their places in [B, width], float32 or bfloat16."""

    def of_tables(self) -> Mapping[str, PinnedRows]:
        """The same rows, a table at a time."""

    def updates(
        self, places: Places, grads: "torch.Tensor", clicks: Labels | None
    ) -> list[RowUpdate]:
        """What each table's step starts from, with gradients of their own [F * B, D], and with
        clicks of their occurrences; given are those of the examples."""

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""


@dataclass(slots=True)
class JointUpdate:
    """What a step over several tables starts from.

    Args:
        rows: of the look-up.
        places: of its features.
        grads: float32 or bfloat16 [B, width], contiguous, owned.
        is_copy: its memory may serve again.
        clicks: uint8 [B], 1 where an example has label 1, else 0; None: no clicks. Counted in
            tables with statistics.
    """

    rows: JointRows
    places: Places
    grads: "torch.Tensor"
    is_copy: bool = False
    clicks: Labels | None = None


class JointServer(Protocol):
    """Look-ups and steps of several tables at once. Any thread may call."""

    @property
    def threads(self) -> _C.ThreadPool:
        """That work on them, and may work on what goes before and after, too."""

    def look_up(
        self,
        ids: JointIds,
        places: Places,
        out: "torch.Tensor",
        overlays: Overlays | None = None,
    ) -> JointRows:
        """Pools bags into out, float32 or bfloat16 [B, width]; what it found is for the step,
        unless rows were read from overlays."""

    def pin(self, features: Mapping[str, Ids], num_examples: int) -> JointRows:
        """Fetches all rows of a batch, by table, and holds them until they are released."""

    def pinned(self, features: Mapping[str, Ids], num_examples: int) -> JointRows | None:
        """What holds the rows of this batch, known by where its tensors lie, if anything does."""

    def apply(self, update: JointUpdate, applied: Callable[[], object] | None = None) -> None:
        """One optimizer step of these tables: all of them or none."""
