"""TableSchema: what of a table is fixed once its store exists.

Above it: parameter_server.py, the store. Below it: nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """The part of a TableConfig that a store must be reopened with.

    >>> TableSchema(name="ads", dim=4, optimizer_kind="sgd", initializer_kind="constant",
    ...             initializer_numbers=(0.0, 0.0), row_bytes=32).dim
    4
    """

    name: str
    dim: int
    optimizer_kind: str
    initializer_kind: str
    initializer_numbers: tuple[float, float]
    row_bytes: int
