"""What rows that are followed take in memory, and where they are when a process starts again.

Above it: pytest. Below it: PublishedRows. With memory for all rows they lie there alone, and files
of versions are what another process begins with; with less they go down into the store, which then
takes checkpoints.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.publish import fetch
from hps.publish.destination import Destination, open_destination
from hps.publish.version import StoredFile, chain_of
from hps.train.published_rows import PublishedRows, RowMemory
from tests.publish.publish_lab import a_server, a_table, keys_of, push, rows_of

MANY = 120_000
# Of the bytes of a row's key and weights, rounded up to 16.
MOST = 1.3
pytest.importorskip("fsspec")


def spread(count: int, first: int = 0) -> np.ndarray:
    """Keys over all 64 bits."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return numbers * np.uint64(0x9E3779B97F4A7C15)


def publish_rows(
    folder: Path, table: hps.TableConfig, keys: np.ndarray, dtype: str = "float32"
) -> Path:
    """A place with one version of that table."""
    random = np.random.default_rng(0)
    with a_server(folder / "store", table, dram="256MiB") as server:
        for first in range(0, len(keys), 10_000):
            part = keys[first : first + 10_000]
            rows = random.normal(0, 0.1, (len(part), table.dim)).astype(np.float32)
            server.assign(table.name, part, rows)
        server.publish(folder / "pub", dtype=dtype)
    return folder / "pub"


def bytes_a_row(rows: PublishedRows) -> float:
    """In the cache and the store's index."""
    stats = rows.server.stats()
    held = stats["dram_cache"]
    assert held["evictions"] <= held["rows"] // 10_000
    return float((held["bytes"] + stats["ssd_store"]["index_bytes"]) / held["rows"])


def aim(dim: int, width: int) -> float:
    """What a row may take of so many weights of so many bytes each."""
    return MOST * ((8 + width * dim + 15) // 16 * 16)


def opened(place: str | Path, cache: Path, dram: int | str, number: int | None = None) -> Any:
    cache.mkdir(exist_ok=True)
    return PublishedRows.open(open_destination(place), number, cache, RowMemory(dram))


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        *[(dim, "float32") for dim in (3, 8, 9, 16, 17, 64, 65)],
        *[(16, "bfloat16"), (17, "bfloat16"), (17, "int8")],
    ],
)
def test_rows_take_at_most_1_3_times_their_keys_and_weights(
    dim: int, dtype: str, tmp_path: Path
) -> None:
    place = publish_rows(tmp_path, a_table(dim=dim), spread(MANY), dtype)
    with opened(place, tmp_path / "cache", "256MiB") as rows:
        most = aim(dim, 2 if dtype == "bfloat16" else 4)
        assert bytes_a_row(rows) <= most


def test_rows_that_come_by_deltas_take_no_more(tmp_path: Path) -> None:
    table = a_table(dim=17)
    place = publish_rows(tmp_path, table, spread(MANY))
    with opened(place, tmp_path / "cache", "256MiB") as rows:
        worst = 0.0
        with a_server(tmp_path / "store", table, dram="256MiB") as server:
            for step in range(8):
                push(server, spread(MANY // 50, MANY + step * (MANY // 50)), 1.0)
                server.erase("ads", spread(50, step * 50))
                server.publish(place, kind="delta")
                version = chain_of(open_destination(place))[-1]
                with rows.changes(open_destination(place), version) as changes:
                    rows.apply(version, changes, is_read=step % 2 == 0)
                rows.save()
                worst = max(worst, bytes_a_row(rows))
            assert rows_of(rows.server) == rows_of(server)
        assert worst <= aim(17, 4)


def test_the_process_takes_no_more_than_the_rows(tmp_path: Path) -> None:
    """Anonymous memory, beside that of a process that follows few rows."""
    table, many = a_table(dim=17), 400_000
    found = {}
    for name, count in (("few", 1000), ("many", many)):
        place = publish_rows(tmp_path / name, table, spread(count))
        code = (
            "import json, sys; from pathlib import Path\n"
            "from hps.publish.destination import open_destination\n"
            "from hps.train.published_rows import PublishedRows, RowMemory\n"
            "place, cache = sys.argv[1:]; Path(cache).mkdir()\n"
            "rows = PublishedRows.open(open_destination(place), None, Path(cache),"
            " RowMemory('256MiB'))\n"
            "status = Path('/proc/self/status').read_text().split('RssAnon:')[1]\n"
            "print(json.dumps(int(status.split()[0]) * 1024))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(place), str(tmp_path / f"cache-{name}")],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        found[name] = json.loads(done.stdout)
    slack = 6 << 20  # what few rows have of a table that begins with 4 MiB, and the allocator's
    assert (found["many"] - found["few"]) <= many * aim(17, 4) + slack


class Reads:
    """Which files are read of a place, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        read: Callable[..., None] = fetch._read_checked

        def note(destination: Destination, file: StoredFile, *others: Any) -> None:
            self.names.append(file.name.rpartition("/")[2])
            read(destination, file, *others)

        patch.setattr(fetch, "_read_checked", note)

    def taken(self) -> list[str]:
        found, self.names = self.names, []
        return found


@pytest.fixture
def remote() -> str:
    """A place that is no folder of this machine, in the memory of fsspec."""
    import secrets

    return f"memory://follower-{secrets.token_hex(6)}"


BASE, CHANGED, REMOVED = "rows-ads-0.arrow", "changed-ads-0.arrow", "removed-ads-0.arrow"


def test_another_process_reads_what_the_copy_has_not(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, cache = Reads(monkeypatch), tmp_path / "cache"
    with a_server(tmp_path / "store") as server:
        push(server, spread(500), 1.0)
        server.publish(remote)
        with opened(remote, cache, "16MiB"):
            assert reads.taken() == [BASE]
        push(server, spread(50), 1.0)
        server.erase("ads", spread(5))
        server.publish(remote, kind="delta")
        with opened(remote, cache, "16MiB") as rows:
            assert reads.taken() == [CHANGED, REMOVED]
            assert rows_of(rows.server) == rows_of(server)
        expected = rows_of(server)
    for _ in range(2):  # one that ended well, and one that was killed
        rows = opened(remote, cache, "16MiB")
        assert reads.taken() == [] and rows_of(rows.server) == expected
        rows.server.close()
    assert len(list(cache.iterdir())) == 1


def test_a_kept_file_that_is_damaged_is_read_again(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, cache = Reads(monkeypatch), tmp_path / "cache"
    with a_server(tmp_path / "store") as server:
        push(server, spread(500), 1.0)
        server.publish(remote)
        expected = rows_of(server)
    with opened(remote, cache, "16MiB"):
        reads.taken()
    (kept,) = cache.glob("rows-*/published/*")
    whole = kept.read_bytes()
    for harmed in (whole[:-8], whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], b""):
        (kept,) = cache.glob("rows-*/published/*")
        kept.write_bytes(harmed)
        with opened(remote, cache, "16MiB") as rows:
            assert reads.taken() == [BASE] and rows_of(rows.server) == expected
    (kept,) = cache.glob("rows-*/published/*")
    assert kept.read_bytes() == whole


def test_files_that_no_process_would_begin_with_go(remote: str, tmp_path: Path) -> None:
    cache, names = tmp_path / "cache", "rows-*/published/*"
    with a_server(tmp_path / "store") as server:
        push(server, spread(500), 1.0)
        server.publish(remote)
        with opened(remote, cache, "16MiB") as rows:
            for kind, kept in (("delta", 2), ("delta", 3), ("base", 0), ("delta", 1)):
                push(server, spread(20), 1.0)
                server.publish(remote, kind=kind)
                place = open_destination(remote)
                version = chain_of(place)[-1]
                with rows.changes(place, version) as changes:
                    rows.apply(version, changes)
                rows.save()
                assert len(list(cache.glob(names))) == kept
        with opened(remote, cache, "16MiB") as rows:
            assert rows_of(rows.server) == rows_of(server)
            assert len(list(cache.glob(names))) == 2


def test_a_kept_file_that_cannot_be_removed_keeps_no_store_open(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    cache = tmp_path / "cache"
    with a_server(tmp_path / "store") as server:
        push(server, spread(500), 1.0)
        server.publish(remote)
        rows = opened(remote, cache, "16MiB")
        push(server, spread(20), 1.0)
        server.publish(remote, kind="base")
    place = open_destination(remote)
    version = chain_of(place)[-1]
    with rows.changes(place, version) as changes:
        rows.apply(version, changes)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        rows.close()
    with pytest.raises(hps.StoreError, match="is closed"):
        rows.server.pull("ads", spread(1))


def test_rows_that_find_no_memory_make_a_copy_of_checkpoints(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are loaded, and later as rows come."""
    reads, cache = Reads(monkeypatch), tmp_path / "cache"
    with a_server(tmp_path / "store") as server:
        push(server, spread(400), 1.0)
        server.publish(remote)
        with opened(remote, cache, 20_000) as rows:  # for some 500 rows
            assert rows.server.checkpoints() == []
            push(server, spread(3000, 400), 1.0)
            server.erase("ads", spread(7, 20))
            server.publish(remote, kind="delta")
            place = open_destination(remote)
            version = chain_of(place)[-1]
            with rows.changes(place, version) as changes:
                rows.apply(version, changes, is_read=True)
            assert rows_of(rows.server) == rows_of(server)
            rows.save()
            assert len(rows.server.checkpoints()) == 1
            assert not list(cache.glob("rows-*/published/*"))
        reads.taken()
        push(server, spread(30), 1.0)
        server.publish(remote, kind="delta")
        with opened(remote, cache, 20_000) as rows:
            assert reads.taken() == [CHANGED] and rows_of(rows.server) == rows_of(server)
        with opened(remote, tmp_path / "other", 20_000) as rows:
            assert rows_of(rows.server) == rows_of(server)
            assert len(rows.server.checkpoints()) == 1


def test_rows_on_a_device_keep_their_files_too(tmp_path: Path) -> None:
    """Those of a gpu_cache over packed rows."""
    with a_server(tmp_path / "store") as server:
        push(server, spread(2000), 1.0)
        server.publish(tmp_path / "pub")
        expected = rows_of(server)
    cache = tmp_path / "cache"
    cache.mkdir()
    memory = RowMemory("16MiB", hps.GpuCacheConfig(bytes=100_000, device="cpu"))
    with PublishedRows.open(open_destination(tmp_path / "pub"), None, cache, memory) as rows:
        assert rows_of(rows.server) == expected
        absent = keys_of(1, 2, 3)
        assert (rows.server.pull("ads", absent) == server_initial(rows, absent)).all()


def server_initial(rows: PublishedRows, keys: np.ndarray) -> np.ndarray:
    return rows.server.parts.rows.initial_weights("ads", keys)


def test_a_store_that_an_older_hps_left_is_gone_on_with(tmp_path: Path) -> None:
    """Its checkpoint has all rows, whatever memory there is for them now."""
    place, cache = tmp_path / "pub", tmp_path / "cache"
    with a_server(tmp_path / "store") as server:
        push(server, spread(300), 1.0)
        server.publish(place)
        with opened(place, cache, "16MiB") as rows:
            rows._kept = None  # which is how it was: a checkpoint at once
            rows.save()
        push(server, spread(30), 1.0)
        server.publish(place, kind="delta")
        (before,) = cache.iterdir()
        with opened(place, cache, "16MiB") as rows:
            assert rows.folder == before and rows_of(rows.server) == rows_of(server)
