"""The tier on SSD: all rows, in log-structured segments, with checksums and checkpoints."""

from hps.ssd_store.clone import clone
from hps.ssd_store.schema import TableSchema
from hps.ssd_store.store import SsdStore, verify

__all__ = ["SsdStore", "TableSchema", "clone", "verify"]
