"""Parts of batches, one a rank: joined they are the batches, wherever the ranks go on."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_twin import (
    LINES,
    TEXT_FORMATS,
    assert_same,
    assert_same_batches,
    examples_of,
    open_log,
    tables_of,
)

import hps
from hps.reader import ReaderConfig

KINDS = (*TEXT_FORMATS, "parquet")


def write_log(folder, kind, lines=None):
    """Two files of ten lines each, the first compressed where the format has that."""
    if kind == "parquet":
        rows = range(20)
        table = pa.table(
            {
                "label": pa.array([row % 2 for row in rows], pa.int8()),
                "score": pa.array([row / 8 for row in rows], pa.float32()),
                "user": pa.array([row % 7 for row in rows], pa.int64()),
                "words": pa.array([[f"w{row % 3}"] * (row % 4) for row in rows]),
            }
        )
        paths = [folder / "a.parquet", folder / "b.parquet"]
        for path, first in zip(paths, (0, 10), strict=True):
            pq.write_table(table.slice(first, 10), path, row_group_size=4)
        return paths
    text = "\r\n\n".join([*(lines or LINES[kind]), ""]).encode()
    paths = [folder / "a.log.gz", folder / "b.log"]
    paths[0].write_bytes(gzip.compress(text))
    paths[1].write_bytes(text.rstrip())
    return paths


def read_parts(paths, kind, size, state=None, **options):
    """The batches of each rank; every one goes on from `state` if there is one."""
    batches = []
    for rank in range(size):
        reader = open_log(paths, kind, part=(rank, size), **options)
        if state is not None:
            reader.load_state_dict(state)
        batches.append(list(reader))
    return batches


def assert_parts_join(whole, of_ranks, features):
    for number, batch in enumerate(whole):
        parts = [batches[number] for batches in of_ranks]
        assert [part.position for part in parts] == [batch.position] * len(parts)
        assert [part.global_size for part in parts] == [len(batch)] * len(parts)
        sizes = [len(part) for part in parts]
        assert sum(sizes) == len(batch) and max(sizes) - min(sizes) <= 1
        examples = [example for part in parts for example in examples_of([part], features)]
        assert_same(examples, examples_of([batch], features))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "batch_size"), [(1, 3), (2, 3), (3, 8), (4, 6), (5, 3), (3, 64)])
def test_parts_of_a_batch_joined_are_the_batch(tmp_path, kind, size, batch_size):
    """20 examples: the last batch of an epoch is smaller, and with (5, 3) ranks have none of it."""
    paths = write_log(tmp_path, kind)
    options = {"batch_size": batch_size, "epochs": 2}
    reader = open_log(paths, kind, **options)
    whole = list(reader)
    assert sum(map(len, whole)) == 40
    assert_parts_join(whole, read_parts(paths, kind, size, **options), reader.features)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_goes_on_from_a_position(tmp_path, kind):
    paths = write_log(tmp_path, kind)
    options = {"batch_size": 3, "epochs": 2}
    whole = list(open_log(paths, kind, **options))
    for number, size in ((0, 2), (3, 1), (5, 4), (6, 3)):
        state = read_parts(paths, kind, 3, **options)[2][number].position
        of_ranks = read_parts(paths, kind, size, state, **options)
        features = open_log(paths, kind).features
        assert_parts_join(whole[number + 1 :], of_ranks, features)
    assert_same_batches(read_parts(paths, kind, 1, state, **options)[0], whole[number + 1 :])


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_batch_that_is_dropped_is_dropped_on_every_rank(tmp_path, kind):
    paths = write_log(tmp_path, kind)
    options = {"batch_size": 6, "epochs": 2, "drop_last": True}
    reader = open_log(paths, kind, **options)
    whole = list(reader)
    assert [len(batch) for batch in whole] == [6] * 6
    assert_parts_join(whole, read_parts(paths, kind, 4, **options), reader.features)


@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_a_bad_line_is_found_by_the_rank_whose_it_is(tmp_path, kind):
    lines = list(LINES[kind])
    # Named features: those that are not are looked for in all of the log, by every rank.
    tables = tables_of(open_log(write_log(tmp_path, kind), kind).features["t0"])
    lines[4] = "2 nonsense"
    paths = write_log(tmp_path, kind, lines)
    # Batches of six: the bad line is the fifth of them, rank 2's of three, where every other line
    # is blank; it is the ninth of the file.
    for rank in range(3):
        reader = open_log(paths, kind, batch_size=6, part=(rank, 3), tables=tables)
        if rank == 2:
            with pytest.raises(
                hps.errors.DataError, match=r"a\.log\.gz, line 9: .*correct the line"
            ):
                next(reader)
        else:
            assert len(next(reader)) == 2


@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_skipped_lines_are_counted_by_every_rank(tmp_path, kind):
    """Which line is whose depends on those that were skipped before it."""
    lines = list(LINES[kind])
    lines[1] = lines[7] = "2 nonsense"
    paths = write_log(tmp_path, kind, lines)
    options = {"batch_size": 5, "on_error": "skip"}
    reader = open_log(paths, kind, **options)
    whole = list(reader)
    assert sum(map(len, whole)) == 16 and reader.counts.skipped == 4
    assert_parts_join(whole, read_parts(paths, kind, 2, **options), reader.features)


def test_a_part_that_cannot_be_is_refused():
    for part in ((2, 2), (-1, 2), (0, 0), (0,), "01", (0.0, 1)):
        with pytest.raises(hps.ConfigError, match="part"):
            ReaderConfig(format="criteo", part=part)
