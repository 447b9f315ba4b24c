"""Sums the embeddings of each bag in the one order that every device keeps, and back.

Above it: `hps.SparseEmbedding`. Below it: torch. A bag is what one feature of one example holds.
The order: occurrences one after the other within runs of 32, then the run sums as a binary counter
combines them - neighbours of equal size, leftovers youngest to oldest. Every step below writes each
bag once, so no thread count can change a bit.
"""

from dataclasses import dataclass

import torch

from hps.errors import ConfigError

RUN = 32


@dataclass(slots=True)
class Bags:
    """Which occurrences make up which bag.

    Args:
        offsets: int64 [num_bags + 1]; bag i holds occurrences offsets[i] to offsets[i + 1] - 1.
        lengths: int64 [num_bags].
        shortest: least number of occurrences in a bag; 1 if there is no bag.
        longest: greatest number of occurrences in a bag; 1 if there is no bag.
    """

    offsets: torch.Tensor
    lengths: torch.Tensor
    shortest: int
    longest: int

    @property
    def are_single(self) -> bool:
        """Every bag holds exactly one occurrence: pooling is a copy."""
        return self.shortest == 1 and self.longest == 1

    def of_occurrences(self, num_occurrences: int) -> torch.Tensor:
        """int64 [L]: the bag of each occurrence; asks no device for L."""
        return torch.repeat_interleave(self.lengths, output_size=num_occurrences)

    def to(self, device: str) -> "Bags":
        """The same bags on a device; does not wait for the copies."""
        if str(self.offsets.device) == device:
            return self
        offsets = self.offsets.to(device, non_blocking=True)
        return Bags(offsets, offsets.diff(), self.shortest, self.longest)


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
    offsets = offsets.to(torch.int64).contiguous()
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != num_occurrences:
        raise ConfigError(
            f"{where}: offsets run from {first} to {last}, but there are {num_occurrences} keys; "
            "the first must be 0 and the last the number of keys (for offsets without the last one "
            "construct SparseEmbedding with include_last_offset=False)"
        )
    lengths = offsets.diff()
    if len(lengths) == 0:
        return Bags(offsets, lengths, 1, 1)
    shortest, longest = (int(bound) for bound in torch.aminmax(lengths))
    if shortest < 0:
        bag = int((lengths < 0).nonzero()[0])
        raise ConfigError(
            f"{where}: offsets[{bag + 1}]={int(offsets[bag + 1])} is below "
            f"offsets[{bag}]={int(offsets[bag])}; offsets must not fall"
        )
    return Bags(offsets, lengths, shortest, longest)


def sum_bags(values: torch.Tensor, bags: Bags) -> torch.Tensor:
    """The sum of each bag.

    Args:
        values: float32 [L, D], feature-major as the offsets.

    Returns:
        float32 [num_bags, D], new memory; zeros for an empty bag.
    """
    starts = bags.offsets[:-1]
    if bags.longest <= RUN:
        return _sum_runs(values, starts, bags.lengths, bags.longest)
    runs_per_bag = (bags.lengths + (RUN - 1)).div(RUN, rounding_mode="floor")
    bag_of_run, rank = _expand(runs_per_bag)
    run_starts = starts[bag_of_run] + RUN * rank
    run_lengths = (bags.offsets[1:][bag_of_run] - run_starts).clamp(max=RUN)
    return _combine(_sum_runs(values, run_starts, run_lengths, RUN), runs_per_bag)


def spread_bags(
    grads: torch.Tensor, bags: Bags, weights: torch.Tensor | None, *, mean: bool, out: torch.Tensor
) -> None:
    """The gradient of each occurrence from those of the bags: the transpose of pooling.

    Args:
        grads: float32 [num_bags, D].
        weights: float32 [L], or None.
        out: float32 [L, D], written.
    """
    if mean and not bags.are_single:
        grads = grads / bags.lengths.clamp(min=1).unsqueeze(1)
    if bags.are_single:
        out.copy_(grads)
    else:
        torch.index_select(grads, 0, bags.of_occurrences(len(out)), out=out)
    if weights is not None:
        out.mul_(weights.unsqueeze(1))


def _expand(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For counts per bag: the bag of each item, and the item's rank within its bag."""
    bag = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return bag, torch.arange(len(bag), device=bag.device) - first[bag]


def _sum_runs(
    values: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, longest: int
) -> torch.Tensor:
    """Sums each run one occurrence after the other, all runs side by side."""
    total = values.new_zeros(len(starts), values.shape[1])
    active = (lengths > 0).nonzero().squeeze(1)
    total.index_copy_(0, active, values.index_select(0, starts[active]))
    for place in range(1, longest):
        active = active[lengths[active] > place]
        addend = values.index_select(0, starts[active] + place)
        total.index_copy_(0, active, total.index_select(0, active) + addend)
    return total


def _combine(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Combines each bag's run sums as a binary counter does.

    At every level neighbours are added in pairs. An odd one left over is the youngest of that level
    and older than all leftovers of the levels before, so adding leftovers as the levels rise goes
    from the youngest to the oldest.
    """
    total = sums.new_zeros(len(counts), sums.shape[1])
    has_leftover = torch.zeros(len(counts), dtype=torch.bool, device=counts.device)
    while bool((counts > 0).any()):
        first = counts.cumsum(0) - counts
        odd = (counts % 2 == 1).nonzero().squeeze(1)
        leftover = sums.index_select(0, (first + counts - 1)[odd])
        added = leftover + total.index_select(0, odd)
        total.index_copy_(0, odd, torch.where(has_leftover[odd].unsqueeze(1), added, leftover))
        has_leftover[odd] = True
        counts = counts.div(2, rounding_mode="floor")
        bag, rank = _expand(counts)
        left = first[bag] + 2 * rank
        sums = sums.index_select(0, left) + sums.index_select(0, left + 1)
    return total
