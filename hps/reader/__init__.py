"""Readers: click logs in six formats as batches of keys, dense values and labels.

Above it: `hps train`, `hps evaluate`, `hps.Pipeline`, users' loops. Below it: csrc/reader, pyarrow.
"""

from hps.reader.config import FORMATS, ReaderConfig
from hps.reader.open import open_reader
from hps.reader.reader import Counts, Reader

__all__ = ["FORMATS", "Counts", "Reader", "ReaderConfig", "open_reader"]
