"""The SSD tier: durable puts, cold and warm gets, opening, bytes, beside other stores.

hps's store stands alone here, without a cache above it. Every store keeps the same records, of one
size in bytes, key included; of batches of keys the rate counts the keys asked for before they are
made distinct. Above it: benchmarks/run.py. Below it: one file a contender, measure.py,
lifetime.py, compaction.py.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.peers import absent_peers
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store import lifetime, page_cache
from benchmarks.ssd_store.compaction import compaction
from benchmarks.ssd_store.contender import Contender, Writer
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.measure import Results, bandwidth, check_same, cold, puts, warm
from benchmarks.ssd_store.record_file import AnnouncedMap, RawReads, RecordFile
from benchmarks.ssd_store.records import Batch, Data, ZipfBatches

FLOORS = {
    "put": {"RocksDB": 4.0},
    "get warm": {"RocksDB": 4.0},
    "get cold": {"RocksDB": 3.0, AnnouncedMap.name: 0.9, RawReads.name: 0.8},
}
MOST_DATA_BYTES = 1.3e9  # of one store: what four of them take stays under 12 GB
UNIT = "M keys/s"
GETS_A_STEP = 40  # of those whose slowest count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=5e6, help="fewer where records are large")
    parser.add_argument("--large-rows", type=float, default=1e7, help="again, of the first size")
    parser.add_argument("--records", default="64,256,1024", help="bytes of a record, key included")
    parser.add_argument("--batch", type=int, default=100_000, help="keys a call")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="timed warm calls a repetition")
    parser.add_argument("--folder", help="on the disk that is measured; a temporary one if not")


class Field:
    """All contenders over records of one size, loaded.

    Args:
        data: what they hold.
        folder: for all of them.
        absent: gets the peers that cannot take part, with the reason.
    """

    def __init__(self, data: Data, folder: Path, absent: dict[str, str]) -> None:
        self.data = data
        size = data.record_bytes
        self.hps = HpsStore(folder / "hps", size)
        self.hps.load(data.in_order(data.by_place()))
        file = RecordFile(folder / "records", size)
        file.load(data.in_order(data.by_place()))
        self.readers: list[Contender] = [self.hps, AnnouncedMap(file)]
        self.writers: dict[str, Writer] = {"hps": self.hps}
        self.raw = self._raw_reads(file, absent)
        by_key = data.by_key()
        if "rocksdict" not in absent:
            from benchmarks.ssd_store.rocksdb_peer import RocksDbPeer

            path = folder / "rocksdb"
            modes = [RocksDbPeer(path, size, direct) for direct in (False, True)]
            modes[0].load(data.in_order(by_key))
            self.readers += modes
            for syncs, how in ((True, "log synced"), (False, "no log, flushed")):
                self.writers[f"RocksDB, {how}"] = RocksDbPeer(path, size, syncs=syncs)
        if "lmdb" not in absent:
            from benchmarks.ssd_store.lmdb_peer import LmdbPeer

            lmdb = LmdbPeer(folder / "lmdb", size)
            lmdb.load(data.in_order(by_key))
            self.readers.append(lmdb)
            self.writers["LMDB"] = lmdb

    def _raw_reads(self, file: RecordFile, absent: dict[str, str]) -> RawReads | None:
        raw = RawReads(file, self.hps)
        try:
            raw.tune(self.data.uniform(min(1000, self.data.rows), seed=99))
        except OSError as error:
            absent["io_uring"] = f"the raw ceiling is missing: {error}"
            raw.close()
            return None
        return raw

    @property
    def ceilinged(self) -> list[Contender]:
        """The readers, and the raw reads behind them."""
        return [*self.readers, *([] if self.raw is None else [self.raw])]

    def close(self) -> None:
        for contender in self.ceilinged:
            contender.close()


def rows_beside(axes: dict[str, Any], unit: str, samples: Results) -> list[Row]:
    """A row of hps beside each contender; a floor for "RocksDB" is at its best mode."""
    floors = FLOORS.get(axes["figure"], {})
    modes = [name for name in samples if name.startswith("RocksDB")]
    best = max(modes, key=lambda name: samples[name].median, default=None)
    rows = []
    for name, baseline in samples.items():
        if name != "hps":
            floor = floors.get("RocksDB" if name == best else name)
            rows.append(comparison_row(axes, unit, samples["hps"], (name, baseline), floor=floor))
    return rows


def reads(field: Field, options: dict[str, Any]) -> Iterator[Row]:
    """Cold, then warm gets, of every kind of batch."""
    data, size, repetitions = field.data, options["batch"], options["repetitions"]
    zipf = ZipfBatches(data, size)
    kinds: dict[tuple[str, str], Sequence[Batch]] = {
        ("uniform", "sorted"): [data.uniform(size, seed) for seed in range(repetitions)],
        ("zipf", "sorted"): [zipf.next() for _ in range(repetitions)],
    }
    if data.record_bytes == options["records"][0]:
        kinds["uniform", "unsorted"] = [
            data.uniform(size, seed, is_sorted=False) for seed in range(repetitions)
        ]
    check_same(data, field.ceilinged, kinds["uniform", "sorted"][0])
    shared = {"record_bytes": data.record_bytes, "rows": data.rows}
    for (keys, order), batches in kinds.items():
        axes = {"figure": "get cold", **shared, "keys": keys, "order": order}
        if field.raw is not None:
            field.raw.tune(batches[0])
        if field.raw is not None:
            yield share_of_disk(field, field.raw, axes, batches)
        samples, resident = cold(field.ceilinged, batches, checks=not options["is_smoke"])
        found = rows_beside(axes, UNIT, samples)
        notes = {"resident_part": resident} | ({} if field.raw is None else field.raw.notes)
        yield from (row | {"notes": notes} for row in found)
    buffered = [reader for reader in field.readers if "O_DIRECT" not in reader.name]
    for (keys, order), batches in kinds.items():
        axes = {"figure": "get warm", **shared, "keys": keys, "order": order}
        yield from rows_beside(axes, UNIT, warm(buffered, batches, options["steps"]))


def share_of_disk(
    field: Field, raw: RawReads, axes: dict[str, Any], batches: Sequence[Batch]
) -> Row:
    """GB/s that cold gets bring from disk, gaps included, beside reading whole files in order."""
    samples = bandwidth(field.hps, raw, batches)
    whole = ("whole files in order, raw", samples[raw.name])
    return comparison_row(axes | {"figure": "get cold, bytes"}, "GB/s", samples["hps"], whole)


def sizes(field: Field) -> Iterator[Row]:
    """Bytes on disk a row, of freshly loaded stores."""
    data = field.data
    axes = {"figure": "disk", "record_bytes": data.record_bytes, "rows": data.rows}
    bytes_a_row = {
        reader.name: Samples((page_cache.disk_bytes(reader.files()) / data.rows,))
        for reader in field.readers
        if "O_DIRECT" not in reader.name
    }
    for name, baseline in bytes_a_row.items():
        if name != "hps":
            yield comparison_row(
                axes, "bytes a row", bytes_a_row["hps"], (name, baseline), lower_is_better=True
            )


def writes(field: Field, options: dict[str, Any]) -> Iterator[Row]:
    """Batches put over rows that are there, each made durable."""
    data = field.data
    seeds = range(1000, 1000 + options["repetitions"])
    pieces = [data.records(data.uniform(options["batch"], seed).places) for seed in seeds]
    axes = {"figure": "put", "record_bytes": data.record_bytes, "rows": data.rows}
    yield from rows_beside({**axes, "keys": "uniform"}, "M rows/s", puts(field.writers, pieces))


def one_size(
    data: Data, folder: Path, options: dict[str, Any], absent: dict[str, str]
) -> list[Row]:
    """Every figure of one size of records."""
    repetitions = options["repetitions"]
    field = Field(data, folder, absent)
    with contextlib.closing(field):
        found = [*sizes(field), *reads(field, options)]
        shape = (options["batch"], repetitions)
        found.append(lifetime.locality(field.hps, folder / "together", data, shape))
        if data.record_bytes == options["records"][0]:  # opening reads keys, whatever their rows
            found += lifetime.opening(field.hps, data, repetitions)
            patience = 0.2 if options["is_smoke"] else 40.0
            shape = (options["batch"], options["steps"] * GETS_A_STEP, patience)
            row = compaction(folder / "compaction", data, shape)
            found += [] if row is None else [row]
        found += writes(field, options)
    return found


def rows_of(record_bytes: int, wanted: float) -> int:
    """How many records of a size there are, of those that are wanted."""
    return min(int(wanted), int(MOST_DATA_BYTES / record_bytes))


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Rows of every figure, for each size of records."""
    if smoke:
        options |= {"large_rows": 30_000}
        options |= {"rows": 20_000, "records": "64", "batch": 2000, "repetitions": 1, "steps": 1}
    options["is_smoke"] = smoke
    options["records"] = [int(size) for size in options["records"].split(",")]
    absent = absent_peers("rocksdict", "lmdb")
    found: list[Row] = []
    shapes = [(record_bytes, options["rows"]) for record_bytes in options["records"]]
    for record_bytes, wanted in [*shapes, (options["records"][0], options["large_rows"])]:
        data = Data(rows_of(record_bytes, wanted), record_bytes)
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            found += one_size(data, Path(folder), options, absent)
    axes = {
        name: options[name] for name in ("rows", "large_rows", "records", "batch", "repetitions")
    }
    return {"axes": axes, "rows": found, "absent": absent}
