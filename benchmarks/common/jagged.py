"""What hps's modules use of a torchrec KeyedJaggedTensor, without torchrec.

Above it: many_tables, small_pulls. Below it: torch.
"""

import torch


class JaggedTensor:
    """Features by name, with values [L] and offsets [F * B + 1], feature-major."""

    def __init__(self, names: list[str], values: torch.Tensor, offsets: torch.Tensor) -> None:
        self._names, self._values, self._offsets = names, values, offsets
        self._stride = (len(offsets) - 1) // len(names)

    def keys(self) -> list[str]:
        return self._names

    def values(self) -> torch.Tensor:
        return self._values

    def offsets(self) -> torch.Tensor:
        return self._offsets

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        return self._stride
