"""ssd_store of hps."""

from pathlib import Path
from typing import Any


class SsdStore:
    @staticmethod
    def open(path: Path, schemas: Any, **options: Any) -> Any:
        raise AssertionError


def read_schemas(path: Path) -> Any:
    raise AssertionError
