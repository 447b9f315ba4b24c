"""When rows die, and what they count of a sample: the rules of a table, as its owner says them.

Above it: `hps.config.TableConfig`, parameter_server/periods.py, checkpoint/blobs.py. Below it:
`csrc/table/life_rules.h`, which holds the arithmetic; docs/life_cycle.md explains it.
"""

from dataclasses import dataclass, fields

from hps.common.field_checks import require_number, require_share, require_whole
from hps.common.json_text import Json
from hps.errors import ConfigError

# As csrc/table/life_rules.h: gaps count up to here, so that this one stands for any number.
MAX_GAP = 65535


_LEAST_RATE = 1e-12  # so that sums of shows are finite
_LEAST, _MOST = 1e-30, 1e30  # what float32 holds with room for sums of many shows


def _require_float32(where: str, value: float) -> None:
    if not _LEAST <= value <= _MOST:
        raise ConfigError(f"{where}={value!r} must be from {_LEAST:g} to {_MOST:g}")


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """A row dies in the first period in which one of these holds; until then it lives.

    Its score is nonclick * (show - click) + click * click, of the shows and clicks of its last
    period, times decay for each period since. It is alive in the period that last updated it.

    Args:
        unseen: dead once more than so many periods have passed without an update, 0 to 65534;
            None: however long it is unseen.
        min_score: dead once its decayed score is below this, above 0; None: whatever its score is.
        decay: what shows and clicks are multiplied with at each new period, above 0, at most 1.
        nonclick: what a show without a click is worth, at least 0.
        click: what a click is worth, at least 0.

    Raises:
        ConfigError: a field outside its limits, or neither `unseen` nor `min_score`.

    >>> Expiry(unseen=30, min_score=0.8).decay
    0.98
    """

    unseen: int | None = None
    min_score: float | None = None
    decay: float = 0.98
    nonclick: float = 0.1
    click: float = 1.0

    def __post_init__(self) -> None:
        if self.unseen is None and self.min_score is None:
            raise ConfigError(
                "Expiry: unseen=, min_score= or both are needed; a table whose rows live for ever "
                "has expiry=None"
            )
        if self.unseen is not None:
            require_whole("Expiry.unseen", self.unseen, 0, MAX_GAP - 1)
        if self.min_score is not None:
            require_number("Expiry.min_score", self.min_score, above=0)
            _require_float32("Expiry.min_score", self.min_score)
        require_share("Expiry.decay", self.decay)
        _require_float32("Expiry.decay", self.decay)
        require_number("Expiry.nonclick", self.nonclick)
        require_number("Expiry.click", self.click)
        for name in ("nonclick", "click"):
            if value := getattr(self, name):
                _require_float32(f"Expiry.{name}", value)

    def described(self) -> Json:
        """As plain values, of which `Expiry(**values)` makes it again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def check_negative_rate(where: str, rate: float, *, counts: bool) -> None:
    """Refuses a TableConfig's `negative_rate`.

    Args:
        where: the table, for the message.
        rate: what is given.
        counts: the rows of the table have statistics.

    Raises:
        ConfigError: outside its limits, or of rows that count nothing.
    """
    require_share(f"{where}: negative_rate", rate, least=_LEAST_RATE)
    if rate < 1 and not counts:
        raise ConfigError(
            f"{where}: negative_rate={rate!r} says how rows count their shows, and rows without "
            "statistics count none; give statistics=True, too"
        )


# By which the scores of a table are worked out that counts, and whose rows live for ever.
OF_IMMORTAL = Expiry(min_score=1.0, decay=1.0)
