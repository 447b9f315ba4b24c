"""ssd_store of hps."""

from pathlib import Path
from typing import Any

from hps.ssd_store.schema import TableSchema, row_bytes

__all__ = ["SsdStore", "TableSchema", "row_bytes"]


class SsdStore:
    """See hps.tier.RowTier."""

    @staticmethod
    def open(path: Path, tables: Any, **options: Any) -> Any:
        """Opens the store at `path`."""
        raise AssertionError
