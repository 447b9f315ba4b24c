"""TableSchema: what is fixed about a table once its store exists.

Above it: `hps.ParameterServer`, `hps.ssd_store.store`. Below it: `hps.config`,
`hps.common.row_layout`. A store refuses to open under another schema, by name of the field.
"""

from dataclasses import dataclass
from typing import Self

from hps.common.row_layout import RowLayout
from hps.config import TableConfig
from hps.errors import ConfigError

# As csrc/table/row_layout.h numbers them; stored on SSD, never renumbered.
OPTIMIZER_NUMBERS = {"sgd": 1, "adagrad": 2, "rowwise_adagrad": 3, "adam": 4, "ftrl": 5}
NativeSchema = tuple[str, int, int, str, float, float, int, bool, bool]


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """A table as the store knows it.

    Args:
        name: of the table.
        dim: floats in an embedding.
        optimizer: its kind ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl").
        initializer: its kind ("constant", "uniform", "normal").
        numbers: the initializer's two parameters.
        row_bytes: of a row image.
        statistics: rows have them.
        dtype: of the weights, "float32" or "bfloat16".

    Raises:
        ConfigError: an optimizer that does not exist, or row_bytes that is not its layout's.

    >>> TableSchema.of(TableConfig(name="ads", dim=16)).row_bytes
    144
    """

    name: str
    dim: int
    optimizer: str
    initializer: str
    numbers: tuple[float, float]
    row_bytes: int
    statistics: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZER_NUMBERS:
            raise ConfigError(
                f"table {self.name!r}: optimizer={self.optimizer!r} must be one of "
                f"{sorted(OPTIMIZER_NUMBERS)}"
            )
        is_narrow = self.dtype == "bfloat16"
        expected = RowLayout(self.optimizer, self.dim, self.statistics, is_narrow).row_bytes
        if self.row_bytes != expected:
            raise ConfigError(
                f"table {self.name!r}: row_bytes={self.row_bytes}, but {self.optimizer} rows of "
                f"dim {self.dim}{' with statistics' * self.statistics}"
                f"{' of bfloat16' * is_narrow} take {expected}"
            )

    @classmethod
    def of(cls, table: TableConfig) -> Self:
        """The schema of a configured table."""
        return cls(
            name=table.name,
            dim=table.dim,
            optimizer=table.optimizer.kind,
            initializer=table.initializer.kind,
            numbers=table.initializer.numbers(),
            row_bytes=table.layout.row_bytes,
            statistics=table.statistics,
            dtype=table.dtype,
        )

    def to_native(self) -> NativeSchema:
        """The fields in the order in which hps._C takes them."""
        number = OPTIMIZER_NUMBERS[self.optimizer]
        first, second = self.numbers
        fields = (self.name, self.dim, number, self.initializer, first, second)
        return (*fields, self.row_bytes, self.statistics, self.dtype == "bfloat16")

    @classmethod
    def from_native(cls, fields: NativeSchema) -> Self:
        """The schema that hps._C gave."""
        name, dim, number, initializer, first, second, num_bytes, statistics, narrow = fields
        kinds = {value: kind for kind, value in OPTIMIZER_NUMBERS.items()}
        return cls(
            name=name,
            dim=dim,
            optimizer=kinds[number],
            initializer=initializer,
            numbers=(first, second),
            row_bytes=num_bytes,
            statistics=statistics,
            dtype="bfloat16" if narrow else "float32",
        )
