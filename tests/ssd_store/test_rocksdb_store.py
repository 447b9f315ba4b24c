"""What is RocksDB's own: its place beside the other engine, its files, its errors, interrupts."""

import errno
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

import hps
from hps.cli.main import main
from hps.errors import ConfigError, CorruptionError, HpsError, StoreError
from hps.ssd_store import SsdStore, clone, engine_of, open_store, verify
from tests.lab import Lab, evictions, random_floats, random_keys, table
from tests.logs import write_criteo

pytest.importorskip("rocksdict")
from hps.ssd_store.rocksdb import checkpoint_files
from hps.ssd_store.rocksdb.store import RocksDbStore

KEYS = keys_of(range(300))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A store with rows in several sorted files, an erased key and two extras; closed."""
    path = tmp_path / "store"
    with RocksDbStore.open(path, [schema()]) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("first", {"position": b"one"})
        store.append("ads", make_rows(KEYS[:100], 2))
        store.erase("ads", KEYS[30:33])
        store.checkpoint("kept", {"position": b"two", "model": bytes(range(256)) * 20})
    return path


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_extras_are_read_one_by_one_and_their_lengths_without_reading(
    tmp_path: Path, engine: str
) -> None:
    blobs = {"position": b"two", "model": bytes(range(256)) * 20, "": b""}
    with open_store(tmp_path, [schema()], engine) as store:
        assert store.extra_bytes() == {} and store.extras(None, ["model"]) == {}
        store.checkpoint("first", {"position": b"one"})
        store.checkpoint("kept", blobs)
        assert store.extra_bytes("first") == {"position": 3}
        assert (
            store.extra_bytes()
            == store.extra_bytes("kept")
            == {name: len(blob) for name, blob in blobs.items()}
        )
        assert store.extras("kept", ["position", "none"]) == {"position": b"two"}
        assert store.extras("kept", ()) == {} and store.extras("kept") == blobs
        with pytest.raises(ConfigError):
            store.extra_bytes("none")
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        (file,) = [file for file in files if blobs["model"] in file.read_bytes()]
        file.write_bytes(file.read_bytes().replace(blobs["model"], blobs["model"][::-1]))
        assert store.extras("kept", ["position"]) == {"position": b"two"}
        with pytest.raises(CorruptionError):
            store.extras("kept", ["model"])


def test_two_engines_agree_on_every_bit_of_one_stream(tmp_path: Path) -> None:
    digests = []
    for kind in ("native", "rocksdb"):
        generator = np.random.default_rng(7)
        lab = Lab(kind, tmp_path / kind)
        with lab.server(table(hps.Adam(lr=0.1))) as server:
            for _ in range(12):
                keys = random_keys(generator, 300, 900)
                server.push("ads", keys, random_floats(generator, 300, 4))
                server.erase("ads", keys[::9].copy())
            assert evictions(server) > 500
            digests.append((server.digest("ads"), server.num_rows("ads")))
        with lab.open() as reader:
            digests.append((reader.digest("ads"), reader.num_rows("ads")))
    assert len(set(digests)) == 1


@pytest.mark.parametrize(("made", "asked"), [("segments", "rocksdb"), ("rocksdb", "segments")])
def test_a_store_of_the_other_engine_is_refused_by_name(
    tmp_path: Path, made: str, asked: str
) -> None:
    open_store(tmp_path, [schema()], made).close()
    assert engine_of(tmp_path) == made
    before = sorted(tmp_path.iterdir())
    words = f"of engine '{made}', requested is '{asked}'.*another path"
    with pytest.raises(ConfigError, match=words):
        open_store(tmp_path, [schema()], asked)
    with pytest.raises(ConfigError, match=words):
        (SsdStore if asked == "segments" else RocksDbStore).open(tmp_path, [], read_only=True)
    assert sorted(tmp_path.iterdir()) == before
    with open_store(tmp_path, []) as store:
        assert list(store.schemas) == ["ads"]


def test_without_rocksdict_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    config = hps.Config(
        path=tmp_path / "store", tables=[table()], ssd=hps.SsdStoreConfig(engine="rocksdb")
    )
    with pytest.raises(ConfigError, match=r"pip install 'hps-ctr\[rocksdb\]'"):
        hps.ParameterServer(config)
    assert not (tmp_path / "store").exists()


def test_the_commands_train_look_at_and_check_a_store_of_rocksdb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, store = write_criteo(tmp_path / "log.tsv", 200), str(tmp_path / "store")
    flags = "--batch-size 64 --hidden 4 --dim 4 --dram 8MiB --progress-seconds 0 --torch-threads 1"
    train = ["train", str(log), "--store", store, *flags.split()]
    assert main([*train, "--engine", "rocksdb"]) == 0
    assert engine_of(store) == "rocksdb"
    for command in (["stats", store], ["checkpoints", store], ["verify", store]):
        assert main(command) == 0
    assert main(["evaluate", str(log), "--store", store, "--dram", "8MiB"]) == 0
    capsys.readouterr()
    assert main([*train, "--resume"]) == 1
    assert "engine 'rocksdb', requested is 'segments'" in capsys.readouterr().err
    assert main([*train, "--resume", "--engine", "rocksdb"]) == 0


def test_an_unchanged_sorted_file_is_on_disk_and_digested_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(kept.glob("cut-*"))
    inodes = {file.stat().st_ino for file in first.rglob("*.sst")}
    assert inodes and inodes <= {file.stat().st_ino for file in second.rglob("*.sst")}
    with RocksDbStore.open(kept, []) as store:
        assert store.stats()["checkpoint_only_bytes"] > 0
        read: list[Path] = []

        def digest_file(file: Path) -> Any:
            read.append(file)
            return checkpoint_files.FileDigest(0, 0)

        monkeypatch.setattr(checkpoint_files, "digest_file", digest_file)
        store.checkpoint()
        assert read and not [file for file in read if file.suffix == ".sst"]


@pytest.mark.parametrize("tag", ["kept", None])
def test_compaction_renews_an_unchanged_checkpoint_and_gives_space_back(
    tmp_path: Path, tag: str | None
) -> None:
    with RocksDbStore.open(tmp_path, [schema()], keep_last=1) as store:
        for value in range(6):
            store.append("ads", make_rows(keys_of(range(5000)), value))
            store.checkpoint(tag, {"value": b"%d" % value})
        store.erase("ads", keys_of(range(100, 5000)))
        before, made = dump(store, "ads"), store.checkpoint(tag, {"value": b"last"})
        bytes_before = store.stats()["files_bytes"]
        store.compact()
        renewed = store.checkpoints()
        assert [(one["tag"], one["rows"], one["current"]) for one in renewed] == [(tag, 100, True)]
        assert renewed[0]["id"] > made["id"] and renewed[0]["created"] == made["created"]
        assert store.stats()["files_bytes"] < bytes_before / 5
        assert store.extras() == {"value": b"last"} and store.verify() == []
        store.append("ads", make_rows(KEYS, 9))
        store.compact("ads")
        assert store.checkpoints() == renewed, "what changed since it waits for the next one"
    with RocksDbStore.open(tmp_path, []) as store:
        assert dump(store, "ads") == before


def data_files(path: Path) -> Iterator[Path]:
    yield path / "ROCKSDB"
    for folder in sorted(path.glob("cut-*")):
        yield from sorted(file for file in folder.rglob("*") if file.is_file())


def use_everything(path: Path) -> None:
    for tag in ("first", "kept"):
        with RocksDbStore.open(path, [schema()], read_only=True, checkpoint=tag) as store:
            fetch(store, "ads", KEYS)
            dump(store, "ads")
            store.extras(tag)


def test_a_reader_writes_nothing_where_others_may_be_checking(kept: Path) -> None:
    """rocksdict writes its configuration into each folder that it opens, read-only or not."""

    def states() -> dict[str, tuple[int, int]]:
        found = {str(file): file.stat() for file in data_files(kept)}
        return {name: (state.st_mtime_ns, state.st_size) for name, state in found.items()}

    before = states()
    assert any(name.endswith("rocksdict-config.json") for name in before)
    use_everything(kept)
    assert states() == before


def test_what_a_reader_puts_beside_the_store_goes_with_it(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with RocksDbStore.open(kept, [], read_only=True) as store:
        (ours,) = temporary.iterdir()
        assert store.stats()["files_bytes"] == sum(
            {file.stat().st_ino: file.stat().st_size for file in kept.glob("cut-*/**/*")
             if file.is_file()}.values()
        )  # fmt: skip
    assert not ours.exists()
    (damaged,) = (file for file in kept.glob("cut-*2/db/CURRENT"))
    damaged.write_bytes(b"nonsense")
    with pytest.raises(CorruptionError):
        RocksDbStore.open(kept, [], read_only=True)
    assert not list(temporary.iterdir())


def test_flipped_bits_are_found_by_verify_and_by_who_uses_the_file(kept: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    assert verify(kept) == []
    num_raised = num_files = 0
    for file in data_files(kept):
        whole = file.read_bytes()
        if not whole:
            continue
        inode = file.stat().st_ino
        same = {str(other) for other in data_files(kept) if other.stat().st_ino == inode}
        for _ in range(6):
            bit = chance.randrange(len(whole) * 8)
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            assert {name for name, _ in verify(kept)} == same, (file, bit)
        num_files += 1
        try:
            use_everything(kept)
        except CorruptionError:
            num_raised += 1
        else:
            assert file.suffix == ".sst"  # RocksDB may have no use for the block that was hit
        file.write_bytes(whole)
        assert verify(kept) == []
    assert num_files > 10 and num_raised >= num_files - 3
    use_everything(kept)


def test_a_missing_file_is_named(kept: Path) -> None:
    for file in data_files(kept):
        whole, times = file.read_bytes(), file.stat()
        file.unlink()
        with pytest.raises(HpsError, match=str(kept) if file.name == "ROCKSDB" else file.name):
            use_everything(kept)
        if file.name == "ROCKSDB":
            with pytest.raises(CorruptionError, match=r"ROCKSDB.*missing"):
                RocksDbStore.open(kept, [schema()])
        file.write_bytes(whole)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    use_everything(kept)


def test_a_damaged_block_ends_no_scan_in_silence(kept: Path) -> None:
    """RocksDB's iterators take a bad block for the end of the table."""
    for file in (sorted(kept.glob("cut-*"))[-1] / "db").glob("*.sst"):
        whole = bytearray(file.read_bytes())
        whole[100] ^= 1
        file.write_bytes(whole)
    with RocksDbStore.open(kept, [schema()]) as store:
        with pytest.raises(CorruptionError, match=r"\.sst"):
            list(store.scan("ads"))
        with pytest.raises(CorruptionError, match=r"\.sst"):
            fetch(store, "ads", KEYS)


def test_restore_to_a_damaged_checkpoint_leaves_the_store_where_it_was(kept: Path) -> None:
    manifest = next(sorted(kept.glob("cut-*"))[0].glob("db/MANIFEST-*"))
    whole = bytearray(manifest.read_bytes())
    whole[-5] ^= 1
    manifest.write_bytes(whole)
    with RocksDbStore.open(kept, [schema()]) as store:
        store.append("ads", make_rows(KEYS[:9], 5))
        before, loads = dump(store, "ads"), store.num_loads
        with pytest.raises(CorruptionError, match=manifest.name):
            store.restore("first")
        assert dump(store, "ads") == before and store.num_loads == loads
        assert len(list(kept.glob("live-*"))) == 1
        store.checkpoint("newest")


def test_refused_writes_are_typed_errors_and_reads_go_on(tmp_path: Path) -> None:
    many = keys_of(range(1000, 9000))
    with RocksDbStore.open(tmp_path, [schema()], segment_bytes=2**16) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("safe")
        before = dump(store, "ads")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with pytest.raises(StoreError, match="open the store again") as refused:
                for _ in range(20):
                    store.append("ads", make_rows(many, 2))
                store.checkpoint("full")
            assert refused.value.errno == errno.EFBIG
            assert fetch(store, "ads", KEYS) == before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(dump(store, "ads")) == store.num_rows("ads")
        assert [one["tag"] for one in store.checkpoints()] == ["safe"]
    with RocksDbStore.open(tmp_path, [schema()]) as store:
        assert dump(store, "ads") == before
        store.append("ads", make_rows(many, 2))
        store.checkpoint("after")
        assert store.verify() == []


def test_the_count_is_exact_when_a_call_is_refused_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(range(20_000))
    with RocksDbStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys, 1))
        live: Any = store._live
        write = live.database._write
        num_calls = 0

        def refuses_the_second(batch: Any) -> None:
            nonlocal num_calls
            num_calls += 1
            if num_calls % 2 == 0:
                raise Exception("IO error: No space left on device: While appending to file")
            write(batch)

        monkeypatch.setattr(live.database, "_write", refuses_the_second)
        more = keys_of(range(15_000, 40_000))
        for call in (
            lambda: store.erase("ads", keys),
            lambda: store.append("ads", make_rows(more, 2)),
        ):
            before = store.num_rows("ads")
            with pytest.raises(StoreError, match="make space") as refused:
                call()
            assert refused.value.errno == errno.ENOSPC
            assert store.num_rows("ads") == len(dump(store, "ads")) != before


def test_an_interrupt_leaves_a_whole_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(range(20_000))
    with RocksDbStore.open(tmp_path, [schema()]) as store:
        live: Any = store._live
        put = live.database.put

        def interrupted(*arguments: Any) -> Iterator[int]:
            for number, new in enumerate(put(*arguments)):
                if number == 1:
                    main_thread = threading.main_thread().ident
                    signal.pthread_kill(main_thread or 0, signal.SIGINT)
                    time.sleep(0.3)  # for the interrupt to reach the caller while work is left
                yield new

        monkeypatch.setattr(live.database, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append("ads", make_rows(keys, 1))
        assert store.num_rows("ads") == len(dump(store, "ads")) == 20_000


def test_a_scan_ends_with_a_restore(kept: Path) -> None:
    with RocksDbStore.open(kept, [schema()]) as store:
        pieces = store.scan("ads", 10)
        next(pieces)
        store.restore("first")
        with pytest.raises(StoreError, match="restored while it was scanned"):
            next(pieces)
        assert len(dump(store, "ads")) == 300


def test_nothing_is_left_of_a_writer_that_was_killed_or_closed(kept: Path) -> None:
    leftover = kept / "live-0123"
    leftover.mkdir()
    (leftover / "000001.sst").write_bytes(b"rows")
    (kept / "cut-000000000099").mkdir()
    with RocksDbStore.open(kept, [schema()]) as store:
        assert not leftover.exists() and not (kept / "cut-000000000099").exists()
        assert len(list(kept.glob("live-*"))) == 1
        assert store.num_rows("ads") == 297
    assert list(kept.glob("live-*")) == []


def test_a_clone_is_refused_by_the_engines_name(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine 'rocksdb' cannot be cloned; copy"):
        clone(kept, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


class FailingSync:
    """In the place of os.fsync: one call fails, the others do nothing, for no power fails here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int, number: int) -> None:
        self._fails_at, self._number = fails_at, number
        self.num_calls = 0
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.num_calls += 1
        if self.num_calls == self._fails_at:
            raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_stops_the_store(
    kept: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fails_at = 0
    while True:
        fails_at += 1
        with RocksDbStore.open(kept, [schema()]) as store:
            before = dump(store, "ads")
            store.append("ads", make_rows(KEYS[:50], 100 + fails_at))
            after = dump(store, "ads")
            with monkeypatch.context() as patch:
                sync = FailingSync(patch, fails_at, number)
                try:
                    store.checkpoint(extras={"position": b"three"})
                    break
                except StoreError as error:
                    assert error.errno == number
                    assert "the store stopped" in str(error) and "fsync" in str(error)
                num_calls = sync.num_calls
                for change in (
                    store.checkpoint,
                    store.restore,
                    store.compact,
                    lambda: store.append("ads", make_rows(KEYS[:1], 1)),
                    lambda: store.erase("ads", KEYS[:1]),
                    lambda: store.delete_checkpoint("first"),
                ):
                    with pytest.raises(StoreError, match=r"the store stopped.*open it again"):
                        change()
                assert sync.num_calls == num_calls == fails_at
            assert dump(store, "ads") == after
        assert verify(kept) == []
        with RocksDbStore.open(kept, [schema()]) as store:
            assert dump(store, "ads") in (before, after)
    assert fails_at > 8


def test_a_write_that_meets_a_full_disk_may_be_repeated(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with RocksDbStore.open(kept, [schema()]) as store:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_files, "write_durably", refuse)
            with pytest.raises(StoreError, match="No space left"):
                store.checkpoint(extras={"position": b"three"})
        store.checkpoint(extras={"position": b"four"})
        assert store.extras() == {"position": b"four"}
