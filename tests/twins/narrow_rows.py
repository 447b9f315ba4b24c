"""Readable twin of csrc/optimizer/narrow_lanes.h: rows whose weights are bfloat16.

Above it: tests/twins/dram_cache.py, tests of narrow rows. Below it: row_math.py, whose rows, all of
float32, these are between two steps: a weight of theirs is a bfloat16 widened.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import RowLayout
from tests.twins import row_math
from tests.twins.row_math import HEADER, Floats, mix_key

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Keys = NDArray[np.uint64]


def _upper(bits: Words, is_up: NDArray[np.bool_]) -> Floats:
    """The bfloat16 below each float in magnitude, or the one above it."""
    return ((bits & np.uint32(0xFFFF0000)) + (is_up.astype(np.uint32) << 16)).view(np.float32)


def to_nearest(values: Floats) -> Floats:
    """Rounded to the nearest bfloat16, to the even one of two that are as near."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rest, is_odd = bits & 0xFFFF, (bits >> 16) & 1 == 1
    return _upper(bits, (rest > 0x8000) | ((rest == 0x8000) & is_odd))


def at_random(values: Floats, random: Words) -> Floats:
    """Rounded away from zero where the part that is lost, of 65536, and `random` reach 65536."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return _upper(bits, (bits & 0xFFFF) + random >= 65536)


def random_bits(layout: RowLayout, rows: Floats, sums: Floats, keys: Keys, stream: int) -> Words:
    """Sixteen bits for each weight [n, dim] of rows as they are before an update."""
    dim = layout.dim
    columns = np.arange(dim, dtype=np.uint32)
    upper = np.ascontiguousarray(rows[:, HEADER : HEADER + dim]).view(np.uint32)
    words = np.ascontiguousarray(sums).view(np.uint32) ^ upper
    for vector in range(layout.state_vectors):
        first = HEADER + dim * (1 + vector)
        state = np.ascontiguousarray(rows[:, first : first + dim]).view(np.uint32)
        words = words * np.uint32(0x85EBCA77) + state
    words = words * ((2 * columns + np.uint32(1)) * np.uint32(0x9E3779B1))
    folded = words.sum(axis=1, dtype=np.uint32).astype(np.uint64)
    halves = np.ascontiguousarray(rows[:, 2:4]).view(np.uint32).astype(np.uint64)
    scalars = (halves[:, 1] << np.uint64(32)) | halves[:, 0]
    seed = (np.array([stream], np.uint64) ^ mix_key(keys)) + scalars * np.uint64(0x9E3779B97F4A7C15)
    seed = mix_key(seed + folded * np.uint64(0xD6E8FEB86659FD93))[:, None]
    low = (seed & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (seed >> np.uint64(32)).astype(np.uint32)
    return (high + columns * low) >> np.uint32(16)


@dataclass(frozen=True)
class NarrowRows:
    """How rows of a table are kept and stepped; without narrow weights as row_math does."""

    layout: RowLayout
    rounding: str
    stream: int

    @property
    def wide(self) -> RowLayout:
        """The layout of the same rows with float32 weights."""
        layout = self.layout
        return RowLayout(layout.optimizer_kind, layout.dim, layout.has_statistics)

    def kept(self, weights: Floats) -> Floats:
        """Weights that were given, as they are kept."""
        return to_nearest(weights) if self.layout.is_narrow else weights

    def update(
        self, rows: Floats, sums: Floats, keys: Keys, lr: float, numbers: list[float]
    ) -> None:
        """One optimizer step on rows [n, W] of float32, in place."""
        kind, dim = self.layout.optimizer_kind, self.layout.dim
        is_random = self.layout.is_narrow and self.rounding == "stochastic"
        random = random_bits(self.layout, rows, sums, keys, self.stream) if is_random else None
        row_math.update_rows(kind, rows, sums, dim, lr, numbers)
        weights = rows[:, HEADER : HEADER + dim]
        weights[:] = self.kept(weights) if random is None else at_random(weights, random)

    def images(self, rows: Bytes) -> Bytes:
        """Rows [n, row bytes] of the wide layout as images of the narrow one."""
        if not self.layout.is_narrow:
            return rows
        images = np.zeros((len(rows), self.layout.row_bytes), np.uint8)
        head, weights = self._parts()
        images[:, :head] = rows[:, :head]
        upper = rows[:, head : head + 4 * self.layout.dim].view(np.uint16)[:, 1::2]
        images[:, head : head + 2 * self.layout.dim] = np.ascontiguousarray(upper).view(np.uint8)
        state = rows[:, head + 4 * self.layout.dim :][:, : self._state_bytes()]
        images[:, weights : weights + state.shape[1]] = state
        return images

    def rows(self, images: Bytes) -> Bytes:
        """The inverse of `images`."""
        if not self.layout.is_narrow:
            return images
        rows = np.zeros((len(images), self.wide.row_bytes), np.uint8)
        head, weights = self._parts()
        rows[:, :head] = images[:, :head]
        upper = np.ascontiguousarray(images[:, head : head + 2 * self.layout.dim])
        rows[:, head : head + 4 * self.layout.dim].view(np.uint16)[:, 1::2] = upper.view(np.uint16)
        state = images[:, weights : weights + self._state_bytes()]
        rows[:, head + 4 * self.layout.dim :][:, : state.shape[1]] = state
        return rows

    def _parts(self) -> tuple[int, int]:
        """Bytes before the weights, and before the state of a narrow image."""
        head = 32 if self.layout.has_statistics else 16
        return head, head + (2 * self.layout.dim + 15) // 16 * 16

    def _state_bytes(self) -> int:
        return 4 * self.layout.dim * self.layout.state_vectors
