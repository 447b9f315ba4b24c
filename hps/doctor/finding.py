"""Finding: one thing that a machine has or lacks, and what hps makes of it.

Above it: the other files of this folder. Below it: nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

OK = "ok"
NOTE = "note"  # hps works; with less speed, or without something that may be asked for
PROBLEM = "problem"  # hps, or what was asked for, cannot work

Figures = Mapping[str, float | int | str | bool | None]


@dataclass(frozen=True)
class Finding:
    """One line of `hps doctor`.

    Args:
        part: what of the machine, such as "memory".
        name: the thing.
        found: what was found, in words; "none" for nothing.
        use: what hps does with it, and why.
        state: OK, NOTE or PROBLEM.
        figures: the same as numbers, with units in their names.
    """

    part: str
    name: str
    found: str
    use: str
    state: str
    figures: Figures

    def as_json(self) -> dict[str, object]:
        """Its fields by name."""
        return asdict(self)
