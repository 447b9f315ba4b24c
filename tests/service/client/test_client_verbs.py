"""Every verb of RemoteParameterServer against ParameterServer's; checkpoints over several shards.

Above it: pytest. Below it: `hps.RemoteParameterServer` over real shards.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
import torch

import hps
from hps.checkpoint.names import AUTOMATIC
from hps.errors import ConfigError, RemoteError
from hps.service.client.connections import Connections
from hps.service.client.errors import Failure
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.transport import GrpcTransport
from hps.update_log.sessions import Sessions
from tests.service.client.client_lab import ADS, service
from tests.service.client.fake_service import Answered

EDGES = np.array([0, 2**63, 2**64 - 1, 7, 7, 0], np.uint64)


def rows_of(server: Any, state: bool = True) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    for keys, *values in server.items("ads", batch=37, state=state):
        for i, key in enumerate(keys.tolist()):
            assert key not in found
            found[key] = tuple(part[i].tobytes() for part in values)
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_verbs_do_what_those_of_one_store_do(tmp_path: Path, count: int) -> None:
    random = np.random.default_rng(count)
    local = hps.ParameterServer(hps.Config(path=tmp_path / "local", tables=[ADS]))
    with local, service(tmp_path, count) as servers, servers.client() as remote:
        for server in (local, remote):
            server.push("ads", EDGES, np.ones((6, 8), np.float32))
        for _ in range(6):
            keys = random.integers(0, 300, 200).astype(np.uint64)
            values = random.normal(size=(200, 8)).astype(np.float32)
            verb = random.choice(["push", "assign", "state", "erase", "create", "pull"])
            answers = []
            for server in (local, remote):
                if verb in ("push", "assign"):
                    answers.append(getattr(server, verb)("ads", keys, values))
                elif verb == "state":
                    answers.append(server.assign("ads", keys, values, state=values * values))
                elif verb == "erase":
                    answers.append(server.erase("ads", keys))
                else:
                    answers.append(server.pull("ads", keys, create=verb == "create"))
            assert np.array_equal(*answers), verb
            assert remote.digest("ads") == local.digest("ads"), verb
        probe = np.concatenate([EDGES, np.arange(300, dtype=np.uint64)])
        assert np.array_equal(remote.contains("ads", probe), local.contains("ads", probe))
        assert remote.num_rows("ads") == local.num_rows("ads") > 100
        assert rows_of(remote) == rows_of(local)
        assert rows_of(remote, state=False) == rows_of(local, state=False)
        stats = remote.stats()
        assert stats["tables"]["ads"]["rows"] == local.num_rows("ads")
        assert stats["tables"]["ads"]["dim"] == 8 and len(stats["shards"]) == count


class LosesFirstAnswers(GrpcTransport):
    """The way back fails for the first answer to each method of `loses`."""

    loses: ClassVar[set[str]] = set()

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        pending = super().start(method, request, timeout)
        if method not in self.loses:
            return pending
        self.loses.remove(method)
        pending.reply()
        return Answered(Failure(grpc.StatusCode.UNAVAILABLE, None, "the answer was lost"))


class Unlucky(RemoteParameterServer):
    _connect = LosesFirstAnswers


def test_lost_answers_are_had_again_and_where_one_cannot_be_the_call_says_so(
    tmp_path: Path,
) -> None:
    keys = np.arange(100, dtype=np.uint64)
    with (
        service(tmp_path, 1) as servers,
        Unlucky(servers.addresses, "trainer-0") as client,
    ):
        LosesFirstAnswers.loses.update(("Create", "Push", "Assign"))
        rows = client.pull("ads", keys, create=True)
        assert client.num_rows("ads") == 100
        assert np.array_equal(rows, client.pull("ads", keys))
        client.push("ads", keys, np.ones((100, 8), np.float32))
        digest = client.digest("ads")
        client.assign("ads", keys[:1], np.zeros((1, 8), np.float32))
        assert LosesFirstAnswers.loses == set() and client.digest("ads") != digest
        LosesFirstAnswers.loses.add("Erase")
        assert client.erase("ads", keys[:30]).sum() == 30
        LosesFirstAnswers.loses.add("Erase")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sessions, "answer", lambda *_: None)  # as if it had been forgotten
            with pytest.raises(RemoteError, match="has erased the keys, but its answer"):
                client.erase("ads", keys[:50])
        assert client.num_rows("ads") == 50
        assert client.erase("ads", keys).sum() == 50


def test_tensors_outputs_and_empty_batches_pass_as_in_one_store(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        keys = torch.tensor([5, -1, 5])
        client.push("ads", keys, torch.ones(3, 8))
        rows = client.pull("ads", keys)
        assert isinstance(rows, torch.Tensor) and torch.equal(rows[0], rows[2])
        out = torch.empty(3, 8)
        assert client.pull("ads", keys, out=out) is out and torch.equal(out, rows)
        assert isinstance(client.contains("ads", keys), torch.Tensor)
        nothing = np.empty(0, np.uint64)
        client.push("ads", nothing, np.empty((0, 8), np.float32))
        assert client.pull("ads", nothing).shape == (0, 8)
        assert client.erase("ads", nothing).shape == (0,)
        future = client.pull_async("ads", keys)
        assert torch.equal(future.result(60), rows)


def test_arguments_that_cannot_work_are_refused_here(tmp_path: Path) -> None:
    with service(tmp_path, 1) as servers, servers.client() as client:
        keys = np.arange(3, dtype=np.uint64)
        for call in (
            lambda: client.pull("none", keys),
            lambda: client.pull("ads", keys.astype(np.int32)),
            lambda: client.push("ads", keys, np.ones((3, 7), np.float32)),
            lambda: client.push("ads", keys, np.ones((3, 8), np.float32), ack="soon"),
            lambda: client.assign("ads", keys, np.ones((2, 8), np.float32)),
            lambda: next(client.items("ads", batch=0)),
            lambda: client.restore("none"),
            lambda: client.checkpoint("no spaces"),
            lambda: client.delete_checkpoint(None),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError):
                call()
        with pytest.raises(hps.NonFiniteError, match="key 1"):
            client.push("ads", keys, np.array([[0], [np.nan], [0]], np.float32).repeat(8, axis=1))
        assert client.num_rows("ads") == 0


def test_table_is_made_on_all_shards_and_a_differing_one_refused(tmp_path: Path) -> None:
    with service(tmp_path, 2, tables=()) as servers, servers.client() as client:
        assert client.tables == {}
        assert client.create_table(ADS) and not client.create_table(ADS)
        assert client.tables == {"ads": ADS}
        with pytest.raises(RemoteError, match="FAILED_PRECONDITION"):
            client.create_table(hps.TableConfig(name="ads", dim=9))
        assert client.create_table(hps.TableConfig(name="more", dim=8, statistics=True))
        with pytest.raises(RemoteError, match="its statistics is True, requested is False"):
            client.create_table(hps.TableConfig(name="more", dim=8))
        client.push("ads", EDGES, np.ones((6, 8), np.float32))
        assert client.num_rows("ads") == 4


def test_a_table_is_what_shard_0_has_of_it_on_all_shards(tmp_path: Path) -> None:
    """Of two clients at once, or of one that died between the shards."""
    first = replace(ADS, optimizer=hps.Adagrad(lr=0.5), features=["a"])
    with service(tmp_path, 3, tables=()) as servers:
        servers.shards[0].create_table(first)
        with servers.client() as client:
            with pytest.raises(ConfigError, match=r"'ads' is not on all.*\b1 .*\b2 .*lack it"):
                client.pull("ads", EDGES)
            with pytest.raises(RemoteError, match="its dim is 8, requested is 9"):
                client.create_table(replace(ADS, dim=9))
            assert [len(shard.tables) for shard in servers.shards] == [1, 0, 0]
            assert client.create_table(ADS) and not client.create_table(ADS)
            assert [shard.tables for shard in servers.shards] == [[first]] * 3
            assert client.tables == {"ads": first}
            client.push("ads", EDGES, np.ones((6, 8), np.float32))
        with servers.client("other") as other:
            assert other.num_rows("ads") == 4


def test_a_table_that_is_younger_than_the_checkpoint_is_empty_on_all_shards(tmp_path: Path) -> None:
    late = hps.TableConfig(name="late", dim=8, features=["late"])
    tables = (replace(ADS, features=["a"]),)
    with service(tmp_path, 2, tables=tables) as servers, servers.client() as client:
        client.checkpoint("base")
        client.create_table(late)
        client.push("late", EDGES, np.ones((6, 8), np.float32))
        client.restore("base")
        assert client.num_rows("late") == 0 and not client.create_table(late)
        client.push("late", EDGES, np.ones((6, 8), np.float32), ack="durable")
        assert client.num_rows("late") == 4


def parts_of(client: Any) -> list[list[str]]:
    """Of each shard the tags of its checkpoints, but for those that it took by itself."""
    return [
        [i.tag for i in infos if i.tag != AUTOMATIC] for infos in client._checkpoints.parts.listed()
    ]


def grow(client: Any, first: int) -> None:
    keys = np.arange(first, first + 100, dtype=np.uint64)
    client.push("ads", keys, np.ones((100, 8), np.float32))


def test_checkpoint_is_restored_on_all_shards_with_model_and_reader(tmp_path: Path) -> None:
    with service(tmp_path, 3) as servers, servers.client() as client:
        grow(client, 0)
        digest = client.digest("ads")
        info = client.checkpoint("day-1", model={"w": torch.ones(3)}, reader={"line": 7})
        assert info["rows_written"] == 100
        assert info["marks"] == [[1, 1]] * 3  # every shard's
        grow(client, 50)
        model, reader = client.restore("day-1")
        assert torch.equal(model["w"], torch.ones(3)) and reader == {"line": 7}
        assert client.digest("ads") == digest
        grow(client, 100)  # in new sessions
        assert client.num_rows("ads") == 200
        assert client.checkpoint_state("day-1")[1] == {"line": 7}


def test_untagged_checkpoints_give_way_and_leave_nothing_on_any_shard(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        client.checkpoint("kept")
        for number in range(4):
            grow(client, 100 * number)
            client.checkpoint(reader={"number": number})
        client.checkpoint("kept", reader={"number": 9})  # replaces the older one
        listed = client.checkpoints()
        assert [info["tag"] for info in listed] == [None, None, "kept"]
        assert [client.checkpoint_state(info["id"])[1]["number"] for info in listed] == [2, 3, 9]
        assert [len(parts) for parts in parts_of(client)] == [3, 3]
        client.delete_checkpoint(listed[0]["id"])
        assert [len(parts) for parts in parts_of(client)] == [2, 2]


def test_checkpoint_that_a_shard_lacks_is_not_listed_and_no_shard_goes_back(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        grow(client, 0)
        client.checkpoint("day-1")
        grow(client, 100)
        digest = client.digest("ads")
        (part,) = parts_of(client)[1]
        servers.shards[1].delete_checkpoint(part)
        assert client.checkpoints() == []
        with pytest.raises(
            ConfigError, match=r"all 2 shard\(s\) hold: there is no checkpoint 'day-1'"
        ):
            client.restore("day-1")
        assert client.digest("ads") == digest


def test_death_before_shard_0_leaves_no_checkpoint(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        grow(client, 0)
        client.checkpoint(reader={"number": 1})
        ask = Connections.ask_all

        def die_at_shard_0(self: Any, method: str, request: Any, *rest: Any) -> Any:
            if method == "Checkpoint" and request.HasField("reader"):
                raise RemoteError("shard 0 died")
            return ask(self, method, request, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connections, "ask_all", die_at_shard_0)
            with pytest.raises(RemoteError, match="died"):
                client.checkpoint(reader={"number": 2})
        assert len(parts_of(client)[1]) == 2  # its part is there, and no checkpoint
        assert client.restore() == (None, {"number": 1})


def test_restore_that_reaches_one_shard_only_is_seen_and_can_be_repeated(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        grow(client, 0)
        client.checkpoint("day-1")
        digest = client.digest("ads")
        grow(client, 100)
        servers.shards[0].restore("day-1")  # as if the client died in the middle
        with pytest.raises(RemoteError, match="restored meanwhile"):
            grow(client, 200)
        with servers.client("other") as other:
            with pytest.raises(RemoteError, match=r"at different checkpoints.*restore"):
                other.pull("ads", EDGES)
            other.restore("day-1")
            assert other.digest("ads") == digest
            grow(other, 0)


def test_restore_can_be_repeated_by_a_client_whose_session_cannot_go_on(tmp_path: Path) -> None:
    with service(tmp_path) as made, made.client(deadline=5.0) as client:
        grow(client, 0)
        client.checkpoint("one")
        digest = client.digest("ads")
        grow(client, 100)
        made.shards[0].restore("one", "half")  # it did not reach the other one
        client._connections.sessions[0].break_off()
        client.restore("one")
        assert client.digest("ads") == digest
        grow(client, 200)


def test_restore_waits_for_no_pipeline_but_refuses_one(tmp_path: Path) -> None:
    with service(tmp_path, 1) as servers, servers.client() as client:
        client.checkpoint("day-1")
        with hps.Pipeline([], client), pytest.raises(ConfigError, match="open pipeline"):
            client.restore("day-1")


def test_importing_hps_imports_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys, hps, hps.pipeline, hps.train, hps.cli.main, hps.parameter_server.server\n"
        "assert hps.TlsConfig\n"
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def broken_streams(monkeypatch: pytest.MonkeyPatch, pieces: list[int]) -> list[int]:
    """The next streams break after so many pieces each; the list shows those still to break."""
    opened = GrpcTransport.stream

    def stream(self: GrpcTransport, *arguments: Any) -> Iterator[bytes]:
        left = pieces.pop(0) if pieces else None
        for number, reply in enumerate(opened(self, *arguments)):
            if number == left:
                break
            yield reply
        if left is not None:
            raise Failure(grpc.StatusCode.UNAVAILABLE, None, "planted")

    monkeypatch.setattr(GrpcTransport, "stream", stream)
    return pieces


def test_a_stream_that_has_not_begun_is_begun_again_after_the_changes_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        keys = np.arange(50, dtype=np.uint64)
        client.assign("ads", keys, np.ones((50, 8), np.float32))
        before = rows_of(client)
        left = broken_streams(monkeypatch, [0, 0, 0])
        assert rows_of(client) == before and not left
        for session in client._connections.sessions:
            session.break_off()  # what is pushed now waits to be sent again
        pushed = client.push_async("ads", keys, np.ones((50, 8), np.float32), ack="memory")
        assert not any(
            session.window.marks.applied == 2 for session in client._connections.sessions
        )
        after = rows_of(client)
        assert after.keys() == before.keys() and all(after[key] != before[key] for key in after)
        pushed.result(60)


def test_a_stream_that_breaks_in_the_middle_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        keys = np.arange(200, dtype=np.uint64)
        client.assign("ads", keys, np.ones((200, 8), np.float32))
        broken_streams(monkeypatch, [1])
        with pytest.raises(RemoteError, match="planted"):
            rows_of(client)
        assert len(rows_of(client)) == 200
