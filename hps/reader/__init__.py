"""Readers: click logs in six formats as batches of keys, dense values and labels.

Above it: `hps train`, `hps evaluate`, `hps.Pipeline`, users' loops. Below it: csrc/reader, pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hps.reader.config import FORMATS, ReaderConfig

if TYPE_CHECKING:
    from hps.reader.open import open_reader
    from hps.reader.reader import Counts, Reader

__all__ = ["FORMATS", "Counts", "Reader", "ReaderConfig", "open_reader"]

# Loaded at first use: the options of the command line need `ReaderConfig` alone, and not numpy.
_LAZY = {
    "Counts": "hps.reader.reader",
    "Reader": "hps.reader.reader",
    "open_reader": "hps.reader.open",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hps.reader' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
