"""Several files as one log: patterns, orders drawn from a seed, positions across both.

Above it: pytest. Below it: hps/reader/files.py, the readers.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.reader import Reader, ReaderConfig, open_reader
from hps.reader.files import epoch_order, find_files
from hps.train import TrainOptions, train
from tests.front import open_server
from tests.logs import write_criteo

NUM_FILES = 5
TABLES = [hps.TableConfig(name="ads", dim=4)]


def write_numbered(folder: Path, kind: str) -> list[Path]:
    """Five files of 7 examples; the key says which, 100 * file + example."""
    paths = []
    for file in range(NUM_FILES):
        keys = [100 * file + example for example in range(7)]
        path = folder / f"day-{file}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"label": [1] * 7, "key": pa.array(keys, pa.uint64())}), path)
        else:
            path.write_text("".join(f"1 {key}:1\n" for key in keys))
        paths.append(path)
    return paths


def open_log(paths: Any, kind: str, **changes: Any) -> Reader:
    config = replace(ReaderConfig(format=kind, batch_size=3), **changes)
    return open_reader(paths, tables=TABLES, config=config)


def keys_of(batches: Any) -> list[list[int]]:
    return [batch.features["ads"].keys_L.tolist() for batch in batches]


def flat(keys: Sequence[Sequence[int]]) -> list[int]:
    return [key for batch in keys for key in batch]


def test_a_pattern_stands_for_its_files_sorted(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, "libsvm")
    (tmp_path / "day-9.libsvm").mkdir()
    assert find_files(tmp_path / "day-*.libsvm") == tuple(paths)
    assert find_files(str(tmp_path / "**" / "day-[02]*")) == (paths[0], paths[2])
    assert find_files([paths[3], f"{tmp_path}/day-?.libsvm"])[:2] == (paths[3], paths[0])
    with pytest.raises(hps.ConfigError, match=r"no file matches .*night-\*"):
        find_files(tmp_path / "night-*")
    odd = tmp_path / "day[0].libsvm"
    odd.write_text("1 5:1\n")
    assert find_files(odd) == (odd,)


@pytest.mark.parametrize("kind", ["libsvm", "parquet"])
def test_a_seed_draws_another_order_for_each_epoch(tmp_path: Path, kind: str) -> None:
    paths = write_numbered(tmp_path, kind)
    raw = {"hash_keys": False}
    reader = open_log(paths, kind, shuffle_files=1, epochs=3, **raw)
    keys = flat(keys_of(reader))
    orders = [[key // 100 for key in keys[first : first + 35 : 7]] for first in (0, 35, 70)]
    assert all(sorted(order) == list(range(NUM_FILES)) for order in orders)
    assert orders == [epoch_order(NUM_FILES, 1, epoch) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    again = flat(keys_of(open_log(paths, kind, shuffle_files=1, epochs=3, **raw)))
    other = flat(keys_of(open_log(paths, kind, shuffle_files=2, epochs=3, **raw)))
    assert keys == again != other and sorted(keys) == sorted(other)
    in_order = flat(keys_of(open_log(paths, kind, **raw)))
    assert in_order == sorted(in_order)


def test_the_order_of_a_seed_never_changes() -> None:
    """Stored positions rely on it."""
    assert epoch_order(6, 7, 0) == [0, 5, 2, 4, 3, 1]
    assert epoch_order(6, 7, 1) == [0, 1, 4, 5, 3, 2]


@pytest.mark.parametrize("kind", ["libsvm", "parquet"])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_position_resumes_exactly_within_a_drawn_order(
    tmp_path: Path, kind: str, depth: int
) -> None:
    paths = write_numbered(tmp_path, kind)
    whole = keys_of(open_log(paths, kind, shuffle_files=1, epochs=2))
    with open_server(tmp_path) as server:
        for stop_at in range(1, len(whole)):
            reader = open_log(paths, kind, shuffle_files=1, epochs=2)
            with hps.Pipeline(reader, server, depth) as batches:
                first = [next(batches).features["ads"].keys_L.tolist() for _ in range(stop_at)]
                next(batches, None)  # the batch before has left no gradient: it is done
                position = batches.state_dict()
            resumed = open_log(paths, kind, shuffle_files=1, epochs=2)
            resumed.load_state_dict(position)
            with hps.Pipeline(resumed, server, depth) as batches:
                rest = keys_of(batches)
            assert first + rest == whole


def test_a_position_of_another_order_is_refused(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, "libsvm")
    reader = open_log(paths, "libsvm", shuffle_files=1)
    next(reader)
    position = reader.state_dict()
    assert position["order"] == epoch_order(NUM_FILES, 1, 0)
    for other in (2, None):
        with pytest.raises(hps.ConfigError, match=f"shuffle_files=1, this reader has {other}"):
            open_log(paths, "libsvm", shuffle_files=other).load_state_dict(position)
    with pytest.raises(hps.ConfigError, match="another version"):
        position["order"] = position["order"][::-1]
        reader.load_state_dict(position)


def test_a_bad_line_is_named_with_its_file_in_a_drawn_order(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, "libsvm")
    last = epoch_order(NUM_FILES, 1, 0)[-1]
    paths[last].write_text("1 5:1\nnonsense\n")
    with pytest.raises(hps.DataError, match=rf"day-{last}\.libsvm, line 2"):
        list(open_log(paths, "libsvm", shuffle_files=1))


def test_training_over_shuffled_files_resumes_to_the_same_bits(tmp_path: Path) -> None:
    for file in range(4):
        write_criteo(tmp_path / f"part-{file}.tsv", 300, seed=file)

    def options(store: str, **changes: Any) -> TrainOptions:
        values: dict[str, Any] = {"data": [tmp_path / "part-*.tsv"], "store": tmp_path / store}
        values |= {"shuffle_files": True, "seed": 3, "epochs": 2, "batch_size": 32, "depth": 2}
        values |= {"dim": 4, "hidden": (8,), "torch_threads": 1, "dram": "4MiB"}
        return TrainOptions(**(values | changes))

    whole = train(options("whole"))
    train(options("parts", limit=900))
    resumed = train(options("parts", resume=True))
    assert whole["examples"] == 2400 and 0 < resumed["examples"] < 1600
    assert resumed["digests"] == whole["digests"]
    assert resumed["loss_digest"] == whole["loss_digest"]
    in_order = train(options("in order", shuffle_files=False))
    assert in_order["loss_digest"] != whole["loss_digest"]
