"""The commands that look into a store and keep it tidy; how the command line ends in errors."""

import dataclasses
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import hps
from hps.cli.main import COMMANDS, main
from hps.service.messages.status import refusal_of

TABLE = hps.TableConfig(
    name="ads", dim=3, optimizer=hps.Adam(lr=0.1), features=["C1"], initializer=hps.Uniform()
)
KEYS = np.array([0, 2**63, 2**64 - 1, *range(1, 500)], np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one table, in two checkpoints."""
    path = tmp_path / "store"
    dram = hps.DramCacheConfig(bytes="4MiB")
    config = hps.Config(path=path, tables=[TABLE], dram=dram, seed=7)
    with hps.ParameterServer(config) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint("day-1")
        server.push("ads", KEYS[:9], np.ones((9, 3), np.float32))
    return path


def digest(path: Path, **options: str) -> str:
    with hps.open(path, **options) as server:
        return str(server.digest("ads"))


def test_stats_prints_rows_and_writes_json(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stats.json"
    assert main(["stats", str(store), "--digest", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "ads" in text and "502" in text and "adam" in text
    figures = json.loads(out.read_text())
    assert figures["tables"]["ads"]["rows"] == 502
    assert figures["tables"]["ads"]["digest"] == digest(store)
    assert main(["stats", str(store), "--checkpoint", "day-1", "--json", str(out)]) == 0
    assert len(json.loads(out.read_text())["checkpoints"]) == 2


def test_verify_says_that_a_store_without_a_checkpoint_has_no_rows_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model"
    server = hps.ParameterServer(hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=3)]))
    server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
    server.close()
    assert main(["verify", str(path)]) == 0
    assert "no checkpoint yet, so there was no row to check" in capsys.readouterr().out
    with hps.open(path, read_only=False) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint("day-1")
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: every checksum holds\n"


def test_verify_names_a_damaged_file(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store)]) == 0
    largest = max((path for path in store.rglob("*") if path.is_file()), key=_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert main(["verify", str(store)]) == 1
    captured = capsys.readouterr()
    assert largest.name in captured.out and captured.err.startswith("hps: error: ")


def _size(path: Path) -> int:
    return path.stat().st_size


def test_checkpoints_lists_and_deletes(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(store)]) == 0
    text = capsys.readouterr().out
    assert "day-1" in text and "last" in text
    with hps.open(store) as server:
        kept = server.checkpoints()
    for info in kept:
        (told,) = re.findall(rf"id {info['id']}, created (\S+),", text)
        assert abs(datetime.fromisoformat(told).timestamp() - info["created"]) <= 1
        assert told.endswith("+00:00")
    assert main(["checkpoints", str(store), "--delete", "day-1"]) == 0
    assert capsys.readouterr().out.startswith("deleted day-1; freed ")
    assert main(["checkpoints", str(store)]) == 0
    assert "day-1" not in capsys.readouterr().out
    assert main(["checkpoints", str(store), "--delete", "day-1"]) == 1
    assert "day-1" in capsys.readouterr().err


def files_bytes(path: Path, but: str = "-") -> int:
    """Without files whose names begin with `but`; each once, however many names it has."""
    found = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(but)]
    return sum({file.stat().st_ino: _size(file) for file in found}.values())


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_deleting_a_checkpoint_says_what_it_freed_and_what_compaction_frees_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path, out = tmp_path / "store", tmp_path / "out.json"
    ssd = hps.SsdStoreConfig(engine=engine, compaction_threshold=0.99)
    dram = hps.DramCacheConfig(bytes="4MiB")
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram, ssd=ssd)) as server:
        for day in range(3):  # the first day's rows are overwritten whole, those of the second half
            keys = np.arange(5000 if day < 2 else 2500, dtype=np.uint64)
            server.push("ads", keys, np.full((len(keys), 3), day + 1, np.float32))
            server.checkpoint(f"day-{day}")

    def delete(tag: str) -> tuple[int, int, str]:
        before = files_bytes(path)
        assert main(["checkpoints", str(path), "--delete", tag, "--json", str(out)]) == 0
        figures = json.loads(out.read_text())
        assert figures["deleted"] == tag and figures["readers"] == []
        assert abs(before - files_bytes(path) - figures["bytes_freed"]) < 20_000, "the index"
        return figures["bytes_freed"], figures["bytes_dead"], capsys.readouterr().out

    first, second = delete("day-0"), delete("day-1")
    if engine == "segments":
        freed, dead, text = first
        assert freed > 5000 * 3 * 4 and text == f"deleted day-0; freed {freed:,} bytes\n"
        assert dead == 0, "day-1 holds the overwritten rows"
        freed, dead, text = second
        assert freed == 0 and "deleted day-1; freed 0 bytes: the current rows" in text
        assert dead > 2500 * 3 * 4
        assert text.endswith(f"'hps compact {path}' frees about {dead:,} bytes more\n")
        before = files_bytes(path)
        assert main(["compact", str(path)]) == 0
        assert before - files_bytes(path) == pytest.approx(dead, abs=20_000), "the index"
        assert main(["stats", str(path), "--json", str(out)]) == 0
        numbers = json.loads(out.read_text())["ssd_store"]
        assert numbers["segment_bytes"] - numbers["live_bytes"] < 0.01 * numbers["live_bytes"]
    else:
        assert first[1] == 0, "day-1 holds the overwritten rows"
        assert main(["compact", str(path), "--dry-run"]) == 0
        assert f"frees {second[1]:,} bytes" in capsys.readouterr().out


def test_compaction_frees_the_files_of_a_current_checkpoint_that_was_deleted(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(store)
    for tag in ("day-1", "last"):
        assert main(["checkpoints", str(store), "--delete", tag]) == 0
    assert main(["checkpoints", str(store)]) == 0
    assert "keeps no checkpoint" in capsys.readouterr().out
    assert main(["compact", str(store)]) == 0
    sizes = re.findall(r": ([\d,]+) bytes", capsys.readouterr().out)
    first, last = (int(size.replace(",", "")) for size in sizes)
    assert last < first
    assert digest(store) == before


def test_compaction_pushes_out_no_checkpoint_and_makes_none_where_nothing_was_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two untagged ones are kept, so a third would cost the user the older of them."""
    path, dram = tmp_path / "store", hps.DramCacheConfig(bytes="4MiB")

    def listed() -> list[tuple[str | None, int]]:
        with hps.open(path) as server:
            return [(info["tag"], info["rows"]) for info in server.checkpoints()]

    hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram)).close()
    assert main(["compact", str(path)]) == 0 and listed() == []
    with hps.open(path, read_only=False) as server:
        for tag, count in ((None, 100), (None, 200), ("final", 300)):
            server.push("ads", KEYS[:count], np.ones((count, 3), np.float32))
            server.checkpoint(tag, reader={"position": "x" * (20_000 if tag else 1)})
    before = digest(path)
    assert main(["checkpoints", str(path), "--delete", "final"]) == 0
    assert listed() == [(None, 100), (None, 200)]
    capsys.readouterr()
    for is_made in (True, False):
        assert main(["compact", str(path)]) == 0
        assert listed() == [(None, 100), (None, 200), (".compacted", 300)]
        text = capsys.readouterr().out
        assert ("checkpoint '.compacted' holds the current rows" in text) == is_made
    assert digest(path) == before


def test_compaction_promises_no_bytes_of_a_model_that_its_checkpoint_takes_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, dram, out = tmp_path / "store", hps.DramCacheConfig(bytes="4MiB"), tmp_path / "out.json"
    model = {"weights": "x" * 50_000}
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram)) as server:
        server.push("ads", KEYS, np.ones((len(KEYS), 3), np.float32))
        server.checkpoint("final", model=model, reader={"step": 1})
    assert main(["checkpoints", str(path), "--delete", "final", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["bytes_dead"] == 0
    before = files_bytes(path)
    for words in (["--dry-run"], []):
        assert main(["compact", str(path), *words]) == 0
        assert "nothing to free; nothing was done" in capsys.readouterr().out
    assert files_bytes(path) == before
    with hps.open(path) as server:
        assert server.checkpoint_state() == (model, {"step": 1})


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_compaction_makes_no_store_larger_whatever_was_pushed_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    ssd = hps.SsdStoreConfig(engine=engine, compaction_threshold=0.99)
    dram, num_smaller = hps.DramCacheConfig(bytes="4MiB"), 0
    other = dataclasses.replace(TABLE, name="other", features=["C2"])
    for seed in range(12):
        generator = random.Random(seed)
        path = tmp_path / f"store-{seed}"
        config = hps.Config(path=path, tables=[TABLE, other], dram=dram, ssd=ssd)
        with hps.ParameterServer(config) as server:
            for number in range(generator.randint(1, 4)):
                for table in ("ads", "other"):
                    first, count = generator.randrange(3000), generator.randrange(1, 3000)
                    keys = np.arange(first, first + count, generator.randint(1, 3), np.uint64)
                    server.push(table, keys, np.ones((len(keys), 3), np.float32))
                    if generator.random() < 0.3:
                        server.erase(table, keys[::2])
                position = "x" * generator.choice([1, 50_000])
                tag = generator.choice([None, f"step-{number}"])
                server.checkpoint(tag, reader={"position": position})
            for info in server.checkpoints():
                if generator.random() < (0.6 if info["current"] else 0.4):
                    server.delete_checkpoint(info["id"])
            rows = server.digest("ads"), server.digest("other")
        for words in (["--table", "other"], [], []):
            before = files_bytes(path, but="index-")
            assert main(["compact", str(path), *words]) == 0
            after = files_bytes(path, but="index-")
            said = capsys.readouterr().out
            # RocksDB compacts by itself once it is open; checkpoints keep the old files.
            slack = 1200 if engine == "segments" else before // 2
            assert after <= before + slack, (seed, before, after, said)
            if engine == "segments":
                assert "nothing was done" not in said or after == before, (seed, said)
            num_smaller += after < before - 1200
        assert "nothing to free; nothing was done" in said, "it has been compacted"
        with hps.open(path) as server:
            assert (server.digest("ads"), server.digest("other")) == rows
    assert num_smaller > (3 if engine == "segments" else 0)


def test_export_and_import_make_an_equal_store(store: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "rows.parquet", tmp_path / "copy"
    assert main(["export", str(store), str(file)]) == 0
    assert pyarrow.parquet.read_table(file).num_rows == 502
    assert main(["import", str(file), str(copy)]) == 0
    assert digest(copy) == digest(store)
    with hps.open(copy) as server:
        assert server.tables["ads"] == TABLE and server.config.seed == 7
    assert main(["export", str(store), str(file), "--checkpoint", "day-1"]) == 0
    assert main(["import", str(file), str(copy)]) == 0
    assert digest(copy) == digest(store, checkpoint="day-1")


def test_an_export_replaces_a_file_and_nothing_else(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As root it could replace /dev/null, which the whole machine needs."""
    pipe, folder, file = (tmp_path / name for name in ("pipe", "folder", "rows.parquet"))
    os.mkfifo(pipe)
    folder.mkdir()
    for target, what in ((pipe, "a device or a pipe"), (folder, "a folder")):
        assert main(["export", str(store), str(target)]) == 1
        assert f"{target} is {what}" in capsys.readouterr().err
    assert pipe.is_fifo() and folder.is_dir()
    file.write_text("an older one")
    link, lonely = tmp_path / "stdout", tmp_path / "lonely"  # as /dev/stdout leads to a file
    link.symlink_to(file)
    lonely.symlink_to("no/such/folder")
    assert main(["export", str(store), str(link)]) == 0 and link.readlink() == file
    assert main(["export", str(store), str(lonely)]) == 1 and lonely.is_symlink()
    assert pyarrow.parquet.read_table(file).num_rows == 502
    assert not list(tmp_path.glob("*.partial"))


def test_an_export_that_fails_leaves_nothing_behind(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise hps.StoreError("the disk is gone")

    monkeypatch.setattr(hps.ParameterServer, "items", break_off)
    assert main(["export", str(store), str(tmp_path / "rows.parquet")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_import_without_state_starts_it_anew(store: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "rows.parquet", tmp_path / "copy"
    assert main(["export", str(store), str(file), "--no-state"]) == 0
    assert "state" not in pyarrow.parquet.read_schema(file).names
    assert main(["import", str(file), str(copy)]) == 0
    with hps.open(copy) as ours, hps.open(store) as theirs:
        keys = np.sort(KEYS)
        np.testing.assert_array_equal(ours.pull("ads", keys), theirs.pull("ads", keys))
        for _, _, state in ours.items("ads", state=True):
            assert not state.any()


@pytest.mark.parametrize("fault", ["null key", "null weight", "damaged page", "cut short"])
def test_an_import_that_fails_is_one_line_and_changes_no_row(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """The fault is behind the first piece, whose rows must not be assigned either."""
    file = tmp_path / "rows.parquet"
    count, place = 150_000, 149_000
    keys = [None if fault == "null key" and i == place else i for i in range(count)]
    values = np.arange(3 * count, dtype=np.float32).tolist()
    if fault == "null weight":
        values[3 * place] = None
    weights = pyarrow.array(values, pyarrow.float32())
    columns = {
        "key": pyarrow.array(keys, pyarrow.uint64()),
        "weights": pyarrow.FixedSizeListArray.from_arrays(weights, 3),
    }
    pyarrow.parquet.write_table(
        pyarrow.table(columns), file, row_group_size=50_000, use_dictionary=False
    )
    data = bytearray(file.read_bytes())
    if fault == "damaged page":  # of the last group, the header of a page
        found = pyarrow.parquet.read_metadata(file).row_group(2).column(0)
        data[found.data_page_offset : found.data_page_offset + 16] = b"\xff" * 16
        file.write_bytes(data)
    if fault == "cut short":
        file.write_bytes(data[: len(data) // 2])
    before = digest(store)
    assert main(["import", str(file), str(store), "--dram", "8MiB"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"hps: error: {file}") and said.count("\n") == 1, said
    assert digest(store) == before


def test_of_a_key_that_is_twice_in_a_file_the_last_row_counts_and_others_stay(
    store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    rows = pyarrow.array([1, 2, 3, 4, 5, 6], pyarrow.float32())
    columns = {
        "key": pyarrow.array([2**63, 2**63], pyarrow.uint64()),
        "weights": pyarrow.FixedSizeListArray.from_arrays(rows, 3),
        "other": ["passed", "over"],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    with hps.open(store) as server:
        before = server.pull("ads", KEYS)
    assert main(["import", str(file), str(store)]) == 0
    with hps.open(store) as server:
        after = server.pull("ads", KEYS)
    changed = np.flatnonzero((before != after).any(axis=1))
    assert KEYS[changed].tolist() == [2**63] and after[changed[0]].tolist() == [4, 5, 6]


def test_import_refuses_what_does_not_fit(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.parquet"
    assert main(["export", str(store), str(file)]) == 0
    other = tmp_path / "other"
    tables = [
        hps.TableConfig(name="ads", dim=3, optimizer=hps.Adagrad(), features=["C1"]),
        hps.TableConfig(name="wide", dim=5, optimizer=hps.Adam(), features=["C2"]),
    ]
    with hps.ParameterServer(hps.Config(path=other, tables=tables)) as server:
        server.checkpoint()
    plain = tmp_path / "plain.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"key": [1]}), plain)
    refused = {
        "'adagrad'.*--no-state": ["import", str(file), str(other)],
        "weights.*float.*5": ["import", str(file), str(other), "--table", "wide"],
        "--table: there is no table 'nope'": ["import", str(file), str(other), "--table", "nope"],
        "does not describe": ["import", str(plain), str(tmp_path / "new")],
        "--table: the store has several tables; name one of .*ads.*wide": [
            "export",
            str(other),
            str(file),
        ],
        "cannot be read as parquet": ["import", str(Path(__file__)), str(other)],
        "store": ["stats", str(tmp_path / "nowhere")],
        "nowhere": ["export", str(store), str(tmp_path / "nowhere" / "rows")],
        "day-7": ["stats", str(store), "--checkpoint", "day-7"],
    }
    for message, words in refused.items():
        capsys.readouterr()
        assert main(words) == 1, words
        error = capsys.readouterr().err
        assert error.startswith("hps: error: ") and error.count("\n") == 1
        assert re.search(message, error), (message, error)
    assert main(["import", str(file), str(other), "--no-state"]) == 0


def test_usage_errors_end_with_2_and_help_lists_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ([], ["nope"], ["stats"], ["stats", "a", "--nope"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_python_m_hps_runs_without_torch(store: Path) -> None:
    """The commands that look into a store need none of the training extra."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hps.cli.main import main\n"
        f"sys.exit(main(['stats', {str(store)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "hps", "stats", str(store / "no")], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.startswith("hps: error: ")


def test_compact_prints_the_bytes_before_and_after(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(store)
    with hps.open(store) as server:
        blobs = server.checkpoint_state()
    assert main(["checkpoints", str(store), "--delete", "day-1"]) == 0
    sizes = []
    for words in ([], [], ["--table", "ads"]):
        capsys.readouterr()
        assert main(["compact", str(store), *words]) == 0
        printed = re.findall(r"([0-9,]+) bytes (before|after)", capsys.readouterr().out)
        sizes += [int(number.replace(",", "")) for number, _ in printed]
    first, *rest = sizes
    assert len(sizes) == 6 and len(set(rest)) == 1 and rest[0] < first
    on_disk = [_size(path) for kind in ("segment", "extra") for path in store.glob(f"{kind}-*")]
    assert sum(on_disk) == rest[0]
    assert digest(store) == before and main(["verify", str(store)]) == 0
    with hps.open(store) as server:
        assert server.checkpoint_state() == blobs
    assert main(["compact", str(store), "--table", "nope"]) == 1
    assert "nope" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["stats", str(store)]) == 0
    text = capsys.readouterr().out
    assert "bytes_compacted" in text and re.search(r"write_amplification: [12]\.", text)


def test_an_id_names_a_checkpoint(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hps.open(store) as server:
        ids = {entry["tag"]: entry["id"] for entry in server.checkpoints()}
    assert main(["stats", str(store), "--checkpoint", f"id:{ids['day-1']}", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tables"]["ads"]["rows"] == len(KEYS)
    assert "row bytes" in captured.err
    assert main(["checkpoints", str(store), "--json", "-"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 2 and all(isinstance(info["created"], float) for info in listed)
    assert main(["checkpoints", str(store), "--delete", f"id:{ids['day-1']}"]) == 0
    with hps.open(store) as server:
        assert [entry["tag"] for entry in server.checkpoints()] == ["last"]
    assert main(["checkpoints", str(store), "--delete", f"id:{ids['day-1']}"]) == 1
    assert f"no checkpoint {ids['day-1']};" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_compact_says_what_it_needs_and_does_nothing_for_nothing(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a kept checkpoint holds would be rewritten and kept: the store would only grow."""
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path, keys = tmp_path / "store", np.arange(20_000, dtype=np.uint64)
    ssd = hps.SsdStoreConfig(engine=engine, compaction_threshold=0.99)
    dram = hps.DramCacheConfig(bytes="4MiB")
    with hps.ParameterServer(hps.Config(path=path, tables=[TABLE], dram=dram, ssd=ssd)) as server:
        for tag, step in (("day-1", 1), ("day-2", 2)):
            server.push("ads", keys[::step], np.ones((len(keys[::step]), 3), np.float32))
            server.checkpoint(tag)

    def files() -> dict[Path, int]:
        kinds = {".sst"} if engine == "rocksdb" else {""}
        found = (file for file in path.rglob("*") if file.is_file() and file.suffix in kinds)
        names = {file: file.stat().st_ino for file in found}
        return {file: inode for file, inode in names.items() if "index-" not in file.name}

    before, rows = files(), digest(path)
    for words in (["--dry-run"], []):
        assert main(["compact", str(path), *words]) == 0
        text = capsys.readouterr().out
        assert "nothing to free; nothing was done" in text
        assert "are held by checkpoints (day-1): 'hps checkpoints" in text and "--delete" in text
    assert {*files().values()} == {*before.values()}
    assert main(["checkpoints", str(path), "--delete", "day-1"]) == 0
    capsys.readouterr()
    assert main(["compact", str(path), "--dry-run"]) == 0
    promised = _numbers(r"needs ([\d,]+) bytes of room and frees ([\d,]+) bytes", capsys)
    assert main(["compact", str(path)]) == 0
    text = capsys.readouterr().out
    first, last = (int(size.replace(",", "")) for size in re.findall(r": ([\d,]+) bytes", text))
    assert promised[0] > 0 and first > last
    if engine == "segments":
        assert first - last == pytest.approx(promised[1], rel=0.01)
    assert main(["compact", str(path)]) == 0
    assert "nothing to free; nothing was done" in capsys.readouterr().out
    assert digest(path) == rows


def _numbers(pattern: str, capsys: pytest.CaptureFixture[str]) -> list[int]:
    found = re.search(pattern, capsys.readouterr().out)
    assert found is not None
    return [int(number.replace(",", "")) for number in found.groups()]


def test_compact_refuses_a_disk_without_the_room_before_it_begins(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["checkpoints", str(store), "--delete", "day-1"]) == 0
    usage = shutil.disk_usage(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    before = {file: file.stat().st_size for file in store.glob("segment-*")}
    assert main(["compact", str(store)]) == 1
    error = capsys.readouterr().err
    assert "bytes of room and its disk has 10; make space, delete a checkpoint" in error
    assert {file: file.stat().st_size for file in store.glob("segment-*")} == before


def test_a_full_disk_tells_each_caller_what_it_can_do(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "cannot write segment-3: No space left on device; nothing stored was lost: free space"

    def fail(*_: object, **__: object) -> int:
        raise hps.StoreError(errno.ENOSPC, f"{text} and repeat the call")

    monkeypatch.setattr("hps.train.train", fail)
    log = store.parent / "log.tsv"
    log.write_text("1\t" + "\t" * 38 + "\n")
    for folder, advice in (
        (store, "with --resume it goes on from checkpoint 'last'"),
        (store.parent / "none", "with --resume it goes on from the newest checkpoint"),
    ):
        assert main(["train", str(log), "--store", str(folder)]) == 1
        assert capsys.readouterr().err.endswith(f"{text} and repeat the command; {advice}\n")
    with hps.open(store, read_only=False) as server:
        server.restore("day-1")  # as --resume-from does
    assert main(["train", str(log), "--store", str(store)]) == 1
    assert "with --resume it goes on from checkpoint 'day-1'\n" in capsys.readouterr().err
    refusal = refusal_of(hps.StoreError(errno.ENOSPC, f"{text} and repeat the call"))
    assert refusal is not None and "repeat the call" not in str(refusal)
    assert "free space on the server's disk" in str(refusal)
    monkeypatch.setattr("hps.cli.store_commands.open_store", fail)
    assert main(["checkpoints", str(store)]) == 1
    assert capsys.readouterr().err.endswith(f"{text} and repeat the command\n")
