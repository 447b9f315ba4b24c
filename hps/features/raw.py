"""RawColumns: what a reader's batches hold before a transform, as far as one has to know.

Above it: transform.py and its parts, a model's recipe, which keeps it. Below it: the readers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from hps import _C
from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.reader.column_use import DENSE
from hps.reader.config import LOG1P, SIGNED_LOG1P
from hps.reader.schema import encode_name

if TYPE_CHECKING:
    from hps.reader.reader import Reader


@dataclass(frozen=True, kw_only=True)
class RawColumns:
    """The columns of a batch as the reader makes it.

    Args:
        table: the one that all features are read into.
        features: in the order of Ids.offsets.
        dense: names of the dense columns, in order.
        format: of the log.
        is_logged: the reader has taken the signed logarithm of dense values.
        is_shared: equal raw values of different features are one key.
        nan_columns: dense columns whose missing values come as NaN.
    """

    table: str
    features: Sequence[str]
    dense: Sequence[str]
    format: str
    is_logged: bool
    is_shared: bool
    nan_columns: Sequence[str] = ()

    @classmethod
    def of(cls, reader: "Reader") -> Self:
        """Those of a reader.

        Raises:
            ConfigError: its features lie in several tables, or its dense values are of a rule by
                which missing ones cannot be told.
        """
        tables = reader.schema.tables
        if len(tables) != 1:
            raise ConfigError(
                f"features: the reader has the tables {list(tables)}; give it one, and let the "
                "features file say which features lie in others (table)"
            )
        ((table, columns),) = tables.items()
        config = reader.config
        if config.transform == LOG1P:
            raise ConfigError(
                f"features: dense values are read as {LOG1P!r}, which makes 0 of all that is "
                f"missing or below; read them as {SIGNED_LOG1P!r} (dense_transform)"
            )
        return cls(
            table=table,
            features=tuple(column.name for column in columns),
            dense=tuple(use.name for use in reader.raw_columns if use.kind == DENSE),
            format=reader.format,
            is_logged=config.transform == SIGNED_LOG1P,
            is_shared=bool(columns) and columns[0].seed == 0,
            nan_columns=tuple(config.nan_columns),
        )

    @classmethod
    def from_dict(cls, values: JsonView) -> Self:
        """What `to_dict` returned."""
        lists = {name: tuple(values[name]) for name in ("features", "dense", "nan_columns")}
        return cls(**{**values, **lists})

    def to_dict(self) -> Json:
        """Plain values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def seed(self, vocabulary: str) -> int:
        """Of the hash of keys of a vocabulary: the feature's name, unless a file says another."""
        return 0 if self.is_shared else seed_of(vocabulary)


def seed_of(name: str) -> int:
    """XXH64 of a feature's name."""
    return int(_C.xxh64(encode_name(name)))
