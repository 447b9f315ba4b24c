"""Which new keys come by a row: the rule of a table, as its owner says it.

Above it: `hps.config.TableConfig`, tiers/admission.py, checkpoint/blobs.py. Below it: the native
cache, which decides; docs/life_cycle.md explains it.
"""

from dataclasses import dataclass, fields

from hps.common.field_checks import require_number, require_whole
from hps.common.json_text import Json
from hps.errors import ConfigError

MAX_COUNT = 2**24  # as far as a float32 counts by one


@dataclass(frozen=True, kw_only=True)
class Admission:
    """A key that has no row waits for one: it reads as its initial value, and its gradients change
    nothing. The update that admits it makes its row and applies its whole gradient.

    Args:
        count: admitted by the update in which it has occurred so often, 1 to 2^24; counted exactly,
            in a record of 32 bytes a waiting key.
        probability: of being admitted by an update, above 0, at most 1: a draw on the seed, the
            key and the number of the update.
        by: admitted while the key's row of the table of that name, which has statistics, has a
            score of min_score or more; a row that counts begins with the counts of that one.
        min_score: goes with `by`; decayed to the period, before the update.

    Raises:
        ConfigError: a field outside its limits, or not just one of count, probability and by.

    >>> str(Admission(count=10))
    'count 10'
    """

    count: int | None = None
    probability: float | None = None
    by: str | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("count", "probability", "by") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"Admission: one of count=, probability= and by= is needed, not {given or 'none'}; "
                "a table that admits every key has admission=None"
            )
        if self.count is not None:
            require_whole("Admission.count", self.count, 1, MAX_COUNT)
        if self.probability is not None:
            require_number("Admission.probability", self.probability, above=0)
            if self.probability > 1:
                raise ConfigError(f"Admission.probability={self.probability!r} must be at most 1")
        if self.by is not None and (not isinstance(self.by, str) or not self.by):
            raise ConfigError(f"Admission.by={self.by!r} must be the name of a table")
        if (self.by is None) != (self.min_score is None):
            raise ConfigError("Admission: by= and min_score= go together")
        if self.min_score is not None:
            require_number("Admission.min_score", self.min_score, above=0)

    def __str__(self) -> str:
        if self.by is not None:
            return f"a score of {self.min_score:g} in table {self.by!r}"
        return f"count {self.count}" if self.count else f"probability {self.probability:g}"

    def described(self) -> Json:
        """As plain values, of which `Admission(**values)` makes it again."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}
