"""Table: what a features file says of one table, in which the rows of some features lie.

Above it: features.py. Below it: rules.py, which says what each key may hold.
"""

from dataclasses import dataclass

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.features.rules import table_fault


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of embeddings.

    Args:
        name: by which columns and crosses say that their rows lie in it.
        dim: width of its embeddings; None: that of the run (`hps train --dim`).

    Raises:
        ConfigError: a field outside its limits.

    >>> Table(name="items", dim=32).to_dict()
    {'dim': 32}
    """

    name: str
    dim: int | None = None

    def __post_init__(self) -> None:
        fault = table_fault(self.name, self.to_dict())
        if fault is not None:
            raise ConfigError(str(fault))

    def to_dict(self) -> Json:
        """What is said, by key, without the name; plain values."""
        return {} if self.dim is None else {"dim": self.dim}
