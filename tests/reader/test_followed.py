"""A folder that logs are added to: each file once, none unseen, and the batches of the whole log.

Above it: pytest. Below it: hps/reader/followed.py, the readers.
"""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import hps
from hps.errors import ConfigError, DataError, StoreError
from hps.reader import Reader, ReaderConfig, open_reader
from hps.reader.followed import FollowedFolder, joined
from hps.reader.position import Block, Position
from hps.reader.position_files import PositionFiles
from hps.train.model_list import _files_of
from hps.train.periods import begun_files
from tests.reader.reader_twin import assert_same_batches

SIZES = (23, 0, 1, 40, 16)
TABLES = [hps.TableConfig(name="ads", dim=4)]


def write(folder: Path, name: str, text: str = "1 7:1\n") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def names(files: list[Any]) -> list[str]:
    return [file.name for file in files]


def test_files_come_once_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", "_SUCCESS", "c.tmp", "d.part"):
        write(tmp_path, name)
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    folder = FollowedFolder(tmp_path)
    assert names(folder.look()) == ["a", "b"] and folder.look() == []
    told = "\n".join(folder.take_notes())
    assert ".hidden and 3 more passed over, as files whose names begin with . or _" in told
    assert "passes over 'sub', which is a folder" in told and "'pipe'" in told
    write(tmp_path, "e")
    (tmp_path / "c.tmp").rename(tmp_path / "c")
    assert names(folder.look()) == ["c", "e"]
    assert folder.take_notes() == [] and folder.num_files == 4


def test_a_file_that_would_be_left_out_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "log-9")
    folder = FollowedFolder(tmp_path)
    folder.look()
    write(tmp_path, "log-10")
    with pytest.raises(ConfigError, match=r"log-10 has come after log-9, .* Rename it .*--resume"):
        folder.look()


def test_a_file_that_has_changed_is_refused_and_one_that_is_gone_is_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path, name)
    folder = FollowedFolder(tmp_path)
    folder.look()
    (tmp_path / "a").unlink()
    os.utime(tmp_path / "c", ns=(1, 1))
    assert folder.look() == []
    told = folder.take_notes()
    assert "c was written again after it was read" in told[0] and ": a can be read no" in told[1]
    assert folder.look() == [] and folder.take_notes() == []
    write(tmp_path, "a", "1 7:1\n1 8:1\n")  # it is back, and another one
    with pytest.raises(StoreError, match=r"a had 6 bytes when it was read, and has 12 now"):
        folder.look()


def test_a_listing_that_missed_an_earlier_file_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is listed while files come may show the later one alone."""
    folder = FollowedFolder(tmp_path)
    write(tmp_path, "a")
    write(tmp_path, "b")
    files = folder._folder.files
    listings: Iterator[str] = iter(["a"])

    def partial() -> Any:
        found, others = files()
        found.pop(next(listings, ""), None)
        return found, others

    monkeypatch.setattr(folder._folder, "files", partial)
    assert names(folder.look()) == ["a", "b"]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot list the folder .*none: No such file"):
        FollowedFolder(tmp_path / "none")
    with pytest.raises(StoreError, match="Not a directory"):
        FollowedFolder(write(tmp_path, "file"))
    with pytest.raises(ConfigError, match="a web server does not list"):
        FollowedFolder("https://host/logs")


def test_a_folder_behind_a_url_is_followed() -> None:
    url = "memory://followed/logs"
    folder = FollowedFolder(url)
    assert folder.look() == []
    for name in ("b", "a", "c.tmp", "sub/d"):
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(b"1 7:1\n")
    found = folder.look()
    assert names(found) == ["a", "b"] and str(found[0]) == f"{url}/a"
    assert found[0].stat().st_size == 6
    with fsspec.open(f"{url}/b", "wb") as file:
        file.write(b"1 7:1\n1 8:1\n")
    with pytest.raises(StoreError, match="b had 6 bytes"):
        folder.look()


@pytest.mark.parametrize(
    ("there", "position", "reason"),
    [
        ([["a", 5], ["b", 6], ["aa", 1]], Position(file=1), "aa has come after b"),
        ([["a", 5], ["b", 7]], Position(file=1), "b had 6 bytes"),
        ([["a", 5]], Position(file=1, offset=6), "b is gone, and the position is in it"),
        ([["b", 6]], Position(file=0, offset=3), "a is gone, and the position is in it"),
        ([["b", 6]], Position(block=Block(1, 9, 1, 3)), "a is gone, and the position is in it"),
        ([["a", 5], ["b", 7]], Position(block=Block(1, 9, 1, 3)), "b had 6 bytes"),
        ([["a", 5], ["b", 6]], Position(epoch=1, file=1, offset=3), "within epoch 2"),
    ],
)
def test_a_position_is_refused_where_examples_would_be_left_out(
    there: list[list[Any]], position: Position, reason: str
) -> None:
    with pytest.raises((ConfigError, StoreError), match=reason):
        joined(PositionFiles([["a", 5], ["b", 6]]), sorted(there), position)


def test_a_file_that_was_not_begun_may_have_been_repaired_or_taken_away() -> None:
    stored: list[list[Any]] = [["a", 5], ["c", 6], ["d", 7]]
    found = joined(PositionFiles(stored), [["a", 5], ["b", 1], ["c", 9]], Position(offset=3))
    assert found.files == [["a", 5], ["b", 1], ["c", 9]]
    found = joined(PositionFiles(stored), [["c", 6], ["e", 9]], Position(file=1, offset=3))
    assert found.files == [["a", 5], ["c", 6], ["e", 9]]


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ([["a", 1], ["b", 6], ["c", 7]], "a has come after c, .*; or it is one of the 2 .* put"),
        ([["b", 9], ["c", 7]], "b had 6 bytes"),
        ([["b", 6]], "c is gone, and the position is in it"),
        ([["b", 6], ["c", 8]], "c had 7 bytes"),
    ],
)
def test_files_that_were_read_and_are_gone_are_known_by_their_number_alone(
    there: list[list[Any]], reason: str
) -> None:
    before = PositionFiles([["c", 7], ["d", 8]], 3, [["b", 6]])
    assert joined(before, [["b", 6], ["c", 7], ["e", 1]], Position(file=3)).files == [
        ["c", 7],
        ["e", 1],
    ]
    at_end = joined(before, [["c", 7], ["d", 8], ["e", 1]], Position(epoch=1))
    assert at_end.position.file == 5 and at_end.files[-1] == ["e", 1]
    with pytest.raises((ConfigError, StoreError), match=reason):
        joined(before, there, Position(file=3, offset=1))


def test_what_is_gone_is_left_out_of_the_next_position(tmp_path: Path) -> None:
    paths = [write(tmp_path, name) for name in "abc"]
    reader = open_reader(paths, tables=TABLES, config=ReaderConfig(format="libsvm", threads=1))
    reader.follow()
    reader.load_state_dict(reader.state_dict() | {"file": 1})
    assert [name for name, _ in reader.state_dict()["files"]] == ["a", "b", "c"]
    reader.note_gone({"a", "b"})
    left = {"first": 1, "read": [], "files": [["b", 6], ["c", 6]]}
    assert reader.state_dict()["files"] == left
    state = reader.state_dict() | {"epoch": 1, "file": 0}
    assert begun_files([["z", 1]], state) == [["z", 1], ["b", 6], ["c", 6]]
    state["files"] = {"first": 2, "read": [["a", 6]], "files": [["c", 6]]}
    assert begun_files([], state) == [["a", 6], ["c", 6]]
    assert [one["name"] for one in _files_of(state)] == ["a", "c"]


def test_the_files_of_a_position_are_checked() -> None:
    for wrong in (None, [["a"]], {"first": 0, "read": [["a", 1]], "files": []}, {"first": "1"}):
        with pytest.raises(ConfigError, match="the position's files"):
            PositionFiles.of(wrong)


def test_a_bad_line_is_told_of_its_file_where_others_are_left_out(tmp_path: Path) -> None:
    good, bad = write(tmp_path, "c"), write(tmp_path, "d", "1 7:1\nx\n")
    reader = open_reader([good], tables=TABLES, config=ReaderConfig(format="libsvm", threads=1))
    files = {"first": 2, "read": [], "files": [["c", 6]]}
    state = reader.state_dict() | {"file": 2, "files": files}
    reader.follow()
    reader.extend([bad])
    reader.load_state_dict(state)
    with pytest.raises(DataError, match=f"{bad}, line 2"):
        list(reader)


def test_a_position_in_other_files_is_refused() -> None:
    with pytest.raises(ConfigError, match="not in the order of their names"):
        joined(PositionFiles([["b", 5], ["a", 6]]), [["a", 6], ["b", 5]], Position())


def lines_of(kind: str) -> Callable[[int], str]:
    def line(number: int) -> str:
        label = number % 2
        if kind == "criteo":
            return "\t".join([str(label), *["3"] * 13, *[f"{number % 9:x}"] * 26])
        return f"{label} {number}:0.5 7:1"

    return line


def write_logs(kind: str, folder: Path) -> list[Path]:
    """A file a size; some are packed, and one has no line end at its end."""
    paths, number = [], 0
    for place, size in enumerate(SIZES):
        numbers = range(number, number + size)
        number += size
        path = folder / f"{place}.{kind}"
        if kind in ("parquet", "csv"):
            table = pa.table(
                {
                    "label": pa.array([one % 2 for one in numbers], pa.int64()),
                    "C1": pa.array([one % 9 for one in numbers], pa.int64()),
                    "x": pa.array([one / 4 for one in numbers], pa.float64()),
                }
            )
            pq.write_table(table, path) if kind == "parquet" else pa_csv.write_csv(table, path)
        else:
            text = "\n".join(map(lines_of(kind), numbers))
            text += "\n" if place != 2 else ""
            if place == 3:
                path = path.with_suffix(f".{kind}.gz")
                path.write_bytes(gzip.compress(text.encode()))
            else:
                path.write_text(text if size else "")
        paths.append(path)
    return paths


@pytest.mark.parametrize("shuffle", [{}, {"shuffle_buffer": 24, "shuffle_seed": 3}])
@pytest.mark.parametrize("kind", ["criteo", "libsvm", "parquet", "csv"])
def test_a_followed_log_has_the_batches_of_the_whole_one(
    kind: str, shuffle: dict[str, Any], tmp_path: Path
) -> None:
    paths = write_logs(kind, tmp_path)
    config = ReaderConfig(format=kind, batch_size=8, threads=1, **shuffle)

    def opened(files: list[Path]) -> Reader:
        return open_reader(files, tables=TABLES, config=config)

    whole = opened(paths)
    expected = list(whole)
    end = whole.state_dict()
    follower = opened(paths[:1])
    follower.follow()
    found, coming = [], paths[1:]
    while True:
        found += list(follower)
        if not follower.is_dry:
            break
        stored = follower.state_dict()
        if coming:
            follower.extend([coming.pop(0)])
            if len(coming) % 2:  # another process goes on
                follower = opened([path for path in paths if path not in coming])
                follower.follow()
                follower.load_state_dict(stored)
        else:
            follower.end()
    for one, other in zip(found, expected, strict=True):
        assert other.position["files"][: len(one.position["files"])] == one.position["files"]
        one.position["files"] = other.position["files"]
    assert_same_batches(found, expected)
    assert follower.state_dict() == end


def test_a_log_that_is_read_several_times_cannot_be_followed(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    for more in ({"epochs": 2}, {"shuffle_files": 3}):
        config = ReaderConfig(format="libsvm", **more)
        with pytest.raises(ConfigError, match=r"Reader\.follow: .* is read once"):
            open_reader(path, tables=TABLES, config=config).follow()
