"""Bags: which occurrences of a batch make up which bag; a bag is what one feature of one example
has.

Above it: hps/nn/pooling.py, `hps.Ids`. Below it: torch.
"""

from dataclasses import dataclass

import torch

from hps.errors import ConfigError


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
