"""Models and erased rows over shards; and stores that were put under another shard's address."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.common.sharding import ShardMap
from hps.errors import RemoteError
from hps.service.client.connections import Connections
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.shard.core import AUTOMATIC
from hps.service.shard.shard import Shard, ShardOptions
from hps.train.checkpoints import newest_with_model
from hps.update_log.history import SERVICE, History
from tests.service.client.client_lab import ADS, service

KEYS = np.arange(64, dtype=np.uint64)
MODEL: dict[str, Any] = {"model": {"step": 1}, "reader": {"line": 1}}
FINAL = ({"step": 1}, {"line": 1})


def ones(keys: np.ndarray) -> np.ndarray:
    return np.ones((len(keys), ADS.dim), np.float32)


def train(client: RemoteParameterServer, tag: str = "final") -> None:
    client.push("ads", KEYS, ones(KEYS))
    client.checkpoint(tag, **MODEL)


def checkpoint_by_itself(shard: Shard) -> None:
    """As it does when its log has grown."""
    with shard.parts.store.gate.change(monotonic() + 60):
        shard.parts.store.save(AUTOMATIC, {}, "")


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_goes_with_rows_that_no_client_has_pushed_to(tmp_path: Path, count: int) -> None:
    with service(tmp_path, count) as servers, servers.client() as client:
        train(client)
        client.erase("ads", KEYS[:20])
        for shard in servers.shards:
            checkpoint_by_itself(shard)
        assert client.checkpoint("pruned")["model_from"] == "final"
        found = newest_with_model(client)
        assert found is not None and (found.name, found.model) == ("pruned", FINAL[0])
        assert client.restore("final") == FINAL and client.num_rows("ads") == 64
        assert client.restore("pruned") == FINAL and client.num_rows("ads") == 44
        client.assign("ads", KEYS[:1], ones(KEYS[:1]))
        assert client.checkpoint()["model_from"] == "final"


def current(client: RemoteParameterServer) -> list[str | int]:
    return [one["tag"] or one["id"] for one in client.checkpoints() if one["current"]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("end", ["stopped", "killed", "automatic"])
def test_the_checkpoint_that_was_restored_is_current_after_a_restart(
    tmp_path: Path, count: int, end: str
) -> None:
    first = {"model": {"step": 0}, "reader": {"line": 0}}
    with service(tmp_path, count) as servers, servers.client() as client:
        client.push("ads", KEYS, ones(KEYS))
        client.checkpoint("first", **first)
        train(client)
        client.restore("first")
        client.erase("ads", KEYS[:20])
        assert current(client) == ["first"]
        client.flush(durable=True)
        for shard in servers.shards:
            if end == "automatic":
                checkpoint_by_itself(shard)
            if end != "stopped":
                shard.close(checkpoint=False)
    for _ in range(2):
        with service(tmp_path, count) as servers, servers.client() as client:
            # Of a single shard `last` is listed, which has taken the model of `first` over.
            assert current(client) in ([["first"], ["last"]] if count == 1 else [["first"]])
            assert client.checkpoint_state() == (first["model"], first["reader"])
            found = newest_with_model(client)
            assert found is not None and found.model == first["model"]
    with service(tmp_path, count) as servers, servers.client() as client:
        client.push("ads", KEYS, ones(KEYS))
        client.checkpoint("second")
        client.push("ads", KEYS, ones(KEYS))
        for shard in servers.shards:
            checkpoint_by_itself(shard)
        assert current(client) == ["second"]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_a_checkpoint_that_was_deleted_are_measured_with_no_other_model(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, count) as servers, servers.client() as client:
        train(client, "first")
        train(client, "final")
        client.restore("first")
        client.erase("ads", KEYS[:20])
        for shard in servers.shards:
            checkpoint_by_itself(shard)
        client.delete_checkpoint("first")
        assert current(client) == []
        with pytest.raises(hps.ConfigError, match=r"none of the checkpoints .*'final'.*deleted"):
            newest_with_model(client)
        assert newest_with_model(client, passes_over=True) is not None
        log = tmp_path / "log.csv"
        log.write_text("")
        code = main(["evaluate", str(log), "--server", ",".join(servers.addresses)])
        assert code == 1 and "--checkpoint NAME" in capsys.readouterr().err
        assert client.restore() == FINAL and current(client) == ["final"]


def test_servers_that_do_not_tell_mark_no_checkpoint_by_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        train(client)
        for shard in servers.shards:
            checkpoint_by_itself(shard)
        assert current(client) == ["final"]
        monkeypatch.setattr(History, "descent", lambda self: "")
        assert current(client) == []
        client.restore("final")
        assert current(client) == ["final"]


def test_an_automatic_checkpoint_of_an_older_hps_names_the_one_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = History.extras

    def without_base(self: History, group: str) -> dict[str, bytes]:
        value = json.loads(extras(self, group)[SERVICE])
        value.pop("base", None)
        return {SERVICE: json.dumps(value).encode()}

    with service(tmp_path, 2) as servers, servers.client() as client:
        train(client, "first")
        train(client)
        client.restore("first")
        client.erase("ads", KEYS[:20])
        monkeypatch.setattr(History, "extras", without_base)
    with service(tmp_path, 2) as servers, servers.client() as client:
        assert current(client) == ["first"]


@pytest.mark.parametrize(("shard", "count"), [(0, 2), (1, 2), (1, 3), (2, 3)])
def test_a_push_to_one_shard_ends_it_for_all(tmp_path: Path, shard: int, count: int) -> None:
    with service(tmp_path, count) as servers:
        with servers.client() as client:
            train(client)
            own = KEYS[ShardMap(count).split(KEYS)[shard]]
            client.push("ads", own, ones(own))
            assert "model_from" not in client.checkpoint("pushed")
        with servers.client("other") as client:
            client.erase("ads", KEYS[:20])
            assert "model_from" not in client.checkpoint("pruned")
            with pytest.raises(hps.ConfigError, match=r"'pruned'.*--resume-from final"):
                newest_with_model(client)
            client.restore("final")
            found = newest_with_model(client)
            assert found is not None and found.name == "final"
            client.erase("ads", KEYS[:20])
            assert client.checkpoint("again")["model_from"] == "final"


def test_a_checkpoint_that_dies_between_its_parts_takes_no_model_with_it(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        train(client)
        own = KEYS[ShardMap(2).split(KEYS)[1]]
        client.push("ads", own, ones(own))
        # The part of a checkpoint with a model, of which shard 0 has never heard.
        servers.shards[1].checkpoint(f"cut-{'0' * 32}", group="0" * 32, model_whole="0" * 32)
        assert "model_from" not in client.checkpoint("rows")


def test_marks_outlive_kills(tmp_path: Path) -> None:
    for change, source in (("push", None), ("erase", "final")):
        with service(tmp_path / change, 2) as servers, servers.client() as client:
            train(client)
            if change == "push":
                client.push("ads", KEYS[:1], ones(KEYS[:1]))
            else:
                client.erase("ads", KEYS[:20])
            client.flush(durable=True)
            for shard in servers.shards:
                shard.close(checkpoint=False)  # as a kill leaves it: the log has the change
        with service(tmp_path / change, 2) as servers, servers.client() as client:
            assert client.checkpoint("later").get("model_from") == source


def test_what_a_server_saves_at_its_end_is_passed_over_where_it_was_trained_on(
    tmp_path: Path,
) -> None:
    with service(tmp_path, 1) as servers, servers.client() as client:
        train(client)
        client.push("ads", KEYS, ones(KEYS))
    with service(tmp_path, 1) as servers, servers.client() as client:
        assert [one["tag"] for one in client.checkpoints()] == ["final", "last"]
        found = newest_with_model(client)  # the trainer goes on from where it stood
        assert found is not None and found.name == "final"
        client.restore("final")
        client.erase("ads", KEYS[:20])
    with service(tmp_path, 1) as servers, servers.client() as client:
        found = newest_with_model(client)
        assert found is not None and found.name == "last" and found.model == FINAL[0]


def test_the_command_line_says_whose_model_a_checkpoint_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, 2) as servers:
        with servers.client() as client:
            train(client)
            client.erase("ads", KEYS[:20])
        where = ["--server", ",".join(servers.addresses)]
        assert main(["client", "checkpoint", "pruned", *where]) == 0
        assert "with the model of checkpoint final" in capsys.readouterr().out


# Stores under other addresses.


def trained(folder: Path) -> Path:
    with service(folder, 2) as servers, servers.client() as client:
        train(client)
    return folder


def exchange(folder: Path) -> None:
    (folder / "shard0").rename(folder / "aside")
    (folder / "shard1").rename(folder / "shard0")
    (folder / "aside").rename(folder / "shard1")


def copy_over(folder: Path) -> None:
    shutil.rmtree(folder / "shard1")
    shutil.copytree(folder / "shard0", folder / "shard1")


def put_log(folder: Path) -> None:
    shutil.rmtree(folder / "shard1" / "log")
    shutil.copytree(folder / "shard0" / "log", folder / "shard1" / "log")


@pytest.mark.parametrize("damage", [exchange, copy_over])
def test_a_server_refuses_the_store_of_another_shard(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(trained(tmp_path))
    with (
        pytest.raises(hps.ConfigError, match=r"is shard [01] of 2, requested is [01] of 2"),
        service(tmp_path, 2),
    ):
        pass


def test_verify_finds_rows_of_another_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    with hps.open(tmp_path / "shard0", read_only=False) as server:  # which nobody keeps from it
        server.push("ads", KEYS, ones(KEYS))
    assert main(["verify", str(tmp_path / "shard0")]) == 1
    assert "belong to other shards than 0 of 2" in capsys.readouterr().out


def test_a_log_of_another_shard_is_refused_at_the_opening(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    assert main(["verify", str(tmp_path / "shard1")]) == 0
    put_log(tmp_path)
    assert main(["verify", str(tmp_path / "shard1")]) == 1
    said = capsys.readouterr()
    assert "shard 0 of 2, the newest checkpoint of shard 1 of 2" in said.out
    for options in (ShardOptions(), ShardOptions(index=1, count=2)):
        with pytest.raises(hps.HpsError, match="shard 0 of 2"):
            Shard(hps.Config(path=tmp_path / "shard1", tables=[ADS]), options)


def test_a_client_refuses_servers_over_exchanged_stores(tmp_path: Path) -> None:
    trained(tmp_path)
    with service(tmp_path, 2) as servers:
        servers.servers.reverse()  # as servers without --shard over exchanged folders
        with pytest.raises(hps.ConfigError, match="is shard 1 of 2, not 0 of 2"):
            servers.client()


def test_a_client_that_only_reads_notices_an_exchange(tmp_path: Path) -> None:
    trained(tmp_path)
    with service(tmp_path, 2) as servers:
        client = servers.client()
        assert client.contains("ads", KEYS).all()
        first, second = client._connections.sessions
        first.transport, second.transport = second.transport, first.transport
        for ask in (client.pull, client.contains):
            with pytest.raises(RemoteError, match=r"belongs to shard [01] of 2"):
                ask("ads", KEYS)
        client.close()


@pytest.mark.parametrize("origin", ["another service", "an older copy"])
def test_a_client_refuses_a_shard_of_another_service_or_time(tmp_path: Path, origin: str) -> None:
    folder, other = tmp_path / "one", tmp_path / "other"
    if origin == "another service":
        trained(other)
        trained(folder)
    else:
        with service(folder, 2) as servers, servers.client() as client:
            train(client, "first")
        shutil.copytree(folder, other)
        with service(folder, 2) as servers, servers.client() as client:
            train(client)
    shutil.rmtree(folder / "shard1")
    shutil.copytree(other / "shard1", folder / "shard1")
    with service(folder, 2) as servers, servers.client() as client:
        for verb in (
            lambda: client.pull("ads", KEYS),
            lambda: client.push("ads", KEYS, ones(KEYS)),
            lambda: client.num_rows("ads"),
            client.flush,
        ):
            with pytest.raises(RemoteError, match=r"shard 1 .*lacks its part.*another service"):
                verb()
        if origin == "an older copy":
            assert client.restore("first") == FINAL
            assert client.num_rows("ads") == 64
            train(client)
    if origin == "an older copy":
        with service(folder, 2) as servers, servers.client("second") as client:
            assert client.num_rows("ads") == 64


def test_checkpoints_taken_and_let_go_meanwhile_are_no_reason_to_refuse(tmp_path: Path) -> None:
    with service(tmp_path, 2) as servers, servers.client() as client:
        train(client)
        ask, looks = Connections.ask_all, []

        def between(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
            replies = ask(self, method, *arguments, **options)
            if method == "Describe" and not looks:
                looks.append(method)
                client.checkpoint()
                client.delete_checkpoint("final")
                replies[0].cuts.names[:] = ["1" * 32, *replies[0].cuts.names]  # one that has gone
            return replies

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connections, "ask_all", between)
            with servers.client("second") as second:
                assert second.num_rows("ads") == 64 and looks
