"""RocksDB through rocksdict as a peer: buffered with a block cache of 64 MB, or O_DIRECT reads.

Above it: ssd_store_bench.py. Below it: rocksdict. The value is the record but for its key. No
compression, bloom filters of 10 bits.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from benchmarks.ssd_store.page_cache import files_under
from benchmarks.ssd_store.records import KEY_BYTES, Batch, Records, key_list

CACHE_BYTES = 64 << 20


class RocksDbPeer:
    """One database; several peers over one folder take turns to have it open.

    Args:
        folder: of the database.
        record_bytes: key and value.
        direct: reads with O_DIRECT.
        syncs: put writes through the log and syncs it; else without a log, and flushes.
    """

    def __init__(
        self, folder: Path, record_bytes: int, direct: bool = False, syncs: bool = True
    ) -> None:
        self.name = f"RocksDB, {'O_DIRECT' if direct else '64 MB cache'}"
        self._folder = folder
        self._value_bytes = record_bytes - KEY_BYTES
        self._direct, self._syncs = direct, syncs
        self._database: Any = None

    def _options(self) -> Any:
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(CACHE_BYTES))
        blocks.set_bloom_filter(10, False)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_use_direct_reads(self._direct)
        options.set_max_background_jobs(2)
        return options

    def begin(self) -> None:
        self._database = rocksdict.Rdict(str(self._folder), self._options())

    def end(self) -> None:
        self._database.close()
        self._database = None

    def _write(self, records: Records, syncs: bool) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        keys = key_list(records[:, :KEY_BYTES].copy().view(np.uint64)[:, 0])
        rest = np.ascontiguousarray(records[:, KEY_BYTES:])
        values = rest.view(f"V{self._value_bytes}")[:, 0].tolist()
        deque(map(batch.__setitem__, keys, values), maxlen=0)  # it has no call for many
        options = rocksdict.WriteOptions()
        options.sync = syncs
        options.disable_wal = not syncs
        self._database.write(batch, options)

    def load(self, pieces: Iterable[Records]) -> None:
        self.begin()
        for records in pieces:
            self._write(records, syncs=False)
        self._database.flush()
        self.end()

    def get(self, batch: Batch) -> Records:
        values = self._database.get(key_list(batch.keys))
        records = np.empty((len(values), KEY_BYTES + self._value_bytes), np.uint8)
        records[:, :KEY_BYTES] = batch.keys.view(np.uint8).reshape(-1, KEY_BYTES)
        joined = np.frombuffer(b"".join(values), np.uint8)
        records[:, KEY_BYTES:] = joined.reshape(len(values), self._value_bytes)
        return records

    def put(self, records: Records) -> None:
        self._write(records, self._syncs)
        if not self._syncs:
            self._database.flush()

    def files(self) -> list[Path]:
        return [path for path in files_under(self._folder) if path.suffix == ".sst"]

    def close(self) -> None:
        """`end` has closed it."""
