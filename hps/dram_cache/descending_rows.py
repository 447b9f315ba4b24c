"""DescendingRows: rows on their way down that could not wait for the turn of the tier below.

Above it: tier.py, which alone uses it. A thread that warms a batch has the tier's turn for as
long as the SSD takes; the victims of the cache above are put here meanwhile, and a caller that has
the turn puts them into slots. Until then this is the newest copy of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import Images, Keys

Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Piece:
    """Rows that came down together.

    Args:
        keys: uint64 [n], distinct, ascending.
        images: uint8 [n, row_bytes].
        is_newest: bool [n]; False where a later piece has the key, or it was erased.
    """

    keys: Keys
    images: Images
    is_newest: Mask

    def places(self, keys: Keys) -> tuple[Mask, NDArray[np.intp]]:
        """Which of some keys have their newest row here, and where; for others a place of any."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return (self.keys[places] == keys) & self.is_newest[places], places

    def newest(self) -> tuple[Keys, Images]:
        """The keys and rows that no later piece has."""
        return self.keys[self.is_newest], self.images[self.is_newest]


class DescendingRows:
    """Pieces in the order in which they came. Everything under the server's lock."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    @property
    def num_rows(self) -> int:
        """Rows of all pieces, those that are no longer the newest included."""
        return sum(len(piece.keys) for piece in self._pieces)

    @property
    def oldest(self) -> Piece | None:
        """The piece that goes down next."""
        return self._pieces[0] if self._pieces else None

    def add(self, keys: Keys, images: Images) -> None:
        """Takes copies of the newest rows of distinct keys, at least one."""
        order = np.argsort(keys)
        added = Piece(keys[order], images[order], np.ones(len(keys), np.bool_))
        self._pieces.append(added)
        for piece in self._pieces[:-1]:  # after: an interrupt between the two leaves one of each
            _forget(piece, keys)

    def remove(self, piece: Piece) -> None:
        """Its rows have reached the tier below; may be repeated."""
        self._pieces = [other for other in self._pieces if other is not piece]

    def holds(self, keys: Keys) -> Mask:
        """Which of the keys have their newest row here."""
        held = np.zeros(len(keys), np.bool_)
        for piece in self._pieces:
            held |= piece.places(keys)[0]
        return held

    def read(self, keys: Keys, rows: Images) -> Mask:
        """Copies the rows of the keys that are here to their places in `rows`; says which."""
        held = np.zeros(len(keys), np.bool_)
        for piece in self._pieces:  # a later one overwrites
            is_in, places = piece.places(keys)
            rows[is_in] = piece.images[places[is_in]]
            held |= is_in
        return held

    def forget(self, keys: Keys) -> None:
        """Drops the rows of these keys."""
        for piece in self._pieces:
            _forget(piece, keys)

    def clear(self) -> None:
        """Drops everything."""
        self._pieces = []


def _forget(piece: Piece, keys: Keys) -> None:
    is_in, places = piece.places(keys)
    piece.is_newest[places[is_in]] = False
