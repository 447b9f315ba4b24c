"""Versions of the rows of several servers: what is served is what all shards hold together.

Above it: pytest. Below it: hps.RemoteParameterServer.publish over real shards and servers.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.publish.destination import open_destination
from hps.publish.options import PublishOptions
from hps.publish.table_files import HashedFile
from hps.publish.version import chain_of, listed_versions, load_version
from hps.service.client.checkpoints import ShardsCheckpoint
from hps.service.client.publish_origin import ServiceCheckpoint
from hps.service.client.transport import GrpcTransport
from hps.service.messages.status import Code
from hps.ssd_store.promoted import Promotions
from hps.v1 import parameter_server_pb2 as pb
from hps.v1 import publishing_pb2
from tests.publish.publish_lab import Rows, a_table, keys_of, push, rows_of, served
from tests.service.client.client_lab import Service, service

MANY = np.arange(1500, dtype=np.uint64)
TABLES = (
    a_table(),
    a_table("users", 2, expiry=hps.Expiry(unseen=2, min_score=0.05, decay=0.5)),
    a_table("items", 3, admission=hps.Admission(count=2)),
)
NAMES = [table.name for table in TABLES]


@contextmanager
def a_service(folder: Path, count: int = 2, **options: Any) -> Iterator[Service]:
    """Of servers that may write below `folder`."""
    options.setdefault("tables", (a_table(),))
    options.setdefault("publish_to", (str(folder),))
    with service(folder, count, **options) as made:
        yield made


@pytest.fixture(params=[1, 3])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path, request.param, seed=5) as made:
        yield made


def test_a_base_and_deltas_hold_the_rows_of_all_shards(servers: Service) -> None:
    place, folder = servers.folder / "pub", servers.folder
    with servers.client() as client:
        push(client, MANY, 1.0)
        made = client.publish(place)
        assert (made["version"], made["kind"], made["rows"]) == (1, "base", 1500)
        assert made["why_base"] == "nothing is published there yet" and made["bytes"] > 1500 * 24
        before = rows_of(client)
        push(client, keys_of(3, 5, 9000), 2.0)
        client.erase("ads", keys_of(7))
        client.assign("ads", keys_of(11), client.pull("ads", keys_of(11)))  # as it was
        made = client.publish(place)
        assert (made["kind"], made["rows"]) == ("delta", 1500)
        assert (made["changed"], made["removed"], made["why_base"]) == (3, 1, None)
        assert client.publish(place)["kind"] is None
        after = rows_of(client)
    assert served(place, folder / "a", 1) == before
    assert served(place, folder / "b") == after
    version = load_version(open_destination(place), 1)
    assert version.seed == 5 and len(version.source["shards"]) == len(servers.shards)
    assert len(version.tables[0].base or ()) == len(servers.shards)


def test_rows_that_expire_wait_or_are_erased_are_those_of_the_servers(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_service(tmp_path, tables=TABLES) as made, made.client() as client:
        truth: dict[int, dict[str, Rows]] = {}
        for step in range(8):
            for name in NAMES:
                push(client, MANY[step * 100 : step * 100 + 300], 1.0, name)
            client.erase("ads", MANY[step * 110 : step * 110 + 20])
            if step in (2, 3, 5, 6):
                client.advance_period()
            if step == 4:
                for shard in made.shards:
                    shard.parts.store.server.compact()
            told = client.publish(place, kind="auto" if step else "base")
            rows = {name: rows_of(client, name) for name in NAMES}
            assert told["rows"] == sum(map(len, rows.values()))
            truth[told["version"]] = rows
        kinds = [load_version(open_destination(place), n).kind for n in truth]
        assert kinds.count("delta") >= 4
        assert len(rows["users"]) < 1000 and 0 < len(rows["items"]) < 1000
    for number, rows in truth.items():
        for name in NAMES:
            assert served(place, tmp_path / f"{number}", number, name) == rows[name]


def test_every_shard_keeps_what_was_published_last(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.publish(place)
        for _ in range(5):  # more than are kept without a name
            push(client, keys_of(1), 1.0)
            client.checkpoint()
        with made.client("other") as other:  # which remembers nothing
            told = other.publish(place)
        assert (told["kind"], told["changed"]) == ("delta", 1)
        assert served(place, tmp_path / "a") == rows_of(client)


def test_what_was_published_last_and_is_gone_makes_a_base(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.publish(place)
        (name,) = Promotions.load(made.stores()[0]).names
        client.names.drop(name)
        first = client.checkpoints()[0]["id"]
        push(client, MANY[:9], 1.0)
        client.checkpoint()
        client.delete_checkpoint(int(first))
        with made.client("other") as other:
            told = other.publish(place)
        assert told["kind"] == "base" and "published last, is gone" in told["why_base"]
        assert served(place, tmp_path / "a") == rows_of(client)


def test_a_restore_begins_a_new_lineage(tmp_path: Path) -> None:
    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.checkpoint(tag="old")
        push(client, keys_of(1, 2), 1.0)
        first = client.publish(place)
        client.restore("old")
        push(client, keys_of(3), 1.0)
        told = client.publish(place)
        assert told["kind"] == "base" and told["lineage"] != first["lineage"]
        assert told["why_base"].startswith("shard 0 went back to an older checkpoint")
        assert served(place, tmp_path / "a") == rows_of(client)
        push(client, keys_of(4), 1.0)
        assert client.publish(place)["kind"] == "delta"


def test_one_shard_that_can_make_no_delta_makes_the_whole_version_a_base(tmp_path: Path) -> None:
    """Its part of what was published last was deleted on it alone."""
    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.publish(place)
        part = made.shards[1].checkpoints()[-1]["id"]
        push(client, MANY[:50], 1.0)
        client.checkpoint()
        made.shards[1].delete_checkpoint(part)
        with made.client("other") as other:
            told = other.publish(place)
        assert told["kind"] == "base" and "published last, is gone" in told["why_base"]
        assert told["changed"] is None and told["rows"] == 1500
        assert served(place, tmp_path / "a") == rows_of(client)


def test_shards_of_rocksdb_make_bases_alone(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    place = tmp_path / "pub"
    config = hps.SsdStoreConfig(engine="rocksdb")
    with a_service(tmp_path, ssd=config) as made, made.client() as client:
        for step in range(2):
            push(client, MANY, 1.0)
            told = client.publish(place)
            assert told["kind"] == "base"
            assert served(place, tmp_path / f"{step}") == rows_of(client)
        assert "engine 'rocksdb' cannot tell" in told["why_base"]


def test_a_place_on_s3_has_the_files_of_all_servers(s3: str, tmp_path: Path) -> None:
    place = f"{s3}/ctr/live"
    with a_service(tmp_path, publish_to=(f"{s3}/ctr",)) as made, made.client() as client:
        push(client, MANY, 1.0)
        assert client.publish(place)["kind"] == "base"
        push(client, keys_of(1, 5000), 1.0)
        client.erase("ads", keys_of(9))
        told = client.publish(place)
        assert (told["kind"], told["changed"], told["removed"]) == ("delta", 2, 1)
        assert served(place, tmp_path / "a") == rows_of(client)
        folder = load_version(open_destination(place), 2).folder
        assert all("-s" in name for name in open_destination(place).folders(folder))


def test_why_a_version_cannot_follow_names_the_shard() -> None:
    def parts(**other: Any) -> list[publishing_pb2.DescribePartReply]:
        told = {"store": "a", "lineage": "l", "can_follow": True, "rules": "r"}
        return [
            publishing_pb2.DescribePartReply(**told),
            publishing_pb2.DescribePartReply(**{**told, "store": "b", **other}),
        ]

    def taken(created: float, **other: Any) -> ServiceCheckpoint:
        infos = [pb.CheckpointInfo(id=1, created=created + place) for place in (0, 1)]
        return ServiceCheckpoint(ShardsCheckpoint(infos[0], "n", infos[1:]), parts(**other))

    before = taken(5.0).source()
    assert taken(6.0).why_apart(3, before) == "" == taken(5.0).why_apart(3, before)
    for other, words in (
        ({"store": "c"}, "version 3 is of another store than shard 1's"),
        ({"lineage": "m"}, "shard 1 went back to an older checkpoint"),
        ({"rules": "s"}, "tables, or their rules, are others"),
        ({"can_follow": False}, "a store of engine 'rocksdb'"),
    ):
        assert words in taken(6.0, **other).why_apart(3, before)
    assert taken(4.0).why_apart(3, before) == "version 3 is of a newer checkpoint"
    assert taken(6.0).why_apart(3, {"store": "x"}) == "version 3 is of another store"


def test_other_servers_begin_a_new_lineage_whose_rows_are_theirs(tmp_path: Path) -> None:
    """As after resharding: the rows of two servers, given to three."""
    place = tmp_path / "pub"
    (tmp_path / "three").mkdir()
    with (
        a_service(tmp_path, 2) as two,
        a_service(tmp_path / "three", 3, publish_to=(str(place),)) as three,
        two.client() as before,
        three.client() as after,
    ):
        push(before, MANY, 1.0)
        first = before.publish(place)
        for keys, rows in before.items("ads"):
            after.assign("ads", keys, rows)
        told = after.publish(place)
        assert told["kind"] == "base" and told["why_base"] == "version 1 is of another store"
        assert told["lineage"] != first["lineage"]
        assert served(place, tmp_path / "a") == rows_of(before)
        push(after, MANY[:7], 1.0)
        assert after.publish(place)["changed"] == 7
        assert served(place, tmp_path / "b") == rows_of(after)


def test_narrow_types_tables_and_the_dense_part_go_with_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    place, module = tmp_path / "pub", torch.nn.Linear(3, 1)
    with a_service(tmp_path, tables=TABLES) as made, made.client() as client:
        for name in NAMES:
            push(client, MANY, 1.0, name)
        told = client.publish(place, model=module, dtype="bfloat16", tables=["users", "ads"])
        assert told["kind"] == "base" and told["checkpoint"].startswith("id:")
        version = load_version(open_destination(place), 1)
        assert [table.name for table in version.tables] == ["ads", "users"]
        assert version.tables[0].dtype == "bfloat16" and version.model is not None
        with pytest.raises(hps.ConfigError, match=r"^publish: there is no table 'nope'"):
            client.publish(place, tables=["nope"])


def test_only_places_that_the_servers_were_told_may_be_written_to(tmp_path: Path) -> None:
    allowed = tmp_path / "a"
    with a_service(tmp_path, publish_to=(str(allowed),)) as made, made.client() as client:
        push(client, MANY, 1.0)
        for place in (tmp_path / "ab", tmp_path / "a" / ".." / "b", tmp_path, "s3://a/b"):
            with pytest.raises(hps.ConfigError, match=r"not among the places|without '\.'"):
                client.publish(place)
        assert not client.checkpoints()  # nothing was done for it
        assert client.publish(allowed / "b" / "c")["version"] == 1
        assert client.publish(f"file://{allowed}")["version"] == 1
    (tmp_path / "two").mkdir()
    with (
        service(tmp_path / "two") as made,
        made.client() as client,
        pytest.raises(hps.ConfigError, match="start it with 'hps serve --publish-to"),
    ):
        client.publish(tmp_path / "a")
    with (
        pytest.raises(hps.ConfigError, match="--publish-to: 'relative' must be a URL"),
        service(tmp_path / "three", publish_to=("relative",)),
    ):
        pass


def test_servers_that_write_to_other_disks_are_found_before_anything_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of each machine, which is not one place: here a server's destination is elsewhere."""
    from hps.service.shard import publishing

    monkeypatch.setattr(
        publishing, "open_destination", lambda place: open_destination(tmp_path / "its-own")
    )
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        with pytest.raises(hps.StoreError, match=r"not at .* as seen from here"):
            client.publish(tmp_path / "pub")
        assert not listed_versions(open_destination(tmp_path / "pub"))


def test_a_shard_that_cannot_write_is_named_and_the_next_version_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, write = tmp_path / "pub", HashedFile.write

    def fail(file: HashedFile, data: Any) -> int:
        if "-s1-" in file.stored().name:
            raise OSError(28, "no space left")
        return write(file, data)

    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.publish(place)
        push(client, MANY[:40], 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(HashedFile, "write", fail)
            with pytest.raises(hps.StoreError, match=r"shard 1 \(.*cannot write .*no space left"):
                client.publish(place)
        assert listed_versions(open_destination(place)) == [1]
        assert len(open_destination(place).folders("data")) == 1
        told = client.publish(place)
        assert (told["version"], told["kind"], told["changed"]) == (2, "delta", 40)
        assert served(place, tmp_path / "a") == rows_of(client)


def test_a_server_of_an_older_hps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hps.service.client.errors import Failure

    call = GrpcTransport.call

    def without(self: GrpcTransport, method: str, request: bytes, timeout: float) -> bytes:
        if method == "DescribePart":
            raise Failure(Code.UNIMPLEMENTED, None, "Method not found!")
        return call(self, method, request, timeout)

    monkeypatch.setattr(GrpcTransport, "call", without)
    with (
        a_service(tmp_path, 1) as made,
        made.client() as client,
        pytest.raises(hps.ConfigError, match="served by an older hps"),
    ):
        client.publish(tmp_path / "pub")


def test_changes_go_on_while_servers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination takes nothing until the client has pushed, pulled and taken checkpoints."""
    may_go, is_there = threading.Event(), threading.Event()
    write = HashedFile.write

    def slowly(self: HashedFile, data: Any) -> int:
        is_there.set()
        assert may_go.wait(60)
        return write(self, data)

    with a_service(tmp_path) as made, made.client() as client, made.client("b") as other:
        push(client, MANY, 1.0)
        other.checkpoint()
        published = rows_of(client)
        monkeypatch.setattr(HashedFile, "write", slowly)
        made_by: list[Any] = []
        thread = threading.Thread(target=lambda: made_by.append(other.publish(tmp_path / "pub")))
        thread.start()
        assert is_there.wait(60)
        for _ in range(4):
            push(client, MANY[:100], 1.0)
            client.pull("ads", MANY)
            client.checkpoint()
        assert thread.is_alive()
        may_go.set()
        thread.join(60)
        assert made_by[0]["kind"] == "base"
        assert served(tmp_path / "pub", tmp_path / "a") == published != rows_of(client)


def test_servers_that_do_not_get_on_are_given_up_and_nothing_of_theirs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.service.client import publish_origin

    may_go, write = threading.Event(), HashedFile.write

    def stuck(file: HashedFile, data: Any) -> int:
        if "-s1-" in file.stored().name:
            assert may_go.wait(60)
        return write(file, data)

    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        told: list[tuple[int, int]] = []
        with monkeypatch.context() as patched:
            patched.setattr(HashedFile, "write", stuck)
            patched.setattr(publish_origin, "SLOW", 0.005)  # 0.3 s of a deadline of 60
            patched.setattr(publish_origin, "_WAIT_MS", 20)
            patched.setattr(publish_origin, "_DROP_SECONDS", 0.2)
            with pytest.raises(hps.RemoteError, match=r"shards 1 \(.*\) have not got on for 0 s"):
                client.publish(place)
            (writing,) = made.shards[1].parts.publishing._writings.values()
            may_go.set()
            assert writing.wait(60) and "given up" in str(writing.error)
        assert not list(place.glob("data/*/*")) and not listed_versions(open_destination(place))
        asked = PublishOptions()
        publisher = client.publishing.publisher(str(place), asked, lambda *now: told.append(now))
        assert publisher.publish()["version"] == 1
        assert told[-1][0] == len(MANY) and told[-1][1] > len(MANY) * 24


def test_a_closed_client_and_two_publishers_are_told(servers: Service) -> None:
    place = servers.folder / "pub"
    with servers.client("a") as client, servers.client("b") as other:
        push(client, MANY, 1.0)
        client.publish(place)
        commit = client.publishing.publisher(str(place), PublishOptions())
        os.link(place / "version-00000001.json", place / "version-00000002.json")
        with pytest.raises(hps.CorruptionError, match="it is the file of version 1"):
            commit.publish()
        (place / "version-00000002.json").unlink()
        push(client, MANY[:5], 1.0)
        assert other.publish(place)["version"] == 2
        assert len(chain_of(open_destination(place))) == 2
    with pytest.raises(hps.RemoteError, match="publish: this client is closed"):
        client.publish(place)
