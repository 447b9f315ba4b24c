"""A readable twin of the readers: ten lines and a parser a format, and XXH64, in plain Python.

Above it: the tests beside it. Below it: nothing of hps but the configuration they share.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hps
from hps.reader import Reader, ReaderConfig, open_reader

MASK = 2**64 - 1
SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TEXT_FORMATS = ("criteo", "libsvm", "libffm", "slots")


@dataclass
class Example:
    """What a line says: feature -> list of (key, weight)."""

    label: float
    dense: list[float] = field(default_factory=list)
    bags: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def criteo_lines() -> list[str]:
    """Ten lines with missing, negative and long values, of categories of several lengths."""
    words = ["68fd1e64", "", "x", "a longer category that needs the four lanes", "0123456789ab"]
    lines = []
    for row in range(10):
        numbers = ["", "-3", "0", "7", "32767", "32768", "99999999", "123456789012"]
        dense = [numbers[(row * 5 + column) % len(numbers)] for column in range(13)]
        categories = [words[(row + column * column) % len(words)] for column in range(26)]
        lines.append("\t".join([str(row % 2), *dense, *categories]))
    return lines


LIBSVM_LINES = [
    "1 3:1 17:0.5 18446744073709551615:-2.25",
    "0 0:1",
    "-1 5:0.25 5:0.75",
    "+1 9223372036854775808:1e-3",
    "1",
    "0 1:1 2:2 # a comment 3:3",
    "1.0 00012:+4",
    "0   7:1\t8:1  ",
    "-1 12345678:1 1234567890123456:2 99999999999999999:3",
    "1 4:0.1",
]
LIBFFM_LINES = [
    "1 0:3:1 1:17:0.5",
    "0 2:18446744073709551615:1",
    "1 1:5:0.25 1:6:0.75 0:5:2",
    "0 10:9223372036854775808:1",
    "0",
    "1 0:1:1 2:2:2",
    "0 10:12:4",
    "1  1:7:1\t2:8:1",
    "0 0:12345678:1",
    "1 2:4:0.1",
]
SLOT_LINES = [
    "1:1 3:101 17:102 4:101",
    "0:1 18446744073709551615:103",
    "1:1 5:9 6:9 7:102",
    "0:1 9223372036854775808:101",
    "0:1",
    "1:1 1:u 2:u",
    "0:1 12:101",
    "1:1  7:9\t8:102",
    "0:1 12345678:103",
    "1:1 4:103",
]
NAMED_SLOT_LINES = [
    f"click:{row % 2} dense_feature:{row / 8} dense_feature:-1.5 1:{row} 2:{2**64 - 1 - row} "
    f"ad:{row * 7}"
    for row in range(10)
]
LINES = {
    "criteo": criteo_lines(),
    "libsvm": LIBSVM_LINES,
    "libffm": LIBFFM_LINES,
    "slots": SLOT_LINES,
}


def _rotate(value: int, bits: int) -> int:
    value &= MASK
    return ((value << bits) | (value >> (64 - bits))) & MASK


def xxh64_twin(data: bytes, seed: int = 0) -> int:
    """XXH64 after its specification, independent of csrc/common/hash.h."""
    prime1, prime2, prime3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
    prime4, prime5 = 9650029242287828579, 2870177450012600261

    def mix(lane: int, word: int) -> int:
        return _rotate(lane + word * prime2, 31) * prime1 & MASK

    place = 0
    if len(data) >= 32:
        lanes = [seed + prime1 + prime2, seed + prime2, seed, seed - prime1]
        while place + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, place)
            lanes = [mix(lane, word) for lane, word in zip(lanes, words, strict=True)]
            place += 32
        hashed = sum(_rotate(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            hashed = ((hashed ^ mix(0, lane)) * prime1 + prime4) & MASK
    else:
        hashed = seed + prime5
    hashed = (hashed + len(data)) & MASK
    while place + 8 <= len(data):
        word = struct.unpack_from("<Q", data, place)[0]
        hashed = (_rotate(hashed ^ mix(0, word), 27) * prime1 + prime4) & MASK
        place += 8
    if place + 4 <= len(data):
        word = struct.unpack_from("<I", data, place)[0]
        hashed = (_rotate(hashed ^ (word * prime1 & MASK), 23) * prime2 + prime3) & MASK
        place += 4
    for byte in data[place:]:
        hashed = _rotate(hashed ^ (byte * prime5 & MASK), 11) * prime1 & MASK
    hashed = ((hashed ^ (hashed >> 33)) * prime2) & MASK
    hashed = ((hashed ^ (hashed >> 29)) * prime3) & MASK
    return hashed ^ (hashed >> 32)


def key_twin(feature: str, raw: str, shared: bool = False) -> int:
    """The key of a raw value: XXH64 seeded with the feature's own hash, or 0 when shared."""
    return xxh64_twin(raw.encode(), 0 if shared else xxh64_twin(feature.encode()))


def parse_twin(
    kind: str, line: str, hash_keys: bool = False, transform: str = "signed_log1p"
) -> Example:
    """One good line; the transform is that of criteo's integers."""
    if kind == "criteo":
        return _parse_criteo(line, transform)
    tokens = line.split("#")[0].split() if kind in ("libsvm", "libffm") else line.split()
    named = tokens[0].startswith("click:")
    label = tokens[0].split(":")[1 if named else 0]
    example = Example(1.0 if float(label) == 1 else 0.0)
    for token in tokens[1:]:
        parts = token.split(":")
        weight = float(parts[-1]) if kind in ("libsvm", "libffm") else 1.0
        if named and parts[0] == "dense_feature":
            example.dense.append(float(parts[1]))
            continue
        feature = {
            "libsvm": "index",
            "libffm": parts[0],
            "slots": parts[0] if named else parts[-1],
        }[kind]
        raw = parts[1] if named or kind == "libffm" else parts[0]
        key = key_twin(feature, raw) if hash_keys else int(raw)
        example.bags.setdefault(feature, []).append((key, weight))
    return example


def dense_twin(text: str, transform: str) -> float:
    """A criteo integer, or a missing one, as a dense value."""
    if transform == "log1p":
        return math.log1p(max(int(text), 0)) if text else 0.0
    if not text:
        return -0.5
    return math.copysign(math.log1p(abs(int(text))), int(text))


def _parse_criteo(line: str, transform: str) -> Example:
    fields = line.split("\t")
    dense = [dense_twin(text, transform) for text in fields[1:14]]
    example = Example(float(fields[0]), dense)
    for idx, raw in enumerate(fields[14:]):
        feature = f"C{idx + 1}"
        example.bags[feature] = [(key_twin(feature, raw), 1.0)]
    return example


def tables_of(*features: Sequence[str] | None, shared: bool = False) -> list[hps.TableConfig]:
    """Tables t0, t1, ... of the features given."""
    return [
        hps.TableConfig(name=f"t{idx}", dim=4, features=names, shared_vocabulary=shared)
        for idx, names in enumerate(features)
    ]


def open_log(path: Path | Sequence[Path], kind: str, **options: object) -> Reader:
    """A reader of one table that takes all features, unless `tables` are given."""
    tables = options.pop("tables", None) or tables_of(None)
    config = ReaderConfig(format=kind, **{"batch_size": 3, "threads": 1, **options})
    return open_reader(path, tables=tables, config=config)


def examples_of(batches: Iterable[hps.types.Batch], features: dict) -> list[Example]:
    """Batches taken apart into examples; checks the shapes on the way."""
    examples = []
    for batch in batches:
        size = len(batch)
        rows = [
            Example(float(label), [float(value) for value in dense])
            for label, dense in zip(batch.labels, batch.dense, strict=True)
        ]
        for table, names in features.items():
            ids = batch.features[table]
            offsets = ids.offsets.tolist()
            assert len(offsets) == len(names) * size + 1
            assert offsets[0] == 0 and offsets[-1] == len(ids.keys_L)
            keys = [key & MASK for key in ids.keys_L.tolist()]
            weights = [1.0] * len(keys) if ids.weights_L is None else ids.weights_L.tolist()
            for bag in range(len(names) * size):
                pairs = list(zip(keys, weights, strict=True))[offsets[bag] : offsets[bag + 1]]
                if pairs:
                    rows[bag % size].bags[names[bag // size]] = pairs
        examples += rows
    return examples


def assert_same(found: Sequence[Example], expected: Sequence[Example]) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.label == right.label
        assert len(left.dense) == len(right.dense)
        for got, wanted in zip(left.dense, right.dense, strict=True):
            assert math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-9)
        assert left.bags.keys() == right.bags.keys()
        for name, pairs in right.bags.items():
            assert [key for key, _ in left.bags[name]] == [key for key, _ in pairs]
            for (_, got), (_, wanted) in zip(left.bags[name], pairs, strict=True):
                assert math.isclose(got, wanted, rel_tol=1e-6)


def assert_same_batches(left: Sequence, right: Sequence) -> None:
    """Equal bit for bit, positions too."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.position == other.position
        assert one.labels.equal(other.labels) and one.dense.equal(other.dense)
        assert (one.global_size, one.global_weight) == (other.global_size, other.global_weight)
        for values, others in ((one.weights, other.weights), (one.groups, other.groups)):
            assert (values is None) == (others is None)
            assert values is None or values.equal(others)
        assert one.features.keys() == other.features.keys()
        for name, ids in one.features.items():
            assert ids.keys_L.equal(other.features[name].keys_L)
            assert ids.offsets.equal(other.features[name].offsets)
            weights = other.features[name].weights_L
            assert (ids.weights_L is None) == (weights is None)
            assert weights is None or ids.weights_L.equal(weights)
