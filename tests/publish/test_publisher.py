"""Bases and deltas: what a version holds, and when one follows the other.

Above it: pytest. Below it: hps/publish, PublishedRows.
"""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.errors import StoreError
from hps.publish import publisher as publisher_module
from hps.publish.destination import Destination, TakenError, open_destination
from hps.publish.publisher import Publisher, remove_old
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import Version, chain_of, listed_versions, load_version
from hps.train.published_rows import PublishedRows, RowMemory
from tests.publish.publish_lab import a_server, a_table, keys_of, newest, push, rows_of, served


def test_a_delta_holds_what_changed_and_what_went_and_nothing_else(tmp_path: Path) -> None:
    place, many = tmp_path / "pub", np.arange(2000, dtype=np.uint64)
    with a_server(tmp_path / "store") as server:
        push(server, many, 1.0)
        made = server.publish(place)
        assert (made["version"], made["kind"], made["rows"]) == (1, "base", 2000)
        assert made["changed"] is None and made["why_base"] == "nothing is published there yet"
        before = rows_of(server)
        push(server, keys_of(3, 5, 9000), 2.0)
        server.erase("ads", keys_of(7))
        server.assign("ads", keys_of(11), server.pull("ads", keys_of(11)))  # as it was
        made = server.publish(place)
        assert (made["kind"], made["rows"]) == ("delta", 2000)
        assert (made["changed"], made["removed"], made["why_base"]) == (3, 1, None)
        after = rows_of(server)
    assert served(place, tmp_path / "a", 1) == before
    assert served(place, tmp_path / "b") == after


def test_rows_that_a_compaction_moved_are_in_no_delta(tmp_path: Path) -> None:
    place, many = tmp_path / "pub", np.arange(3000, dtype=np.uint64)
    with a_server(tmp_path / "store") as server:
        push(server, many, 1.0)
        server.checkpoint()
        server.erase("ads", many[::2])
        server.publish(place)
        server.compact()
        push(server, keys_of(1), 1.0)
        made = server.publish(place)
        assert (made["kind"], made["changed"], made["removed"]) == ("delta", 1, 0)
        assert served(place, tmp_path / "a") == rows_of(server)


def test_a_compaction_beside_a_publisher_takes_its_checkpoint_from_it_no_more(
    tmp_path: Path,
) -> None:
    """The newest checkpoint has another id from then on, and old files are gone."""
    place, many = tmp_path / "pub", np.arange(3000, dtype=np.uint64)
    with a_server(tmp_path / "store", keep_last=1) as server:

        class Beside(StoreOrigin):
            def pin(self, checkpoint: Source, name: str, *given: Any) -> None:
                server.compact()
                super().pin(checkpoint, name, *given)

        with Publisher(Beside(tmp_path / "store"), place) as publisher:
            for number in (1, 2):
                for keys in (many, many[::2]):
                    push(server, keys, float(number))
                    server.checkpoint()
                id_before = server.checkpoints()[-1]["id"]
                made = publisher.publish()
                assert made["version"] == number
                assert server.checkpoints()[-1]["id"] != id_before
                assert publisher.pin in server.checkpoints()[-1]["names"]
                assert served(place, tmp_path / f"{number}") == rows_of(server)
            assert made["why_base"] is None


def test_no_version_is_visible_whose_checkpoint_has_no_name_yet(tmp_path: Path) -> None:
    """The name is given beside the writing; the version waits for it, or is not made."""
    place = tmp_path / "pub"

    class Slow(StoreOrigin):
        has_failed = False

        def pin(self, checkpoint: Source, name: str, *given: Any) -> None:
            for safe in given:
                safe()
            time.sleep(0.3)
            assert not list(place.glob("version-*"))
            if not self.has_failed:
                self.has_failed = True
                raise StoreError(28, "no space for a name")
            super().pin(checkpoint, name, *given)

    with a_server(tmp_path / "store") as server:
        push(server, keys_of(5), 1.0)
        server.checkpoint()
        with Publisher(Slow(tmp_path / "store"), place) as publisher:
            with pytest.raises(StoreError, match="no space for a name"):
                publisher.publish()
            assert not list(place.glob("version-*")) and not list((place / "data").iterdir())
            assert publisher.publish()["version"] == 1
            assert publisher.pin in server.checkpoints()[-1]["names"]


def test_what_is_published_already_is_not_published_again(tmp_path: Path) -> None:
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1), 1.0)
        server.publish(tmp_path / "pub")
        assert server.publish(tmp_path / "pub")["kind"] is None
        assert listed_versions(open_destination(tmp_path / "pub")) == [1]


def test_a_return_to_an_older_checkpoint_begins_a_new_lineage(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1), 1.0)
        server.checkpoint(tag="old")
        push(server, keys_of(1, 2), 1.0)
        first = server.publish(place)
        server.restore("old")
        push(server, keys_of(3), 1.0)
        made = server.publish(place)
        assert made["kind"] == "base" and "older checkpoint" in made["why_base"]
        assert made["lineage"] != first["lineage"]
        assert served(place, tmp_path / "a") == rows_of(server)


def test_a_store_that_was_left_at_an_older_checkpoint_begins_a_new_lineage(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1), 1.0)
        server.checkpoint(tag="old")
        push(server, keys_of(2), 1.0)
        server.publish(place)
        server.restore("old")
        server.close()
    with a_server(tmp_path / "store") as server:  # whose current checkpoint is not the newest
        push(server, keys_of(3), 1.0)
        assert "older checkpoint" in server.publish(place)["why_base"]


def test_a_process_that_starts_again_goes_on_with_deltas(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(500, dtype=np.uint64), 1.0)
        server.publish(place)
    for round_ in range(3):
        with a_server(tmp_path / "store") as server:
            for _ in range(4):  # more than the store keeps without a name
                push(server, keys_of(round_), 1.0)
                server.checkpoint()
            made = server.publish(place)
            assert (made["kind"], made["changed"]) == ("delta", 1)
            assert served(place, tmp_path / f"c{round_}") == rows_of(server)


def test_a_base_comes_again_once_deltas_have_grown_and_followers_still_take_changes(
    tmp_path: Path,
) -> None:
    place, many = tmp_path / "pub", np.arange(1000, dtype=np.uint64)
    kinds = []
    with a_server(tmp_path / "store") as server:
        for round_ in range(8):
            push(server, many if not round_ else many[:300], 1.0)
            kinds.append(server.publish(place)["kind"])
        assert kinds[:4] == ["base", "delta", "delta", "base"]
        _, version = newest(place)
        again = load_version(open_destination(place), 4)
        assert again.lineage == version.lineage and again.tables[0].changed is not None
        assert served(place, tmp_path / "a") == rows_of(server)


def test_old_versions_go_by_number_with_their_files(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        for round_ in range(6):
            push(server, np.arange(50 + round_, dtype=np.uint64), 1.0)
            server.publish(place, kind="base", keep=2)
    destination = open_destination(place)
    assert listed_versions(destination) == [5, 6]
    assert len(destination.folders("data")) == 2


def test_versions_that_are_known_are_not_read_again_to_remove_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        for _ in range(2):
            push(server, keys_of(1), 1.0)
            server.publish(place, kind="base", keep=5)
        push(server, np.arange(500, dtype=np.uint64), 1.0)
        server.publish(place, kind="base", keep=5)
        push(server, keys_of(2), 1.0)
        server.publish(place, kind="delta", keep=5)
    destination = open_destination(place)
    known = chain_of(destination)
    assert [version.number for version in known] == [3, 4]
    read: list[int] = []

    def reading(place: Destination, number: int) -> Version:
        read.append(number)
        return load_version(place, number)

    def unwanted(*given: object) -> None:
        raise AssertionError("a chain that is known was read")

    monkeypatch.setattr(publisher_module, "load_version", reading)
    monkeypatch.setattr(publisher_module, "chain_of", unwanted)
    assert remove_old(destination, 1, known) == [1, 2]  # and not the base that 4 follows
    assert read == [1, 2] and listed_versions(destination) == [3, 4]


def test_versions_that_a_kept_delta_follows_stay(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(1000, dtype=np.uint64), 1.0)
        for round_ in range(5):
            push(server, keys_of(round_), 1.0)
            server.publish(place, keep=1)
        assert listed_versions(open_destination(place)) == [1, 2, 3, 4, 5]
        assert served(place, tmp_path / "a") == rows_of(server)


def test_a_version_that_is_being_read_stays(tmp_path: Path) -> None:
    from hps.publish.leases import drop_lease, take_lease

    place = tmp_path / "pub"
    destination = open_destination(place)
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1), 1.0)
        server.publish(place, kind="base", keep=1)
        lease = take_lease(destination, 1)
        for _ in range(3):
            push(server, keys_of(1), 1.0)
            server.publish(place, kind="base", keep=1)
        assert listed_versions(destination) == [1, 2, 3, 4]
        drop_lease(destination, lease)
        push(server, keys_of(1), 1.0)
        server.publish(place, kind="base", keep=1)
        assert listed_versions(destination) == [5]


def test_of_two_publishers_one_is_refused_and_goes_on_with_a_base(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "a") as one, a_server(tmp_path / "b") as other:
        push(one, keys_of(1), 1.0)
        push(other, keys_of(2), 1.0)
        errors: list[BaseException] = []
        barrier = threading.Barrier(2)

        def publish(server: hps.ParameterServer) -> None:
            barrier.wait(60)
            try:
                server.publish(place)
            except TakenError as error:
                errors.append(error)

        threads = [threading.Thread(target=publish, args=(each,)) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        destination = open_destination(place)
        numbers = listed_versions(destination)
        assert len(numbers) + len(errors) == 2
        assert all("one destination has one publisher" in str(error) for error in errors)
        push(one, keys_of(5), 1.0)
        one.publish(place)
        assert served(place, tmp_path / "c") == rows_of(one)
        push(other, keys_of(6), 1.0)
        made = other.publish(place)
        assert made["kind"] == "base" and "another store" in made["why_base"]
        assert served(place, tmp_path / "d") == rows_of(other)


def test_tables_that_are_named_alone_are_published(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", a_table(), a_table("users", 2)) as server:
        push(server, keys_of(1), 1.0)
        push(server, keys_of(4), 1.0, "users")
        server.publish(place, tables=["users"])
        _, version = newest(place)
        assert [table.name for table in version.tables] == ["users"]
        assert served(place, tmp_path / "a", table="users") == rows_of(server, "users")
        with pytest.raises(hps.ConfigError, match=r"no table 'adds'; the store has \['ads', 'us"):
            server.publish(place, tables=["adds"])
    assert len(open_destination(place).folders("data")) == 1  # nothing of what was refused


def test_rows_below_the_score_are_not_served_and_go_with_a_period(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    expiry = hps.Expiry(unseen=50, min_score=0.01, decay=0.5)
    with a_server(tmp_path / "store", a_table(expiry=expiry)) as server:
        for count, key in ((1, 10), (30, 20), (100, 30)):
            push(server, np.full(count, key, np.uint64), 1.0)
        made = server.publish(place, min_score=0.5)  # of a show without a click: 0.1
        assert sorted(served(place, tmp_path / "a")) == [20, 30] and made["rows"] == 2
        server.advance_period(to=4)
        made = server.publish(place, min_score=0.5)
        assert (made["kind"], made["removed"], made["rows"]) == ("delta", 1, 1)
        assert sorted(served(place, tmp_path / "b")) == [30]


def test_rows_that_die_are_removed_by_the_delta_of_their_period(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", a_table(expiry=hps.Expiry(unseen=2))) as server:
        push(server, np.arange(100, dtype=np.uint64), 1.0)
        server.publish(place)
        server.advance_period(to=2)
        push(server, np.arange(40, dtype=np.uint64), 1.0)
        server.publish(place)
        server.advance_period(to=3)
        made = server.publish(place, kind="delta")
        assert (made["kind"], made["changed"], made["removed"]) == ("delta", 0, 60)
        assert served(place, tmp_path / "a") == rows_of(server)
        assert len(rows_of(server)) == 40


def test_keys_that_wait_are_not_published(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", a_table(admission=hps.Admission(count=3))) as server:
        push(server, keys_of(1, 1, 1, 2), 1.0)
        server.publish(place)
        assert list(served(place, tmp_path / "a")) == [1]
        push(server, keys_of(2, 2), 1.0)
        assert server.publish(place)["changed"] == 1
        assert served(place, tmp_path / "b") == rows_of(server)


def test_new_rules_begin_a_new_lineage(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    for unseen in (5, 3):
        table = a_table(expiry=hps.Expiry(unseen=unseen))
        with a_server(tmp_path / "store", table) as server:
            push(server, keys_of(1), 1.0)
            server.advance_period()
            made = server.publish(place)
    assert made["kind"] == "base" and "rules" in made["why_base"]


def test_rocksdb_publishes_bases_alone(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", engine="rocksdb") as server:
        for round_ in range(2):
            push(server, keys_of(round_, 5), 1.0)
            made = server.publish(place)
            assert made["kind"] == "base"
            assert served(place, tmp_path / f"c{round_}") == rows_of(server)
        push(server, keys_of(1), 1.0)
        with pytest.raises(hps.ConfigError, match=r"no delta can be published.*rocksdb"):
            server.publish(place, kind="delta")


def test_a_clone_begins_a_new_lineage_or_goes_on_exactly(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1, 2), 1.0)
        server.publish(place)
        push(server, keys_of(3), 1.0)
        server.checkpoint()
    hps.ssd_store.clone(tmp_path / "store", tmp_path / "other")
    with a_server(tmp_path / "other") as server:
        push(server, keys_of(4), 1.0)
        made = server.publish(place)
        assert made["kind"] == "base" and "is gone" in made["why_base"]
        assert served(place, tmp_path / "a") == rows_of(server)


def test_a_store_without_a_checkpoint_and_a_place_without_a_version_are_named(
    tmp_path: Path,
) -> None:
    with (
        a_server(tmp_path / "store"),
        Publisher(StoreOrigin(tmp_path / "store"), tmp_path / "pub") as publisher,
        pytest.raises(hps.ConfigError, match="no checkpoint yet"),
    ):
        publisher.publish()
    with (
        Publisher(StoreOrigin(tmp_path / "nowhere"), tmp_path / "pub") as publisher,
        pytest.raises(hps.StoreError, match="no store to publish from"),
    ):
        publisher.publish()
    with pytest.raises(hps.ConfigError, match="nothing is published here; publish with"):
        served(tmp_path / "pub", tmp_path / "a")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int4"])
def test_narrow_types_are_read_back_as_they_round(dtype: str, tmp_path: Path) -> None:
    from hps.publish.codec import RowCodec

    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(300, dtype=np.uint64), 1.0)
        server.publish(place, dtype=dtype)
        push(server, keys_of(4), 1.0)
        assert server.publish(place, dtype=dtype)["kind"] == "delta"
        codec = RowCodec(dtype, 4)
        expected = {}
        for keys, rows in server.items("ads"):
            rounded = codec.decode(np.ascontiguousarray(codec.encode(rows)))
            expected.update({int(k): r.tobytes() for k, r in zip(keys, rounded, strict=True)})
        assert served(place, tmp_path / "a") == expected


def test_an_older_checkpoint_is_published_as_it_is(tmp_path: Path) -> None:
    """Its reader does not begin with the index of a newer one, which knows of what came later."""
    place, many = tmp_path / "pub", np.arange(12_000, dtype=np.uint64)
    with a_server(tmp_path / "store") as server:
        push(server, many, 1.0)
        server.checkpoint()
        for first in range(0, 3000, 100):  # small segments, to be made one
            push(server, many[first : first + 100], 1.0)
            server.checkpoint(tag="old")
        server.publish(place)
        old = rows_of(server)
        server.compact()
        push(server, many[:100], 1.0)
        server.publish(place)
        server.restore("old")
        made = server.publish(place)
        assert made["kind"] == "base" and "newer checkpoint" in made["why_base"]
        assert served(place, tmp_path / "a") == rows_of(server) == old
        push(server, keys_of(5), 1.0)
        server.publish(place)
        assert served(place, tmp_path / "b") == rows_of(server)


def test_rows_that_had_died_by_the_newer_version_are_in_the_older_one(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", a_table(expiry=hps.Expiry(unseen=1))) as server:
        push(server, np.arange(100, dtype=np.uint64), 1.0)
        server.checkpoint(tag="old")
        old = rows_of(server)
        server.advance_period(to=5)
        push(server, keys_of(500), 1.0)
        server.checkpoint(tag="new")
    with Publisher(StoreOrigin(tmp_path / "store"), place) as publisher:
        publisher.publish("new")
        assert sorted(served(place, tmp_path / "a")) == [500]
        publisher.publish("old")
        assert served(place, tmp_path / "b") == old


def test_what_is_published_stays_while_newer_checkpoints_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.publish.version_writer import VersionWriter

    make = VersionWriter.make
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1, 2), 1.0)

        def slowly(*given: object) -> object:
            for _ in range(4):  # more than the store keeps
                push(server, keys_of(1), 1.0)
                server.checkpoint()
            return make(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(VersionWriter, "make", slowly)
        assert server.publish(tmp_path / "pub")["kind"] == "base"
        assert server.publish(tmp_path / "pub", kind="delta")["changed"] == 1


def test_an_attempt_that_fails_again_and_again_does_not_cost_the_lineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.publish.version_writer import VersionWriter

    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(200, dtype=np.uint64), 1.0)
        server.publish(place)
        with monkeypatch.context() as patched:

            def fail(*_: object) -> None:
                raise hps.StoreError(5, "the destination is away")

            patched.setattr(VersionWriter, "make", fail)
            for _ in range(5):
                push(server, keys_of(1), 1.0)
                with pytest.raises(hps.StoreError, match="is away"):
                    server.publish(place)
        made = server.publish(place)
        assert (made["kind"], made["why_base"]) == ("delta", None)
        assert served(place, tmp_path / "a") == rows_of(server)


def test_a_follower_behind_a_base_reads_it_anew(tmp_path: Path) -> None:

    place, cache = tmp_path / "pub", tmp_path / "cache"
    cache.mkdir()
    many = np.arange(300, dtype=np.uint64)
    with a_server(tmp_path / "store") as server:
        push(server, many, 1.0)
        server.publish(place)
        with PublishedRows.open(open_destination(place), None, cache, RowMemory("16MiB")):
            pass
        for _ in range(9):
            push(server, many[:150], 1.0)
            server.publish(place, keep=1)
        assert 1 not in listed_versions(open_destination(place))
        with PublishedRows.open(open_destination(place), None, cache, RowMemory("16MiB")) as rows:
            assert rows_of(rows.server) == rows_of(server)


def test_a_local_copy_that_a_process_has_open_is_left_to_it(tmp_path: Path) -> None:

    place, cache = tmp_path / "pub", tmp_path / "cache"
    cache.mkdir()
    destination = open_destination(place)
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(300, dtype=np.uint64), 1.0)
        server.publish(place)
        with (
            PublishedRows.open(destination, None, cache, RowMemory("16MiB")) as one,
            PublishedRows.open(destination, None, cache, RowMemory("16MiB")) as other,
        ):
            assert one.folder != other.folder and one.folder.exists()
            assert rows_of(other.server) == rows_of(one.server) == rows_of(server)
        server.publish(tmp_path / "elsewhere", kind="base")
        elsewhere = open_destination(tmp_path / "elsewhere")
        with PublishedRows.open(elsewhere, None, cache, RowMemory("16MiB")):
            assert len(list(cache.glob("rows-*"))) == 3  # of two places


def test_a_follower_keeps_all_rows_in_memory_that_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are published in the order in which a cache holds them."""
    monkeypatch.setattr("hps.publish.table_files._PIECE_ROWS", 4096)
    num_rows = 300_000
    with a_server(tmp_path / "store", dram="64MiB") as server:
        rows = np.ones((num_rows, server.tables["ads"].dim), np.float32)
        server.assign("ads", np.arange(num_rows, dtype=np.uint64) << np.uint64(20), rows)
        server.publish(tmp_path / "pub")
    cache = tmp_path / "cache"
    cache.mkdir()
    place = open_destination(tmp_path / "pub")
    with PublishedRows.open(place, None, cache, RowMemory("64MiB")) as followed:
        held = followed.server.stats()["dram_cache"]
        row_bytes = followed.server.tables["ads"].layout.row_bytes
    assert held["rows"] > 0.999 * num_rows and held["evictions"] < num_rows // 1000
    assert held["bytes"] < num_rows * (row_bytes + 5) / 0.6  # marks; a table grows in steps
