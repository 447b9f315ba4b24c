"""The tier on SSD: all rows, in segments of hps's own or in RocksDB, with checkpoints."""

from hps.ssd_store.clone import clone
from hps.ssd_store.engine import engine_of
from hps.ssd_store.open_store import open_store, verify
from hps.ssd_store.schema import TableSchema
from hps.ssd_store.store import SsdStore

__all__ = ["SsdStore", "TableSchema", "clone", "engine_of", "open_store", "verify"]
