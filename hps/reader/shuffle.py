"""Examples of a log in an order drawn from a seed: block after block, each cut into batches.

Above it: `Reader`. Below it: position.py, numpy. A block is read in the log's order and then
permuted, so that a place in it is the place where it begins and a number of examples: a reader that
goes on reads the block again and passes over those.
"""

import hashlib
import math
from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from hps.errors import ConfigError
from hps.reader.config import ReaderConfig
from hps.reader.position import Block, Cut, Position
from hps.types import Batch, Ids

Places = NDArray[np.int64]


def drawn_order(seed: int, epoch: int, first: int, count: int) -> Places:
    """The places of a block's examples in the order in which they are handed out, int64 [count].

    The same on every machine, for ever: a resumed run must meet the same order.

    Args:
        seed: `ReaderConfig.shuffle_seed`.
        epoch: that the block is of.
        first: examples handed out before the block, all epochs together.
        count: examples of the block.

    >>> sorted(drawn_order(1, 0, 0, 4).tolist())
    [0, 1, 2, 3]
    """
    digest = hashlib.sha256(f"{seed} {epoch} {first}".encode()).digest()
    # What a bit generator draws is fixed by numpy; what is made of it elsewhere may change.
    draws = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(count)
    return np.argsort(draws, kind="stable")


def shuffled(
    blocks: Iterator[Cut | None], config: ReaderConfig, start: Position
) -> Generator[tuple[Batch, Position] | None, None, None]:
    """The batches of blocks, each with the position after it; None where that comes instead of a
    block.

    Args:
        blocks: as `ReaderConfig.in_blocks` cuts the log, from `start` on.
        config: of the reader.
        start: after the last batch that was handed out; the first block may be under way.

    Raises:
        ConfigError: that block is not what it was.
    """
    size = config.batch_size
    passed = 0 if start.block is None else start.block.taken
    before_block = start.examples - passed
    for cut in blocks:
        if cut is None:
            yield None
            continue
        block, before, after = cut
        del cut  # holds it, too
        count = len(block)
        if passed:
            _check_same(start, count)
        order = drawn_order(config.shuffle_seed, before.epoch, before_block, count)
        examples = Examples(block)
        end = count - count % size if config.drop_last else count
        for first in range(passed, end, size):
            last = min(first + size, end)
            place = after
            if last < end:
                place = replace(before, block=Block(last, count, after.file, after.offset))
            place = replace(place, examples=before_block + last)
            yield examples.taken(order[first:last], *config.own_part(last - first)), place
        before_block += end
        passed = 0
        del block, examples  # before the next one is read: a block may be large


def _check_same(start: Position, count: int) -> None:
    assert start.block is not None
    if count != start.block.size:
        raise ConfigError(
            f"the position is {start.block.taken} examples into a shuffled block of "
            f"{start.block.size}, which begins in file number {start.file} (from 0) of the epoch's "
            f"order at {start.offset}, but now it has {count}: the files have changed; train on "
            "them from their beginning (--new-data)"
        )


class Examples:
    """A batch whose examples can be taken in any order.

    Args:
        batch: on the host, without rows.

    Cost: nothing beside the batch.

    >>> ads = Ids(torch.tensor([7, 8, 9]), offsets=torch.tensor([0, 1, 3]))
    >>> batch = Batch({"ads": ads}, torch.zeros(2, 0), torch.tensor([0.0, 1.0]))
    >>> Examples(batch).taken(np.array([1, 0])).features["ads"].keys_L.tolist()
    [8, 9, 7]
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._bags = {name: _Bags(ids, len(batch)) for name, ids in batch.features.items()}

    def taken(self, places: Places, first: int = 0, last: int | None = None) -> Batch:
        """The batch of the examples at some places, or a part of it.

        Args:
            places: int64 [B], each below the number of examples.
            first, last: the part begins at places[first], and ends before places[last].

        Returns:
            A copy, without a position; `global_size` and `global_weight` are of all B.
        """
        batch, own = self._batch, places[first:last]
        weights = batch.weights
        return Batch(
            features={name: bags.taken(own) for name, bags in self._bags.items()},
            dense=_rows(batch.dense, own),
            labels=_rows(batch.labels, own),
            global_size=len(places),
            weights=None if weights is None else _rows(weights, own),
            groups=None if batch.groups is None else _rows(batch.groups, own),
            global_weight=-1.0 if weights is None else math.fsum(weights.numpy()[places].tolist()),
        )


class _Bags:
    """The keys of a table's features, feature-major, by example."""

    def __init__(self, ids: Ids, num_examples: int) -> None:
        self._num_examples = num_examples
        self._num_features = (len(ids.offsets) - 1) // max(num_examples, 1)
        self._keys = ids.keys_L.numpy()
        self._weights = None if ids.weights_L is None else ids.weights_L.numpy()
        self._offsets = ids.offsets.numpy()
        self._are_single = len(self._keys) == len(self._offsets) - 1 and all(
            # A feature after the other: no array as large as the offsets.
            bool((np.diff(self._offsets[first : first + num_examples + 1]) == 1).all())
            for first in range(0, len(self._keys), max(num_examples, 1))
        )

    def taken(self, places: Places) -> Ids:
        """Those of the examples at some places, in their order."""
        if self._are_single:
            offsets = np.arange(self._num_features * len(places) + 1)
            weights = None if self._weights is None else self._of_single(self._weights, places)
            return _ids(self._of_single(self._keys, places), offsets, weights)
        features = np.arange(self._num_features)[:, np.newaxis]
        bags = (features * self._num_examples + places).reshape(-1)
        begins = self._offsets[bags]
        counts = self._offsets[bags + 1] - begins
        offsets = np.zeros(len(bags) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        where = np.repeat(begins - offsets[:-1], counts) + np.arange(offsets[-1])
        weights = None if self._weights is None else self._weights[where]
        return _ids(self._keys[where], offsets, weights)

    def _of_single(self, values: NDArray[np.generic], places: Places) -> NDArray[np.generic]:
        by_feature = values.reshape(self._num_features, self._num_examples)
        return np.take(by_feature, places, axis=1).reshape(-1)


def _ids(keys: NDArray[np.generic], offsets: Places, weights: NDArray[np.generic] | None) -> Ids:
    of_keys = None if weights is None else torch.from_numpy(weights)
    return Ids(torch.from_numpy(keys), torch.from_numpy(offsets), of_keys)


def _rows(values: torch.Tensor, places: Places) -> torch.Tensor:
    return torch.from_numpy(values.numpy()[places])
