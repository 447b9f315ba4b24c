"""Promoted names over shards: they move, go back, keep every part of what they name, and are told.

Above it: pytest. Below it: hps.RemoteParameterServer over real shards and servers, `hps models`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError
from hps.service.client.checkpoints import RemoteParts, ShardsCheckpoint
from hps.service.client.errors import Failure
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.client.transport import GrpcTransport
from hps.ssd_store.promote import promote
from hps.train import TrainOptions
from hps.train.model_list import served_models
from hps.train.store_checks import check_tag_free
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.client_lab import ADS, Service, service

KEYS = np.arange(64, dtype=np.uint64)


def take(client: RemoteParameterServer, tag: str | None, model: Any = None) -> int:
    """A checkpoint of rows that are others than before; its id."""
    client.push("ads", KEYS, np.ones((len(KEYS), ADS.dim), np.float32))
    client.checkpoint(tag, model=model)
    return int(client.checkpoints()[-1]["id"])


def names(client: RemoteParameterServer) -> dict[str | int, list[str]]:
    """By tag, or id."""
    return {one["tag"] or one["id"]: one["names"] for one in client.checkpoints()}


@pytest.fixture(params=[1, 3])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, request.param) as made:
        yield made


def test_a_name_moves_and_goes_back_and_is_taken_for_a_tag(servers: Service) -> None:
    with servers.client() as client:
        digests = []
        for day in ("day-1", "day-2", "day-3"):
            take(client, day, {"day": day})
            digests.append(client.digest("ads"))
        first = client.checkpoints()[0]["id"]
        told = {"name": "live", "checkpoint": "day-1", "id": first, "before": None}
        assert client.names.promote("day-1") == told
        assert client.names.promote("day-3")["before"] == "day-1"
        assert client.names.promote("live", "canary")["checkpoint"] == "day-3"
        assert names(client) == {"day-1": [], "day-2": [], "day-3": ["canary", "live"]}
        assert client.checkpoint_state("live")[0] == {"day": "day-3"}
        assert client.names.roll_back() == {**told, "before": "day-3"}
        assert client.restore("live")[0] == {"day": "day-1"}
        assert client.digest("ads") == digests[0]
        with pytest.raises(ConfigError, match=r"'live' is checkpoint .* none that had the name"):
            client.names.roll_back()
        with pytest.raises(ConfigError, match="'day-1' is promoted as 'live'; promote another"):
            client.delete_checkpoint("live")
        assert client.names.drop("live")["before"] == "day-1"
        with pytest.raises(ConfigError, match=r"'live' is no promoted name .* there are: 'canary'"):
            client.names.roll_back("live")
        client.delete_checkpoint("day-1")
        assert names(client) == {"day-2": [], "day-3": ["canary"]}
        for wrong in ("day-2", "final", "a b"):
            with pytest.raises(ConfigError):
                client.names.promote("day-3", wrong)
        with pytest.raises(ConfigError, match="there is no checkpoint 'day-9'"):
            client.names.promote("day-9")


def test_what_has_a_name_or_had_it_last_is_kept_on_all_shards(servers: Service) -> None:
    with servers.client() as client:
        before, digest_before = take(client, None), client.digest("ads")
        client.names.promote(before)
        now, digest = take(client, "day-1"), client.digest("ads")
        client.names.promote("day-1")
        for _ in range(4):
            take(client, None)
        take(client, "day-1")  # which the older one had
        kept = names(client)
        assert kept[before] == [] and kept[now] == ["live"] and kept["day-1"] == []
        assert len(kept) == 5
        with pytest.raises(ConfigError, match="promoted name"):
            client.checkpoint("live")
        client.restore("live")
        assert client.digest("ads") == digest
        assert client.names.roll_back()["id"] == before
        client.restore("live")
        assert client.digest("ads") == digest_before


def test_a_name_may_come_between_a_look_and_a_deletion(
    servers: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = RemoteParts.to_delete
    path = servers.stores()[0]

    def then_promoted(self: RemoteParts, tag: str | int) -> Any:
        found = find(self, tag)
        promote(path, found.info.id)  # as `hps models DIR`, beside the server
        return found

    with servers.client() as client:
        take(client, "day-1")
        digest = client.digest("ads")
        take(client, "day-2")
        monkeypatch.setattr(RemoteParts, "to_delete", then_promoted)
        with pytest.raises(ConfigError, match="is promoted as 'live'"):
            client.delete_checkpoint("day-1")
        client.restore("live")
        assert client.digest("ads") == digest


def test_a_name_may_come_while_older_checkpoints_are_tidied_away(
    servers: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that was taken is there, and its caller is told so."""
    delete = RemoteParts.delete
    path = servers.stores()[0]

    def once_promoted(self: RemoteParts, whole: ShardsCheckpoint) -> list[str]:
        promote(path, whole.info.id)
        return delete(self, whole)

    with servers.client() as client:
        first, digest = take(client, None), client.digest("ads")
        take(client, None)
        monkeypatch.setattr(RemoteParts, "delete", once_promoted)
        last = take(client, None)
        assert names(client)[first] == ["live"] and last in names(client)
        client.restore("live")
        assert client.digest("ads") == digest


def test_models_are_listed_beside_a_training_that_deletes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = RemoteParameterServer.checkpoint_state

    def once_gone(self: RemoteParameterServer, tag: Any = None) -> Any:
        if tag == first:
            self.delete_checkpoint(tag)
        return ask(self, tag)

    with service(tmp_path, 2) as servers, servers.client() as client:
        first = take(client, "day-1", {"day": 1})
        take(client, "day-2", {"day": 2})
        monkeypatch.setattr(RemoteParameterServer, "checkpoint_state", once_gone)
        assert [one["tag"] for one in served_models(client)] == ["day-2"]


class LosesAnswers(GrpcTransport):
    """The way back fails for the first answer to a move of a name."""

    lost: ClassVar[list[str]] = []

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        reply = super().call(method, request, timeout)
        if method == "MoveName" and not self.lost:
            self.lost.append(method)
            raise Failure(grpc.StatusCode.UNAVAILABLE, None, "the answer was lost")
        return reply


class Unlucky(RemoteParameterServer):
    _connect = LosesAnswers


def test_a_name_goes_back_once_where_the_answer_is_lost(servers: Service) -> None:
    with servers.client() as client:
        for day in ("day-1", "day-2", "day-3"):
            take(client, day)
            client.names.promote(day)
    with Unlucky(servers.addresses, "another") as client:
        for move, then in ((client.names.roll_back, "day-2"), (client.names.drop, None)):
            LosesAnswers.lost.clear()
            assert move("live")["checkpoint"] == then
            assert LosesAnswers.lost
        assert not any(names(client).values())


class Nameless(GrpcTransport):
    """To a server that has no names."""

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        return _nameless(method, super().call(method, request, timeout))

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        pending = super().start(method, request, timeout)
        reply = pending.reply
        pending.reply = lambda: _nameless(method, reply())
        return pending


def _nameless(method: str, reply: bytes) -> bytes:
    if method != "Describe":
        return reply
    described = pb.DescribeReply.FromString(reply)
    described.ClearField("has_names")
    return described.SerializeToString()


def test_who_has_no_names_is_not_asked(tmp_path: Path) -> None:
    class Client(RemoteParameterServer):
        _connect = Nameless

    with service(tmp_path, 2) as servers:
        with Client(servers.addresses) as client:
            take(client, "day-1")
            for move in (client.names.promote, client.names.roll_back, client.names.drop):
                with pytest.raises(ConfigError, match=r"shard 0 .* has no promoted names"):
                    move("day-1")
        with servers.client() as client:
            names_of = client.names
            request = pb.MoveNameRequest(name="live", checkpoint="day-1")
            monkey = client._connections.sessions[1:]
            with pytest.raises(ConfigError, match="those of shard 0, and this is shard 1 of 2"):
                client._connections.ask_all("MoveName", request, pb.MoveNameReply, monkey)
            for wrong in (
                pb.MoveNameRequest(name="live"),
                pb.MoveNameRequest(name="live", checkpoint="day-1", leaves=1.0),
                pb.MoveNameRequest(name="live", checkpoint="day-1", drop=True),
            ):
                with pytest.raises(ConfigError, match="MoveName: give the checkpoint that gets"):
                    names_of._move(wrong)


def test_the_command_lists_promotes_and_rolls_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    with service(tmp_path, 2) as servers:
        with servers.client() as client:
            for day in ("day-1", "day-2"):
                take(client, day, {"day": day})
            client.checkpoint("rows")
            client.push("ads", KEYS, np.ones((len(KEYS), ADS.dim), np.float32))
            client.checkpoint("bare")
        command = ["models", "--server", ",".join(servers.addresses)]

        def said(*more: str) -> str:
            assert main([*command, *more]) == 0
            return capsys.readouterr().out

        assert "live is day-1" in said("--promote", "day-1")
        assert "live is day-2; it was day-1" in said("--promote", "day-2", "--as", "live")
        lines = said("--json", str(out)).splitlines()
        listed = json.loads(out.read_text())
        assert [one["names"] for one in listed if one["tag"] == "day-2"] == [["live"]]
        assert [one["tag"] for one in listed] == ["day-1", "day-2", "rows"]
        assert any("day-2 (live)" in line and "unknown" in line for line in lines) or not lines
        assert "model day-2" in said("--show", "live")
        assert "live is day-1; it was day-2" in said("--roll-back", "live")
        assert "live is no name any more; it was day-1" in said("--drop", "live")
        assert main([*command, "--promote", "bare"]) == 1
        assert "'bare' holds no model" in capsys.readouterr().err
        assert main([*command, "ctr"]) == 1 and main(["models"]) == 1
        assert "give DIR or --server" in capsys.readouterr().err
        names_told = ["client", "checkpoints", *command[1:]]
        main([*command, "--promote", "day-1"])
        assert main(names_told) == 0 and "promoted as live" in capsys.readouterr().out


def test_a_run_does_not_take_a_name_for_its_tag(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        take(client, "day-1")
        client.names.promote("day-1")
        options = TrainOptions(data=["log"], remote=client.config, tag="live")
        words = rf"it is a promoted name.*hps models --server {','.join(servers.addresses)} --prom"
        with pytest.raises(ConfigError, match=words):
            check_tag_free(options, client, None)


def test_the_store_of_one_server_has_the_same_names(tmp_path: Path) -> None:
    with service(tmp_path, 1) as servers:
        with servers.client() as client:
            take(client, "day-1")
            client.names.promote("day-1")
        path = servers.stores()[0]
    with hps.open(path, checkpoint="live") as reader:
        assert reader.num_rows("ads") == len(KEYS)
