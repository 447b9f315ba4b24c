"""Sums the rows of each bag in the order of hps/common/bags.py by torch alone, and back.

Above it: cluster_rows.py and gradient_exchange.py, where rows of other ranks come to a GPU: on the
host `hps._C` pools, and a gpu_cache pools what lies in its slots. Tests compare both with this.
Below it: torch. Every step below writes each bag once, so no thread count can change a bit.
"""

import torch

from hps.common.bags import BagPooling, Bags

RUN = 32


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


def pool_rows(rows: torch.Tensor, pooling: BagPooling, out: torch.Tensor) -> None:
    """Sums or means of the bags of rows [L, D], which are overwritten, into out [B, F * D]."""
    bags, dim = pooling.bags, rows.shape[1]
    if not len(bags.lengths):
        return
    if pooling.weights is not None:
        rows.mul_(pooling.weights.unsqueeze(1))
    pooled = rows if bags.are_single else sum_bags(rows, bags)
    if pooling.is_mean:
        pooled = bags.divided(pooled)
    num_examples = len(out)
    by_example = pooled.view(-1, num_examples, dim).transpose(0, 1)
    out.view(num_examples, -1, dim).copy_(by_example)


def spread_gradients(grads: torch.Tensor, pooling: BagPooling, num_rows: int) -> torch.Tensor:
    """The gradient of each of so many occurrences, [L, D], from those of the bags [F * B, D]."""
    bags = pooling.bags
    if pooling.is_mean:
        grads = bags.divided(grads)
    spread = grads.index_select(0, bags.of_occurrences(num_rows))
    return spread if pooling.weights is None else spread.mul_(pooling.weights.unsqueeze(1))


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
