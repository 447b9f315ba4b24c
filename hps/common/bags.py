"""Bags: which occurrences of a batch make up which bag, and how they are pooled; a bag is what one
feature of one example has.

Above it: `hps.SparseEmbedding`, `hps.Ids`; the servers, which pool. Below it: torch.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import numpy as np
import torch

from hps import _C
from hps.common.arrays import HOST, HostArray, PoolArguments
from hps.common.row_layout import Labels
from hps.errors import ConfigError

Table = TypeVar("Table", bound=Hashable)  # its name, or what else tells it from others

_MAX_BAGS = 2**31 - 1  # the native core numbers bags with 32 bits


@dataclass(slots=True)
class Bags:
    """Which occurrences make up which bag.

    Args:
        offsets: int64 [num_bags + 1]; bag i holds occurrences offsets[i] to offsets[i + 1] - 1.
        lengths: int64 [num_bags].
        shortest: least number of occurrences in a bag; 1 if there is no bag.
        longest: greatest number of occurrences in a bag; 1 if there is no bag.
        num_occurrences: L, that of all bags.
    """

    offsets: torch.Tensor
    lengths: torch.Tensor
    shortest: int
    longest: int
    num_occurrences: int

    @property
    def are_single(self) -> bool:
        """Every bag holds exactly one occurrence: pooling is a copy."""
        return self.shortest == 1 and self.longest == 1

    def of_occurrences(self, num_occurrences: int) -> torch.Tensor:
        """int64 [L]: the bag of each occurrence; asks no device for L."""
        return torch.repeat_interleave(self.lengths, output_size=num_occurrences)

    def divided(self, grads: torch.Tensor) -> torch.Tensor:
        """Gradients of means [num_bags, D] as those of sums, new memory."""
        return grads / self.lengths.clamp(min=1).unsqueeze(1)

    def to(self, device: str) -> "Bags":
        """The same bags on a device; does not wait for the copies."""
        if str(self.offsets.device) == device:
            return self
        offsets = self.offsets.to(device, non_blocking=True)
        counts = (self.shortest, self.longest, self.num_occurrences)
        return Bags(offsets, offsets.diff(), *counts)


@dataclass(slots=True)
class BagPooling:
    """How a look-up makes one row of each bag, and so what each occurrence gets of a bag's
    gradient: (gradient / length, for a mean) * weight, rounded in that order.

    The sum of a bag is that of its occurrences one after the other within runs of 32; run sums
    combine as a binary counter does: neighbours of equal size, leftovers youngest to oldest. So it
    has the same bits on any device and for any number of threads.

    Args:
        bags: feature-major: bag f * B + b is feature f of example b.
        weights: float32 [L], where the rows lie, or None: multiplies each occurrence's row.
        is_mean: a bag's sum is divided by its number of occurrences; an empty bag is zeros.
    """

    bags: Bags
    weights: torch.Tensor | None
    is_mean: bool

    def check(self, num_keys: int, where: str) -> None:
        """ConfigError unless these are bags of so many keys, and weights of as many."""
        if self.bags.num_occurrences != num_keys:
            raise ConfigError(
                f"{where}: bags of {self.bags.num_occurrences} keys, and {num_keys} keys are given"
            )
        if self.weights is not None and self.weights.shape != (num_keys,):
            raise ConfigError(
                f"{where}: weights have shape {tuple(self.weights.shape)}, and {num_keys} keys are "
                "given; give one weight a key, or none"
            )

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Offsets and weights."""
        return self.bags.offsets, self.weights

    def arguments(self, device: str) -> PoolArguments:
        """Offsets, weights and mean, as caches and plans take them: arrays, or tensors on a
        device."""
        offsets, weights = self.tensors()
        if device != HOST:
            return cast("PoolArguments", (offsets, weights, self.is_mean))
        return offsets.numpy(), None if weights is None else weights.numpy(), self.is_mean


def join_poolings(
    poolings: list[BagPooling | None], grads: list[torch.Tensor]
) -> tuple[BagPooling | None, list[torch.Tensor]]:
    """One pooling of several look-ups of a table, one after the other, and their gradients by bag.

    Args:
        poolings: None for a look-up of one gradient an occurrence.
        grads: float32 [bags, D] of each.

    Returns:
        None where all have a gradient an occurrence. Gradients of means are divided, if need be.
    """
    if len(poolings) == 1 or all(pooling is None for pooling in poolings):
        return poolings[0], grads
    lengths, weights, divided = [], [], []
    has_weights = any(pooling is not None and pooling.weights is not None for pooling in poolings)
    for pooling, part in zip(poolings, grads, strict=True):
        if pooling is None:
            lengths.append(torch.ones(len(part), dtype=torch.int64, device=part.device))
            count = len(part)
        else:
            lengths.append(pooling.bags.lengths)
            count = pooling.bags.num_occurrences
        given = None if pooling is None else pooling.weights
        weights.append(part.new_ones(count) if given is None else given)
        is_mean = pooling is not None and pooling.is_mean
        divided.append(pooling.bags.divided(part) if pooling is not None and is_mean else part)
    whole = torch.cat(lengths)
    offsets = torch.cat([whole.new_zeros(1), whole.cumsum(0)])
    shortest, longest = (int(bound) for bound in torch.aminmax(whole)) if len(whole) else (1, 1)
    bags = Bags(offsets, whole, shortest, longest, sum(len(part) for part in weights))
    return BagPooling(bags, torch.cat(weights) if has_weights else None, False), divided


def make_bags(offsets: torch.Tensor, num_occurrences: int, where: str) -> Bags:
    """Checks offsets and measures the bags.

    Args:
        offsets: int64 or int32 [num_bags + 1].
        num_occurrences: L, what the last offset must be.
        where: named in errors.

    Raises:
        ConfigError: wrong type or shape, not starting at 0, falling, or not ending at L.
    """
    if offsets.dtype not in (torch.int64, torch.int32) or offsets.dim() != 1 or len(offsets) == 0:
        raise ConfigError(
            f"{where}: offsets are {offsets.dtype} of shape {tuple(offsets.shape)}; int64 of shape "
            "[num_bags + 1] is needed"
        )
    if len(offsets) > _MAX_BAGS:
        raise ConfigError(f"{where}: {len(offsets) - 1} bags; give at most {_MAX_BAGS - 1} a call")
    offsets = own_copy(offsets.to(torch.int64))
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != num_occurrences:
        raise ConfigError(
            f"{where}: offsets run from {first} to {last}, but there are {num_occurrences} keys; "
            "the first must be 0 and the last the number of keys (for offsets without the last one "
            "construct SparseEmbedding with include_last_offset=False)"
        )
    if len(offsets) == 1:
        return Bags(offsets, offsets.diff(), 1, 1, num_occurrences)
    if offsets.device.type == HOST:  # numpy has no threads that look for work afterwards
        measured = np.diff(offsets.numpy())
        lengths, shortest, longest = torch.from_numpy(measured), measured.min(), measured.max()
    else:
        lengths = offsets.diff()
        shortest, longest = torch.aminmax(lengths)
    # A difference that does not fit into 64 bits may be of either sign.
    if int(shortest) < 0 or int(longest) > num_occurrences:
        bag = int(((lengths < 0) | (lengths > num_occurrences)).nonzero()[0])
        raise ConfigError(
            f"{where}: offsets[{bag + 1}]={int(offsets[bag + 1])} follows on "
            f"offsets[{bag}]={int(offsets[bag])}, of {num_occurrences} keys; offsets must not fall"
        )
    return Bags(offsets, lengths, int(shortest), int(longest), num_occurrences)


class Bagged(Protocol):
    """What `hps.Ids` has of one table's keys."""

    @property
    def keys_L(self) -> torch.Tensor: ...
    @property
    def offsets(self) -> torch.Tensor: ...
    @property
    def known_bags(self) -> "Bags | None": ...


def bags_of(features: Mapping[Table, Bagged], device: str, where: str) -> dict[Table, Bags]:
    """The bags of each table of a batch on a device, as make_bags has them, all at once.

    Raises:
        ConfigError: as make_bags, of the first table that is not as it is needed.
    """
    known = {table: own.known_bags for table, own in features.items()}
    found = {table: bags.to(device) for table, bags in known.items() if bags is not None}
    unknown = {table: own for table, own in features.items() if known[table] is None}
    offsets = [own.offsets for own in unknown.values()]
    if offsets and all(one.device.type == HOST and one.dim() == 1 for one in offsets):
        found |= _bags_of_host(unknown, offsets, device)
    for table, own in unknown.items():
        if table not in found:
            found[table] = make_bags(own.offsets, len(own.keys_L), where).to(device)
    return {table: found[table] for table in features}


def _bags_of_host(
    features: Mapping[Table, Bagged], offsets: list[torch.Tensor], device: str
) -> dict[Table, Bags]:
    """Of offsets of the host; nothing if any are not as they are needed. Their numbers go to the
    device in two copies, whatever the number of tables."""
    sizes = [len(one) for one in offsets]
    num_keys = [len(own.keys_L) for own in features.values()]
    own = np.empty(sum(sizes), np.int64)
    lengths = np.empty(max(0, sum(sizes) - len(sizes)), np.int64)
    bounds = None if min(sizes) == 0 else _C.measure_bags(offsets, num_keys, own, lengths)
    if bounds is None:
        return {}
    starts = torch.from_numpy(own).to(device, non_blocking=True).split_with_sizes(sizes)
    counts = [size - 1 for size in sizes]
    of_bags = torch.from_numpy(lengths).to(device, non_blocking=True).split_with_sizes(counts)
    parts = zip(starts, of_bags, *bounds, num_keys, strict=True)
    return dict(zip(features, (Bags(*one) for one in parts), strict=True))


def clicks_of_bags(clicks: Labels, offsets: HostArray) -> Labels:
    """Clicks [B] of examples as those of the occurrences [L] of F features' bags.

    Args:
        offsets: int64 [F * B + 1], feature-major, as make_bags takes them.

    >>> clicks_of_bags(np.array([1, 0], np.uint8), np.array([0, 2, 3, 3, 4])).tolist()
    [1, 1, 0, 0]
    """
    num_features = (len(offsets) - 1) // max(1, len(clicks))
    return np.repeat(np.tile(clicks, num_features), np.diff(offsets))


def refuse_infinite_weights(weights: HostArray | None, where: str) -> None:
    """ConfigError that names the first weight that is NaN or infinite, if there is one."""
    if weights is None:
        return
    are_finite = np.isfinite(weights)
    if not are_finite.all():
        place = int(np.argmin(are_finite))
        raise ConfigError(
            f"{where}: weights[{place}] is {float(weights[place])}; weights must be finite"
        )


def own_copy(values: torch.Tensor) -> torch.Tensor:
    """Values in memory that no caller changes, contiguous, without a graph."""
    values = values.detach()
    if values.device.type == HOST:
        return torch.from_numpy(values.numpy().copy())
    return values.clone(memory_format=torch.contiguous_format)
