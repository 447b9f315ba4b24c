"""What a generated log looks like: frozen, keyword-only, checked when made.

Above it: `hps generate`. Below it: bags.py.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hps.errors import ConfigError
from hps.generate.bags import BAG_LENGTHS, FIXED, MAX_BAG, ZIPF, longest_bag

FORMATS = ("criteo", "parquet", "libsvm", "libffm", "slots")
# Formats in which a feature of an example may hold several values.
BAG_FORMATS = ("parquet", "libsvm", "libffm", "slots")
MAX_FEATURES = 4096
MAX_DENSE = 4096
MAX_KEYS_PER_FEATURE = 2**32
MAX_PERIODS = 2**16 - 1
# Keys of a lane, which follow one another through the ranks; see kernels.py.
LANE = 4
# Of one example: 8 MiB of a line of text, of the 64 MiB that readers take.
MAX_VALUES = 2**18
# The largest feature has this many times the keys of the smallest, the others lie between them on
# an exponential, as in real logs, where user and item ids are beside a handful of weekdays.
CARDINALITY_RATIO = 1000.0


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """A log of clicks over `keys` keys in `features` features.

    Args:
        examples: lines of the log.
        test_examples: lines that go on after it, for the held-out part.
        features: categorical features, each with one key a line, or a bag of them.
        dense: numeric columns.
        keys: keys of all features together; each feature has its own range of them.
        alpha: exponent of each feature's Zipf law, P(rank) ~ rank^-alpha; 0 is uniform.
        drift: with one period the part of each feature's keys that trade places with keys from the
            other end of the ranking, each at its own moment of the log. With several the part of
            each feature's keys that die, on average, from one period to the next, as many being
            born: a key lives 1 / drift periods. It begins in the second quarter of its feature's
            ranks, spends the second quarter of its life in the first one, where it is most popular,
            the third in the third and the last in the fourth.
        periods: files that the log is cut into, of equal numbers of examples; within one of them
            nothing changes.
        click_rate: mean label.
        spread: standard deviation of the planted log-odds; 1.5 gives an AUC of about 0.8.
        seed: two logs of equal config are equal byte for byte.
        bag: mean number of values that a feature of an example holds, at least one in each; None:
            one, and not as a list.
        bag_lengths: how many they are: "zipf", mostly few, at most eight times the mean; "fixed",
            as many in each bag.

    Raises:
        ConfigError: a field outside its limits, or a bag that is fixed and not a whole number.

    >>> GeneratorConfig(keys=1000, features=3).cardinalities()
    array([  1,  31, 968])
    """

    examples: int = 1_000_000
    test_examples: int = 0
    features: int = 26
    dense: int = 13
    keys: int = 10_000_000
    alpha: float = 1.05
    drift: float = 0.0
    click_rate: float = 0.25
    spread: float = 1.5
    periods: int = 1
    seed: int = 0
    bag: float | None = None
    bag_lengths: str = ZIPF

    def __post_init__(self) -> None:
        self._require("examples", 1, 2**40)
        self._require("test_examples", 0, 2**40)
        self._require("features", 1, MAX_FEATURES)
        self._require("dense", 0, MAX_DENSE)
        self._require("keys", self.features, self.features * MAX_KEYS_PER_FEATURE)
        self._require("seed", 0, 2**64 - 1)
        self._require("alpha", 0.0, 8.0)
        self._require("drift", 0.0, 1.0)
        self._require("periods", 1, MAX_PERIODS)
        self._require("click_rate", 0.001, 0.999)
        self._require("spread", 0.0, 10.0)
        self._require_bags()
        self._require_periods()

    def _require(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        if not math.isfinite(value) or not low <= value <= high:
            flag = field.replace("_", "-")
            raise ConfigError(
                f"generate: {field}={value!r} (--{flag}) must be from {low} to {high}"
            )

    def _require_periods(self) -> None:
        if self.examples < self.periods:
            raise ConfigError(
                f"generate: examples={self.examples} (--examples) is of all periods together; with "
                f"{self.periods} of them (--periods) it must be at least as many"
            )
        most = int(self.spans().max()) if self.periods > 1 else 0
        if most > MAX_KEYS_PER_FEATURE:
            raise ConfigError(
                f"generate: drift={self.drift!r} (--drift) over {self.periods} periods (--periods) "
                f"makes {most} keys of a feature in all; the limit is {MAX_KEYS_PER_FEATURE}: give "
                "fewer keys (--keys), less drift or fewer periods"
            )

    def _require_bags(self) -> None:
        given = self.bag_lengths
        if given not in BAG_LENGTHS:
            raise ConfigError(
                f"generate: bag_lengths={given!r} (--bag-lengths) must be one of {BAG_LENGTHS}"
            )
        if self.bag is None:
            if given != ZIPF:
                raise ConfigError(
                    f"generate: bag_lengths={given!r} (--bag-lengths) is of bags; give their mean "
                    "length (--bag) too"
                )
            return
        self._require("bag", 1.0, MAX_BAG)
        if given == FIXED and self.bag != int(self.bag):
            raise ConfigError(
                f"generate: bag={self.bag!r} (--bag) must be a whole number where bags are of "
                f"fixed length (--bag-lengths {FIXED})"
            )
        longest = longest_bag(self.bag, given)
        if self.features * longest > MAX_VALUES:
            raise ConfigError(
                f"generate: {self.features} features (--features) in bags of up to {longest} "
                f"values (--bag {self.bag:g}) make {self.features * longest} values of an example; "
                f"the limit is {MAX_VALUES}"
            )

    @property
    def mean_values(self) -> float:
        """Keys that an example is expected to have.

        >>> GeneratorConfig(features=3, bag=2.5).mean_values
        7.5
        """
        return self.features * (1.0 if self.bag is None else float(self.bag))

    def cardinalities(self) -> npt.NDArray[np.int64]:
        """Keys of each feature at a time, int64 [features]: at least 1 each, `keys` in all."""
        return cardinalities_of(self.keys, self.features)

    @property
    def moves(self) -> float:
        """How often the keys of a lane move on from one period to the next, on average."""
        return LANE * self.drift if self.periods > 1 else 0.0

    def spans(self) -> npt.NDArray[np.int64]:
        """Keys that each feature has over all periods, int64 [features]; a few of the last ones are
        not born before the end.

        >>> config = GeneratorConfig(keys=1000, features=3, periods=11, drift=0.1)
        >>> config.cardinalities(), config.spans()
        (array([  1,  31, 968]), array([   1,   59, 1936]))
        """
        sizes = self.cardinalities()
        births = math.ceil(self.moves * (self.periods - 1))
        spans: npt.NDArray[np.int64] = sizes + births * (sizes // LANE)
        return spans


def cardinalities_of(keys: int, features: int) -> npt.NDArray[np.int64]:
    """How `keys` keys are dealt out to features, int64 [features]: at least 1 each.

    >>> cardinalities_of(1000, 3)
    array([  1,  31, 968])
    """
    weights = CARDINALITY_RATIO ** np.linspace(0.0, 1.0, features)
    sizes = 1 + np.floor(weights / weights.sum() * (keys - features))
    sizes = sizes.astype(np.int64)
    sizes[-1] += keys - sizes.sum()
    # A fixed shuffle, so that large features do not all are at the end of a line.
    order = np.argsort((np.arange(features) * 11 + 5) % 29, kind="stable")
    shuffled: npt.NDArray[np.int64] = sizes[order]
    return shuffled
