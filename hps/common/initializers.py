"""What a row's weights are before its first update: a pure function of (seed, table, key).

Above it: `hps.config.TableConfig`. Below it: `csrc/optimizer/initializer.h`, which holds
the generator.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from hps.errors import ConfigError

_MAX_FLOAT32 = 3.4028234663852886e38


@dataclass(frozen=True)
class Initializer:
    """What all initializers share: a kind, and two numbers that the native core reads."""

    kind: ClassVar[str] = ""

    def numbers(self) -> tuple[float, float]:
        """The two parameters in the order in which csrc/optimizer/initializer.h reads them."""
        raise ConfigError(
            f"{type(self).__name__} is not an initializer; use Constant, Uniform, Normal"
        )

    def largest(self) -> float:
        """No weight's magnitude is above it."""
        return max(abs(number) for number in self.numbers())

    def __post_init__(self) -> None:
        for number in self.numbers():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise ConfigError(f"{self!r}: every number must be finite")
            self._require_float32(number)

    def _require_float32(self, number: float) -> None:
        """Refuses what is infinite as float32, such as the generator computes with."""
        if abs(number) > _MAX_FLOAT32:
            raise ConfigError(
                f"{self!r}: {number:g} is beyond float32 ({_MAX_FLOAT32:g}), so that weights would "
                "start as infinite; take smaller numbers"
            )


@dataclass(frozen=True)
class Constant(Initializer):
    """Every weight starts at `value`.

    >>> Constant(0.5).numbers()
    (0.5, 0.0)
    """

    kind: ClassVar[str] = "constant"
    value: float = 0.0

    def numbers(self) -> tuple[float, float]:
        return (self.value, 0.0)


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform in [low, high), in steps of 2^-24 of the width.

    >>> Uniform(low=-0.1, high=0.1).numbers()
    (-0.1, 0.1)
    """

    kind: ClassVar[str] = "uniform"
    low: float = -0.01
    high: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low <= self.high:
            raise ConfigError(f"Uniform(low={self.low}, high={self.high}): low must be <= high")
        self._require_float32(self.high - self.low)

    def numbers(self) -> tuple[float, float]:
        return (self.low, self.high)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with standard deviation `std` around `mean`, as a scaled sum of twelve uniforms.

    >>> Normal(std=0.01).numbers()
    (0.01, 0.0)
    """

    kind: ClassVar[str] = "normal"
    std: float = 0.01
    mean: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std < 0:
            raise ConfigError(f"Normal(std={self.std}): std must be >= 0")
        self._require_float32(12 * self.std + abs(self.mean))

    def numbers(self) -> tuple[float, float]:
        return (self.std, self.mean)

    def largest(self) -> float:
        return 6 * self.std + abs(self.mean)


INITIALIZERS: dict[str, type[Initializer]] = {
    initializer.kind: initializer for initializer in (Constant, Uniform, Normal)
}
