"""Recipes T1 and B1: files cut off anywhere, bits flipped anywhere, blocks swapped.

Above it: test_damage.py, run.py. Below it: hps.ssd_store. A damage is found when `verify` names the
file, and using the store either raises an error that names it too, before a wrong byte is handed
out, or had no need of the damaged bytes and hands out the right ones. The manifest beyond what
CURRENT counts is the one place where a tear is no damage: a record that was being written when the
process died. LOCK and pins hold no data. The update log of a service, whose final record may be
torn likewise, has its own recipes in tests/native/update_log_damage_test.cc.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hps import _C
from hps.common.row_layout import RowLayout
from hps.errors import HpsError
from hps.ssd_store import SsdStore, TableSchema, verify
from tests.twins.row_math import mix_key

_NUM_KEYS = 120
_SEGMENT_BYTES = 5000
_HEADER_BYTES = 64
_BLOCKS = (64, 512)
Contents = dict[str, object]


def _schema(name: str, optimizer: str) -> TableSchema:
    return TableSchema(
        name=name,
        dim=4,
        optimizer=optimizer,
        initializer="constant",
        numbers=(0.0, 0.0),
        row_bytes=RowLayout(optimizer, 4).row_bytes,
    )


SCHEMAS = (_schema("ads", "sgd"), _schema("users", "adagrad"))


def _append(store: SsdStore, seed: int, value: int) -> None:
    """Rows of both tables, each of its own random bytes behind the key."""
    chance = np.random.default_rng((seed, value))
    for schema in SCHEMAS:
        rows = chance.integers(0, 256, (_NUM_KEYS, schema.row_bytes)).astype(np.uint8)
        keys = np.arange(_NUM_KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        rows[:, :8].view(np.uint64)[:, 0] = keys
        store.append(schema.name, rows)
        store.erase(schema.name, keys[value : value + 3])


def make_store(path: Path, seed: int) -> None:
    """Segments of two checkpoints and two tables, tombstones, blobs in manifest and files."""
    with SsdStore.open(path, SCHEMAS, segment_bytes=_SEGMENT_BYTES) as store:
        for value, tag in ((1, "day-1"), (2, None)):
            _append(store, seed, value)
            blob = np.random.default_rng(value).bytes(4500)
            store.checkpoint(tag, {"position": b"%d" % value, "model": blob})


def use_everything(path: Path) -> Contents:
    """All that the kept checkpoints hold, read as a user would."""
    contents: Contents = {}
    for checkpoint in (None, "day-1"):
        with SsdStore.open(path, SCHEMAS, read_only=True, checkpoint=checkpoint) as store:
            for schema in SCHEMAS:
                rows = [piece.copy() for piece in store.scan(schema.name, 64)]
                images = np.concatenate(rows)
                keys = images[:, :8].copy().view(np.uint64)[:, 0]
                fetched = np.zeros_like(images)
                found = np.zeros(len(keys), np.uint8)
                store.fetch(schema.name, keys, fetched, found)
                order = np.argsort(keys)
                contents[f"{checkpoint} {schema.name}"] = fetched[order].tobytes()
                contents[f"{checkpoint} {schema.name} scan"] = images[order].tobytes()
            contents[f"{checkpoint} extras"] = store.extras(checkpoint)
    return contents


@dataclass
class DamageReport:
    """What was damaged and what was not found."""

    samples: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    unneeded: Counter[str] = field(default_factory=Counter)  # by file: right rows, verify names it
    skips: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(self.by_kind.items()))
        return f"damages ({kinds}), {self.unneeded.total()} in bytes that reading did not need"


class DamageLab:
    """One sealed store, damaged and mended again and again.

    Args:
        folder: an empty folder.
        seed: of the rows and of the places of damage.
        reader: what uses the store; a planted bug stands here.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        reader: Callable[[Path], Contents] = use_everything,
    ) -> None:
        self.path = folder / "store"
        self.seed = seed
        self.report = DamageReport()
        self._reader = reader
        self._chance = random.Random(seed)
        make_store(self.path, seed)
        names = ["CURRENT", *(file.name for file in sorted(self.path.glob("*-*")))]
        self.whole = {name: (self.path / name).read_bytes() for name in names}
        self._contents = use_everything(self.path)
        assert verify(self.path) == [], "the store is whole"
        assert len([name for name in names if name.startswith("segment-")]) > 4

    def truncate(self, tail: int, stride: int) -> DamageReport:
        """T1: every file, cut off at every offset of its `tail`, and at every `stride`-th of it."""
        for name, whole in self.whole.items():
            start = self._chance.randrange(stride)
            lengths = {
                *range(start, len(whole), stride),
                *range(max(0, len(whole) - tail), len(whole)),
            }
            for length in sorted(lengths):
                self._examine("truncation", {name: whole[:length]}, f"{name} cut to {length}")
        return self.report

    def flip_bits(self, samples: int, mends_checksums: bool = False) -> DamageReport:
        """B1: one bit a sample; half of the samples choose a file first, half a byte.

        With `mends_checksums` (a planted bug) the record around the bit is given the checksum that
        fits it, as if checksums were ignored.
        """
        for _ in range(samples):
            name = self._some_file()
            bit = self._chance.randrange(len(self.whole[name]) * 8)
            damaged = bytearray(self.whole[name])
            damaged[bit // 8] ^= 1 << bit % 8
            if mends_checksums and name.startswith("segment-"):
                mend_checksum(damaged, bit // 8)
            self._examine("flipped bit", {name: bytes(damaged)}, f"{name} bit {bit}")
        return self.report

    def swap_blocks(self, samples: int) -> DamageReport:
        """B1: two blocks exchanged, of one file or of two."""
        for _ in range(samples):
            size = self._chance.choice(_BLOCKS)
            large = [name for name, whole in self.whole.items() if len(whole) >= size]
            (first, at), (second, to) = (self._block(large, size) for _ in range(2))
            damaged = {name: bytearray(self.whole[name]) for name in (first, second)}
            one, other = damaged[first][at : at + size], damaged[second][to : to + size]
            if one == other or (first == second and abs(at - to) < size):
                self.report.skips["equal or overlapping blocks"] += 1
                continue
            damaged[first][at : at + size] = other
            damaged[second][to : to + size] = one
            what = f"{size} bytes of {first} at {at} and {second} at {to}"
            files = {name: bytes(content) for name, content in damaged.items()}
            self._examine("swapped blocks", files, what)
        return self.report

    def tear_manifest(self, stride: int) -> DamageReport:
        """T1: the record that a crash left beyond CURRENT, cut off at every `stride`-th offset.

        A writer takes it when it is whole, and else stays where CURRENT says.
        """
        manifest = next(name for name in self.whole if name.startswith("MANIFEST-"))
        torn = self.path.parent / "torn"
        with SsdStore.open(self.path, SCHEMAS, segment_bytes=_SEGMENT_BYTES) as store:
            current = (self.path / "CURRENT").read_bytes()
            length = (self.path / manifest).stat().st_size
            _append(store, self.seed, 3)
            store.checkpoint("day-3", {"position": b"3"})
        whole = (self.path / manifest).read_bytes()
        lengths = [*range(length, len(whole), stride), len(whole)]
        for end in lengths:
            shutil.copytree(self.path, torn)
            (torn / "CURRENT").write_bytes(current)
            (torn / manifest).write_bytes(whole[:end])
            with SsdStore.open(torn, SCHEMAS, segment_bytes=_SEGMENT_BYTES) as store:
                position = store.extras()["position"]
                expected = b"3" if end == len(whole) else b"2"
                self._note("torn record", position == expected, f"cut to {end}: at {position!r}")
            shutil.rmtree(torn)
        return self.report

    def _some_file(self) -> str:
        names = list(self.whole)
        sizes = [len(whole) for whole in self.whole.values()]
        weights = sizes if self._chance.random() < 0.5 else None
        return self._chance.choices(names, weights)[0]

    def _block(self, names: list[str], size: int) -> tuple[str, int]:
        name = self._chance.choice(names)
        return name, self._chance.randrange(len(self.whole[name]) // size) * size

    def _examine(self, kind: str, files: dict[str, bytes], what: str) -> None:
        for name, content in files.items():
            (self.path / name).write_bytes(content)
        wrong = "; ".join(self._unfound(files))
        self._note(kind, not wrong, f"{what}: {wrong}")
        for name in files:
            (self.path / name).write_bytes(self.whole[name])

    def _unfound(self, files: dict[str, bytes]) -> Iterator[str]:
        """What is wrong with how the store takes the damage of these files."""
        try:
            named = {Path(name).name for name, _ in verify(self.path)}
        except HpsError as error:
            named = {name for name in files if name in str(error)}
        if not named & set(files):
            yield "verify does not name it"
        try:
            contents = self._reader(self.path)
        except HpsError as error:
            if not any(name in str(error) for name in files):
                yield f"using it raises an error that does not name it: {error}"
            return
        if contents != self._contents:
            yield "using it raises nothing and gives other rows"
        else:
            self.report.unneeded.update(files.keys())

    def _note(self, kind: str, is_found: bool, what: str) -> None:
        self.report.samples += 1
        self.report.by_kind[kind] += 1
        if not is_found:
            self.report.violations.append(f"seed {self.seed}, {kind}: {what}")


def mend_checksum(segment: bytearray, offset: int) -> None:
    """Gives the record at `offset` the checksum of what it holds now (docs/ssd_store_format.md)."""
    number = np.frombuffer(segment[24:32], "<u8")[0]
    stride = int(np.frombuffer(segment[56:60], "<u4")[0])
    record = (offset - _HEADER_BYTES) // stride
    start = _HEADER_BYTES + record * stride
    num_records = (len(segment) - _HEADER_BYTES) // (stride + 8)
    if offset < _HEADER_BYTES or record >= num_records:
        return
    inner = mix_key(np.array([number + np.uint64(1)], np.uint64))
    seed = int(mix_key(inner + np.uint64(record))[0]) & 0xFFFFFFFF
    checksum = _C.crc32c(bytes(segment[start : start + stride - 4]), seed)
    segment[start + stride - 4 : start + stride] = checksum.to_bytes(4, "little")


def empty_when_damaged(path: Path) -> Contents:
    """A planted bug: a reader that takes a damaged store for an empty one."""
    try:
        return use_everything(path)
    except HpsError:
        return {}
