"""The tier on SSD: all rows, in segments of hps's own or in RocksDB, with checkpoints."""

from hps.ssd_store.clone import clone
from hps.ssd_store.engine import engine_of, is_unfinished
from hps.ssd_store.open_store import check_no_writer, open_store, verify
from hps.ssd_store.store import SsdStore
from hps.table.schema import TableSchema

__all__ = [
    "SsdStore",
    "TableSchema",
    "check_no_writer",
    "clone",
    "engine_of",
    "is_unfinished",
    "open_store",
    "verify",
]
