"""What a row's weights are before its first update: a pure function of (seed, table, key).

Above it: `hps.config.TableConfig`. Below it: `csrc/optimizer/initializer.h`, which holds
the generator.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from hps.errors import ConfigError


@dataclass(frozen=True)
class Initializer:
    """What all initializers share: a kind, and two numbers that the native core reads."""

    kind: ClassVar[str] = ""

    def numbers(self) -> tuple[float, float]:
        """The two parameters in the order in which csrc/optimizer/initializer.h reads them."""
        raise ConfigError(
            f"{type(self).__name__} is not an initializer; use Constant, Uniform, Normal"
        )

    def __post_init__(self) -> None:
        for number in self.numbers():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise ConfigError(f"{self!r}: every number must be finite")


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

    def numbers(self) -> tuple[float, float]:
        return (self.std, self.mean)


INITIALIZERS: dict[str, type[Initializer]] = {
    initializer.kind: initializer for initializer in (Constant, Uniform, Normal)
}
