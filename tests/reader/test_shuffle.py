"""Examples shuffled within a buffer: all of them once an epoch, by a seed, exact from any batch on.

Above it: pytest. Below it: hps/reader/shuffle.py, hps/reader/position.py, the readers.
"""

import gzip
import math
import os
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps import _C
from hps.reader import Counts, Reader, ReaderConfig
from hps.reader.column_use import ColumnUse
from hps.reader.config import MAX_BATCH_SIZE, MAX_SHUFFLE_BUFFER
from hps.reader.position import Block, Position
from hps.reader.shuffle import Examples, drawn_order
from tests.front import open_server
from tests.reader.reader_twin import (
    assert_same,
    assert_same_batches,
    examples_of,
    open_log,
    tables_of,
)

TEXT_KINDS = ("criteo", "libsvm", "libffm", "slots", "named slots")
RECORD_KINDS = ("parquet", "csv")
KINDS = (*TEXT_KINDS, *RECORD_KINDS)
SIZES = (23, 1, 40)  # examples of the three files
TOTAL = sum(SIZES)
BAD = (5, 30, 31, TOTAL)  # examples before which a bad line stands; TOTAL: at each file's end
NUM_BAD = 3 + len(SIZES)
SHUFFLED: dict[str, Any] = {"shuffle_buffer": 20, "shuffle_seed": 3, "batch_size": 8}


def line_of(kind: str, number: int) -> str:
    """A line that no other number has; some have no key of a feature, some several."""
    label, many = number % 2, ["7"] * (number % 3)
    if kind == "criteo":
        return "\t".join([str(label), str(number), *["3"] * 12, *[f"{number % 9:x}"] * 26])
    if kind == "libsvm":
        return " ".join([str(label), f"{number}:0.5", *[f"{key}:{number}" for key in many]])
    if kind == "libffm":
        return " ".join([str(label), f"0:{number}:2", *[f"1:{key}:0.25" for key in many]])
    if kind == "slots":
        return " ".join([f"{label}:1", f"{number}:0", *[f"{key}:1" for key in many]])
    dense = f"dense_feature:{number / 4}"
    return " ".join([f"click:{label}", dense, f"0:{number}", *[f"1:{key}" for key in many]])


def table_of(numbers: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "label": [5 if number < 0 else number % 2 for number in numbers],
            "age": [number / 4 for number in numbers],
            "key": pa.array(numbers, pa.int64()),
            "word": [None if number % 5 == 0 else f"w{number % 7}" for number in numbers],
            "w": [0.1 * (number % 11) for number in numbers],
        }
    )


def write_log(folder: Path, kind: str, *, bad: Sequence[int] = ()) -> list[Path]:
    """Three files, one of a single example; bad lines have negative numbers."""
    paths, first = [], 0
    for file, size in enumerate(SIZES):
        numbers = []
        for number in range(first, first + size):
            numbers += [-1 - number] if number in bad else []
            numbers.append(number)
        first += size
        numbers += [-1 - TOTAL] if TOTAL in bad else []
        paths.append(folder / f"day-{file}.{'tsv' if kind in TEXT_KINDS else kind}")
        if kind in TEXT_KINDS:
            lines = [line_of(kind, n) if n >= 0 else "no line at all" for n in numbers]
            paths[-1].write_text("\n".join(lines) + "\n")
        elif kind == "parquet":
            pq.write_table(table_of(numbers), paths[-1], row_group_size=7)
        else:
            pa_csv.write_csv(table_of(numbers), paths[-1])
    return paths


def open_shuffled(paths: Any, kind: str, **options: Any) -> Reader:
    names = {"criteo": ["C1", "C2"], "libsvm": ["index"], **dict.fromkeys(RECORD_KINDS)}
    tables = tables_of(names.get(kind, ["0", "1"]))
    if kind in RECORD_KINDS:
        tables = tables_of(["key"], ["word"])
        options = {"weight": "w", "group": "key", **options}
    return open_log(paths, kind.split()[-1], **{"tables": tables, **SHUFFLED, **options})


def contents(batches: Any) -> list[str]:
    """Each example as text, in the order in which they come."""
    found = []
    for batch in batches:
        features = {
            name: [f"{name} {i}" for i in range((len(ids.offsets) - 1) // len(batch))]
            for name, ids in batch.features.items()
        }
        columns = [] if batch.weights is None else [batch.weights.tolist(), batch.groups.tolist()]
        for row, one in enumerate(examples_of([batch], features)):
            found.append(repr((one, [column[row] for column in columns])))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_has_the_examples_of_the_log_in_another_order(
    tmp_path: Path, kind: str
) -> None:
    paths = write_log(tmp_path, kind)
    in_order = contents(open_shuffled(paths, kind, shuffle_buffer=0))
    assert len(set(in_order)) == TOTAL
    batches = list(open_shuffled(paths, kind, epochs=3))
    assert [len(batch) for batch in batches] == [8] * 24
    epochs = [contents(batches[first : first + 8]) for first in (0, 8, 16)]
    for epoch in epochs:
        # 20 examples are three batches: as many are shuffled among themselves, and the rest.
        for first in (0, 24, 48):
            assert Counter(epoch[first : first + 24]) == Counter(in_order[first : first + 24])
            assert epoch[first : first + 24] != in_order[first : first + 24]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert contents(open_shuffled(paths, kind, epochs=3, threads=3)) == [
        *epochs[0],
        *epochs[1],
        *epochs[2],
    ]
    assert contents(open_shuffled(paths, kind, shuffle_seed=4)) != epochs[0]
    assert [batch.position["examples"] for batch in batches] == list(range(8, 193, 8))
    assert [batch.position["epoch"] for batch in batches] == [0] * 8 + [1] * 8 + [2] * 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buffer", [0, 1, 8, 24, 1000])
def test_a_reader_goes_on_from_every_batch(tmp_path: Path, kind: str, buffer: int) -> None:
    paths = write_log(tmp_path, kind, bad=BAD)
    options = {"shuffle_buffer": buffer, "epochs": 2, "on_error": "skip", "shuffle_files": 1}
    options |= {"batch_size": 7}  # the last of an epoch is short
    reader = open_shuffled(paths, kind, **options)
    whole = list(reader)
    assert len(whole) == 20 and reader.counts == Counts(2 * TOTAL, 2 * NUM_BAD)
    assert all(batch.position["skipped"] <= 2 * NUM_BAD for batch in whole)
    for number, batch in enumerate(whole):
        resumed = open_shuffled(paths, kind, **options, threads=1 + number % 3)
        resumed.load_state_dict(batch.position)
        assert resumed.state_dict() == batch.position
        assert_same_batches(list(resumed), whole[number + 1 :])
        assert resumed.counts == reader.counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch_size", "buffer"), [(10, 20), (10, 25), (30, 1), (13, 1000)])
def test_a_last_batch_is_dropped_after_shuffling(
    tmp_path: Path, kind: str, batch_size: int, buffer: int
) -> None:
    paths = write_log(tmp_path, kind, bad=BAD)
    options = {"batch_size": batch_size, "shuffle_buffer": buffer, "epochs": 3}
    options |= {"drop_last": True, "on_error": "skip"}
    in_order = contents(open_shuffled(paths, kind, shuffle_buffer=0, on_error="skip"))
    reader = open_shuffled(paths, kind, **options)
    whole = list(reader)
    an_epoch = TOTAL // batch_size
    assert [len(batch) for batch in whole] == [batch_size] * an_epoch * 3
    assert reader.counts == Counts(3 * an_epoch * batch_size, 3 * NUM_BAD)
    epochs = [contents(whole[an_epoch * n : an_epoch * (n + 1)]) for n in range(3)]
    left_out = [frozenset(in_order) - set(epoch) for epoch in epochs]
    assert [len(one) for one in left_out] == [TOTAL - an_epoch * batch_size] * 3
    if buffer == 1000:
        assert len(set(left_out)) == 3  # drawn, not always the log's last
    for number, batch in enumerate(whole):
        resumed = open_shuffled(paths, kind, **options)
        resumed.load_state_dict(batch.position)
        assert_same_batches(list(resumed), whole[number + 1 :])
        assert resumed.counts == reader.counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_parts_of_a_shuffled_batch_joined_are_the_batch(
    tmp_path: Path, kind: str, on_error: str
) -> None:
    paths = write_log(tmp_path, kind, bad=BAD if on_error == "skip" else ())
    options = {"epochs": 2, "on_error": on_error, "batch_size": 7}
    reader = open_shuffled(paths, kind, **options)
    features = reader.features
    whole = list(reader)
    for size, start in ((2, None), (3, 4), (8, 0), (1, 6)):
        ranks = [open_shuffled(paths, kind, part=(rank, size), **options) for rank in range(size)]
        if start is not None:
            for one in ranks:
                one.load_state_dict(whole[start].position)
        of_ranks = [list(one) for one in ranks]
        for number, batch in enumerate(whole[0 if start is None else start + 1 :]):
            parts = [batches[number] for batches in of_ranks]
            assert [part.position for part in parts] == [batch.position] * size
            assert {(part.global_size, part.global_weight) for part in parts} == {
                (len(batch), batch.global_weight)
            }
            assert [len(part) for part in parts] == [
                len(batch) * (rank + 1) // size - len(batch) * rank // size for rank in range(size)
            ]
            assert_same(examples_of(parts, features), examples_of([batch], features))
            if batch.weights is not None:
                assert torch.cat([part.weights for part in parts]).equal(batch.weights)
                assert torch.cat([part.groups for part in parts]).equal(batch.groups)
                assert batch.global_weight == math.fsum(batch.weights.tolist())


def test_no_buffer_is_the_log_in_its_order_and_positions_are_as_before(tmp_path: Path) -> None:
    paths = write_log(tmp_path, "libsvm")
    plain = list(open_shuffled(paths, "libsvm", shuffle_buffer=0, shuffle_seed=9))
    assert "".join(contents(plain)) == "".join(
        contents(open_log(paths, "libsvm", tables=tables_of(["index"]), batch_size=8))
    )
    new = {"block", "shuffle_buffer", "shuffle_seed", "batch_size"}
    assert new.isdisjoint(plain[1].position)
    assert new <= next(open_shuffled(paths, "libsvm")).position.keys()


@pytest.mark.parametrize("kind", ["libsvm", "csv"])
def test_a_sample_is_shuffled_and_goes_on(tmp_path: Path, kind: str) -> None:
    paths = write_log(tmp_path, kind)
    options = {"hash_range": (0.1, 0.9), "negative_rate": 0.6, "epochs": 2}
    in_order = contents(open_shuffled(paths, kind, **options, shuffle_buffer=0))
    whole = list(open_shuffled(paths, kind, **options))
    assert 20 < len(in_order) < 2 * TOTAL - 20
    assert Counter(contents(whole)) == Counter(in_order) and contents(whole) != in_order
    for number, batch in enumerate(whole):
        resumed = open_shuffled(paths, kind, **options)
        resumed.load_state_dict(batch.position)
        assert_same_batches(list(resumed), whole[number + 1 :])


@pytest.mark.parametrize("depth", [0, 3])
def test_a_pipeline_goes_on_at_any_depth(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "log.libsvm.gz"
    lines = [f"1 {number}:1\n" for number in range(50)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    tables = [hps.TableConfig(name="ads", dim=4)]
    options: dict[str, Any] = {"tables": tables, **SHUFFLED, "epochs": 2}

    def keys_of(batches: Any) -> list[list[int]]:
        return [batch.features["ads"].keys_L.tolist() for batch in batches]

    whole = keys_of(open_log(path, "libsvm", **options))
    with open_server(tmp_path) as server:
        for stop_at in range(1, len(whole)):
            reader = open_log(path, "libsvm", **options)
            with hps.Pipeline(reader, server, depth) as batches:
                first = [next(batches).features["ads"].keys_L.tolist() for _ in range(stop_at)]
            with hps.Pipeline(reader, server, depth) as batches:
                rest = keys_of(batches)
            assert first + rest == whole


def test_the_order_of_a_seed_never_changes() -> None:
    """Stored positions rely on it."""
    assert drawn_order(7, 0, 0, 6).tolist() == [2, 4, 0, 3, 5, 1]
    assert drawn_order(7, 1, 0, 6).tolist() == [5, 4, 1, 3, 2, 0]
    assert drawn_order(7, 0, 64, 6).tolist() == [5, 3, 4, 2, 0, 1]
    assert drawn_order(2**63, 2**31, 2**62, 0).tolist() == []


def test_every_order_of_few_examples_is_as_likely() -> None:
    counts = Counter(tuple(drawn_order(seed, 0, 0, 3).tolist()) for seed in range(6000))
    assert len(counts) == 6
    assert all(abs(count - 1000) < 6 * math.sqrt(1000 * 5 / 6) for count in counts.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shuffle_buffer": 0}, "shuffle_buffer=20, this reader has 0"),
        ({"shuffle_buffer": 21}, "shuffle_buffer=20, this reader has 21"),
        ({"shuffle_seed": 4}, "shuffle_seed=3 with a shuffle buffer, this reader has 4"),
        ({"batch_size": 4}, "batch_size=8 with a shuffle buffer, this reader has 4"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_position_of_another_order_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, number: int
) -> None:
    """Within a block, and between two."""
    paths = write_log(tmp_path, "libsvm")
    position = list(open_shuffled(paths, "libsvm"))[number].position
    other = open_shuffled(paths, "libsvm", **changes)
    with pytest.raises(hps.ConfigError, match=message):
        other.load_state_dict(position)
    assert len(contents(other)) == TOTAL  # it has not moved


def test_a_position_of_a_log_in_order_is_refused_with_a_buffer(tmp_path: Path) -> None:
    paths = write_log(tmp_path, "libsvm")
    position = next(open_shuffled(paths, "libsvm", shuffle_buffer=0)).position
    with pytest.raises(hps.ConfigError, match=r"shuffle_buffer=0, this reader has 20 .*--new-data"):
        open_shuffled(paths, "libsvm").load_state_dict(position)
    reader = open_shuffled(paths, "libsvm", shuffle_buffer=0, batch_size=5)
    reader.load_state_dict(position)  # in order the size of a batch is free
    assert len(contents(reader)) == TOTAL - 8


@pytest.mark.parametrize(
    "block",
    [
        {},
        [],
        7,
        {"taken": 8, "size": 24, "file": 1},
        {"taken": 8, "size": 8, "file": 1, "offset": 9},
        {"taken": 0, "size": 8, "file": 1, "offset": 9},
        {"taken": 8, "size": 24.5, "file": 1, "offset": 9},
        {"taken": 8, "size": 24, "file": -1, "offset": 9},
    ],
)
def test_a_block_that_is_none_is_refused(tmp_path: Path, block: Any) -> None:
    paths = write_log(tmp_path, "libsvm")
    position = next(open_shuffled(paths, "libsvm")).position
    assert position["block"]["taken"] == 8
    with pytest.raises(hps.ConfigError, match="is not a reader's position"):
        open_shuffled(paths, "libsvm").load_state_dict({**position, "block": block})


def test_a_log_that_was_changed_within_a_block_is_refused(tmp_path: Path) -> None:
    """With as many bytes: two lines that were one."""
    paths = write_log(tmp_path, "libsvm")
    position = next(open_shuffled(paths, "libsvm", shuffle_buffer=1000)).position
    text = paths[2].read_text()
    changed = text.replace("1 25:0.5 7:25\n", "1 25:0.5\n0 7:2\n", 1)
    assert changed != text
    size = paths[2].stat().st_size
    paths[2].write_text(changed[:size])
    os.truncate(paths[2], size)
    resumed = open_shuffled(paths, "libsvm", shuffle_buffer=1000)
    resumed.load_state_dict(position)
    with pytest.raises(hps.ConfigError, match=r"8 examples into .* block of 64, .* now it has 65"):
        next(resumed)


@pytest.mark.parametrize("kind", ["libsvm", "parquet"])
def test_a_bad_line_ends_the_log_before_its_block(tmp_path: Path, kind: str) -> None:
    paths = write_log(tmp_path, kind, bad=(30,))
    reader = open_shuffled(paths, kind)
    good = [next(reader) for _ in range(3)]
    assert sorted(contents(good)) == sorted(contents(open_shuffled(paths[:2], kind)))[:24]
    before = reader.state_dict()
    for _ in range(2):  # the position stands
        with pytest.raises(hps.DataError, match="day-2"):
            next(reader)
        assert reader.state_dict() == before == good[-1].position


@dataclass
class Doubled:
    """Twice the dense values."""

    name: str = "doubled"
    features: Mapping[str, tuple[str, ...]] | None = None
    num_dense: int = 1

    def columns(self, uses: Sequence[ColumnUse]) -> list[ColumnUse]:
        return list(uses)

    def __call__(self, batch: hps.Batch, threads: _C.ThreadPool | None = None) -> hps.Batch:
        return replace(batch, dense=2 * batch.dense)


def test_a_transform_sees_shuffled_batches(tmp_path: Path) -> None:
    paths = write_log(tmp_path, "parquet")
    plain = list(open_shuffled(paths, "parquet", epochs=2))
    reader = open_shuffled(paths, "parquet", epochs=2)
    reader.use(Doubled(features=reader.features))  # type: ignore[arg-type]
    found = list(reader)
    assert all(one.dense.equal(2 * two.dense) for one, two in zip(found, plain, strict=True))
    resumed = open_shuffled(paths, "parquet", epochs=2)
    resumed.use(Doubled(features=reader.features))  # type: ignore[arg-type]
    resumed.load_state_dict(found[4].position)
    assert_same_batches(list(resumed), found[5:])


@pytest.mark.parametrize(("kind", "maker"), [("libsvm", "_take"), ("parquet", "_make_batch")])
def test_a_block_is_let_go_of_before_the_next_is_made(
    tmp_path: Path, kind: str, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_shuffled(write_log(tmp_path, kind), kind, epochs=2)
    make, made = getattr(reader, maker), []

    def watched(*arguments: Any) -> Any:
        assert [seen() for seen in made if seen() is not None] == []
        found = make(*arguments)
        made.append(weakref.ref((found[0] if kind == "libsvm" else found).labels))
        return found

    monkeypatch.setattr(reader, maker, watched)
    assert [len(batch) for batch in reader] == [8] * 16 and len(made) == 6


def test_an_empty_log_and_one_example_are_shuffled(tmp_path: Path) -> None:
    path = tmp_path / "log.libsvm"
    path.write_text("")
    assert list(open_shuffled(path, "libsvm", epochs=3)) == []
    path.write_text("1 5:1\n")
    reader = open_shuffled(path, "libsvm", epochs=2)
    assert [len(batch) for batch in reader] == [1, 1]
    assert [len(batch) for batch in reader] == [1, 1]  # once more from the beginning


@pytest.mark.parametrize("field", ["shuffle_buffer", "shuffle_seed"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "20", None, 2**63 + 1])
def test_a_buffer_outside_its_limits_is_refused(field: str, value: Any) -> None:
    with pytest.raises(hps.ConfigError, match=field):
        ReaderConfig(**{field: value})


def test_a_block_is_the_buffer_in_whole_batches_and_within_the_limit() -> None:
    def size(buffer: int, batch: int) -> int:
        return ReaderConfig(shuffle_buffer=buffer, batch_size=batch).block_size

    assert [size(buffer, 10) for buffer in (1, 9, 10, 11, 20)] == [10, 10, 10, 20, 20]
    for batch in (1, MAX_SHUFFLE_BUFFER - 1, MAX_SHUFFLE_BUFFER + 1, MAX_BATCH_SIZE):
        config = ReaderConfig(shuffle_buffer=MAX_SHUFFLE_BUFFER, batch_size=batch)
        assert config.in_blocks().batch_size == config.block_size <= MAX_BATCH_SIZE


# Taking examples of a batch.


def random_batch(draw: np.random.Generator, num_examples: int) -> tuple[hps.Batch, dict[str, int]]:
    """Of three tables: bags of any length, some with weights, one key a bag, no feature at all."""
    features, num_features = {}, {"many": 3, "single": 2, "none": 0}
    for name, count in num_features.items():
        lengths = draw.integers(0, 4, count * num_examples)
        if name == "single":
            lengths[:] = 1
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        keys = draw.integers(-(2**63), 2**63 - 1, offsets[-1])
        weights = torch.from_numpy(draw.random(len(keys), np.float32)) if draw.integers(2) else None
        features[name] = hps.Ids(torch.from_numpy(keys), torch.from_numpy(offsets), weights)
    has_columns = bool(draw.integers(2))
    return hps.Batch(
        features,
        torch.from_numpy(draw.random((num_examples, int(draw.integers(0, 3))), np.float32)),
        torch.from_numpy(draw.integers(0, 2, num_examples).astype(np.float32)),
        weights=torch.from_numpy(draw.random(num_examples, np.float32)) if has_columns else None,
        groups=torch.from_numpy(draw.integers(0, 9, num_examples)) if has_columns else None,
    ), num_features


def taken_twin(batch: hps.Batch, num_features: dict[str, int], places: list[int]) -> dict[str, Any]:
    """Lists, example by example."""
    size = len(batch)
    found: dict[str, Any] = {
        "dense": [batch.dense[place].tolist() for place in places],
        "labels": [batch.labels[place].item() for place in places],
    }
    for name, ids in batch.features.items():
        bags = [[], []]
        offsets = [0]
        for feature in range(num_features[name]):
            for place in places:
                bag = slice(*ids.offsets[feature * size + place :][:2].tolist())
                bags[0] += ids.keys_L[bag].tolist()
                bags[1] += [] if ids.weights_L is None else ids.weights_L[bag].tolist()
                offsets.append(len(bags[0]))
        found[name] = [bags[0], offsets, None if ids.weights_L is None else bags[1]]
    for name in ("weights", "groups"):
        values = getattr(batch, name)
        found[name] = None if values is None else [values[place].item() for place in places]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_taking_examples_agrees_with_taking_them_one_by_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_examples = int(draw.integers(1, 12))
    batch, num_features = random_batch(draw, num_examples)
    examples = Examples(batch)
    for count in (0, 1, num_examples, 30):
        places = draw.integers(0, num_examples, count)
        first, last = sorted(draw.integers(0, count + 1, 2).tolist())
        found = examples.taken(places, first, last)
        expected = taken_twin(batch, num_features, places[first:last].tolist())
        for name in ("dense", "labels", "weights", "groups"):
            values = getattr(found, name)
            assert (None if values is None else values.tolist()) == expected[name]
            assert values is None or values.dtype == getattr(batch, name).dtype
        assert found.dense.shape == (last - first, batch.dense.shape[1])
        for name, ids in found.features.items():
            weights = None if ids.weights_L is None else ids.weights_L.tolist()
            assert [ids.keys_L.tolist(), ids.offsets.tolist(), weights] == expected[name]
            assert ids.keys_L.dtype == ids.offsets.dtype == torch.int64
        assert found.global_size == count
        of_all = None if batch.weights is None else batch.weights[places].tolist()
        assert found.global_weight == (count if of_all is None else math.fsum(of_all))


def test_bags_with_as_many_keys_as_bags_need_not_be_single() -> None:
    ids = hps.Ids(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
    batch = hps.Batch({"ads": ids}, torch.zeros(3, 0), torch.zeros(3))
    found = Examples(batch).taken(np.array([2, 1, 0])).features["ads"]
    assert (found.keys_L.tolist(), found.offsets.tolist()) == ([9, 7, 8], [0, 1, 1, 3])


def test_what_is_taken_is_a_copy() -> None:
    batch, _ = random_batch(np.random.default_rng(1), 5)
    before = {name: ids.keys_L.clone() for name, ids in batch.features.items()}
    found = Examples(batch).taken(np.arange(5))
    for ids in found.features.values():
        ids.keys_L.zero_()
    found.labels.fill_(9)
    assert all(ids.keys_L.equal(before[name]) for name, ids in batch.features.items())
    assert batch.labels.max() <= 1


def test_a_position_is_what_it_was_after_a_round_through_json() -> None:
    position = Position(1, 2, 3, 4, 5, 6, Block(1, 2, 3, 4))
    assert Position.from_dict({**position.to_dict(), "more": 1}) == position
    assert "block" not in Position().to_dict() and Position.from_dict(Position().to_dict()) == (
        Position()
    )
