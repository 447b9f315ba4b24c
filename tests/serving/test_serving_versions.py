"""Versions of a served model: an operator goes back and forth by call and command, beside requests.

Above it: pytest. Below it: hps.serving, `hps versions`, versions that publish_lab.py has published.
"""

import io
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.cli.main import main
from hps.service.client.options import ClientConfig
from hps.service.messages.status import Refusal
from hps.service.server.log_lines import LogLines
from hps.serving.client import ModelServerClient
from hps.serving.scorer import Scorer, ScoringOptions
from hps.serving.tensors import Tensor
from hps.serving.versions import Versions
from tests.publish.publish_lab import copy_up_to, publish_days, scores_of, show, wait_for
from tests.serving.conftest import Models
from tests.serving.serving_lab import NAME, Local, bytes_input, process, serving
from tests.serving.test_serving_access import bearer

VERSIONS, VERSION = f"/v1/models/{NAME}/versions", f"/v1/models/{NAME}:version"


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    publish_days(folder)
    return folder


@pytest.fixture(scope="module")
def expected(days: Path) -> dict[str, torch.Tensor]:
    """Scores of the third day's first lines by each version."""
    with hps.Model.load(days / "store") as model:
        batch = next(iter(model.open_reader([days / "day-3.libsvm"], batch_size=50)))
    return scores_of(days, batch)


@pytest.fixture
def place(days: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(days / "pub", tmp_path / "pub"))


@pytest.fixture
def followed(place: Path, tmp_path: Path) -> Iterator[tuple[hps.Model, Local]]:
    """A server of what is published at `place`."""
    cache = tmp_path / "cache"
    options: Any = {"follow": True, "poll_seconds": 0.02, "dram": "8MiB", "cache_dir": cache}
    with hps.Model.load(place, **options) as model, serving(model) as local:
        yield model, local


def lines_of(days: Path) -> dict[str, Any]:
    lines = (days / "day-3.libsvm").read_text().splitlines()[:50]
    return bytes_input("lines", lines)


def client_of(local: Local, name: str = NAME, **more: Any) -> ModelServerClient:
    return ModelServerClient(ClientConfig(addresses=[local.server.address], **more), name)


def test_a_change_that_was_made_is_no_error_when_the_list_is_away(
    followed: tuple[hps.Model, Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, local = followed

    def fail(*_: Any) -> None:
        raise hps.StoreError(5, "the place is away")

    monkeypatch.setattr(model, "check_kept", lambda number: None)
    with client_of(local) as client:
        monkeypatch.setattr(type(model), "versions", fail)
        state = client.go_to(2)
        assert (state["served"], state["following"], state["versions"]) == (2, False, [])
        assert "cannot be listed now" in state["error"] and "is away" in state["error"]
        with pytest.raises(hps.HpsError, match="the place is away"):
            client.versions()


def test_a_server_goes_back_and_forth_and_follows_again(
    days: Path, place: Path, expected: dict[str, torch.Tensor], followed: tuple[hps.Model, Local]
) -> None:
    _, local = followed
    given = lines_of(days)

    def scored() -> str:
        status, reply = local.infer(given)
        assert status == 200
        version = str(reply["model_version"])
        assert reply["outputs"][0]["data"] == pytest.approx(expected[version].tolist(), abs=1e-6)
        return version

    with client_of(local) as client:
        state = client.versions()
        assert (state["served"], state["newest"], state["following"]) == (3, 3, True)
        assert [one["number"] for one in state["versions"]] == [1, 2, 3] and state["kept"] == 3
        assert state["versions"][0]["kind"] == "base"
        assert all(one["checkpoint"] and one["rows"] and one["bytes"] for one in state["versions"])
        assert scored() == "3"
        for number in (1, 2, 1):
            state = client.go_to(number)
            assert (state["served"], state["following"], state["changing"]) == (number, False, 0)
            assert scored() == str(number)
        state = client.follow()
        assert state["following"] and state["newest"] == 3
        wait_for(lambda: scored() == "3")
    assert [one["asked"] for one in local.log("version")] == [1, 2, 1, "follow"]


def test_the_same_over_http(days: Path, followed: tuple[hps.Model, Local]) -> None:
    model, local = followed
    status, state = local.ask(VERSIONS)
    assert status == 200 and (state["served"], state["kept"]) == (3, 3)
    assert (
        state["versions"][0] | {"version": 1, "kind": "base", "error": None}
        == (state["versions"][0])
    )
    status, state = local.ask(VERSION, {"version": 1})
    assert status == 200 and (state["served"], state["following"]) == (1, False)
    assert local.infer(lines_of(days))[1]["model_version"] == "1"
    status, state = local.ask(VERSION, {"follow": True})
    assert status == 200 and state["following"]
    wait_for(lambda: model.version == "3")
    for wrong in ({}, {"version": "1"}, {"version": True}, {"follow": 1}, {"version": 1, "x": 2}):
        status, said = local.ask(VERSION, wrong)
        assert status == 400 and 'give {"version": 41}' in said["error"]
    for number in (0, -1, 2**63):
        status, said = local.ask(VERSION, {"version": number})
        assert status == 400 and "numbered from 1" in said["error"]


def test_what_cannot_be_served_is_refused_and_the_version_goes_on(
    days: Path, place: Path, expected: dict[str, torch.Tensor], followed: tuple[hps.Model, Local]
) -> None:
    model, local = followed
    with client_of(local) as client:
        with pytest.raises(hps.ConfigError, match=r"NOT_FOUND: .*9 is not kept; those are 1 to 3"):
            client.go_to(9)
        assert model.following()["is_following"]
        (rows,) = (place / "data").glob("00000001-*/rows-*-0.arrow")
        whole = rows.read_bytes()
        rows.write_bytes(whole[:-1])
        with pytest.raises(hps.CorruptionError, match=rows.name):
            client.go_to(1)
        state = client.versions()
        assert rows.name in state["change_error"]
        assert (state["served"], state["following"]) == (3, True)
        shutil.copy(place / "version-00000003.json", place / "version-00000002.json")
        with pytest.raises(hps.CorruptionError, match="it is the file of version 3"):
            client.go_to(2)
        assert "file of version 3" in client.versions()["versions"][1]["error"]
        rows.write_bytes(whole)
        assert client.go_to(1)["change_error"] == ""
        (place / "version-00000001.json").unlink()  # as its publisher does of an old one
        state = client.versions()
        assert state["served"] == 1 and [one["number"] for one in state["versions"]] == [2, 3]
        status, reply = local.infer(lines_of(days))
        assert (status, reply["model_version"]) == (200, "1")


def test_a_model_of_a_store_has_no_versions(models: Models) -> None:
    _, model = models("criteo")
    with serving(model) as local, client_of(local) as client:
        for call in (client.versions, client.follow, lambda: client.go_to(1)):
            with pytest.raises(hps.ConfigError, match="follows no versions"):
                call()
        assert local.ask(VERSION, {"version": 1})[0] == 412
        with client_of(local, "nix") as other, pytest.raises(hps.ConfigError, match="no model"):
            other.versions()


def test_rights_of_versions(place: Path, tmp_path: Path) -> None:
    secrets = {name: f"{name}-secret-0123456789" for name in ("reader", "writer", "admin")}
    rights = {"reader": "read", "writer": "write", "admin": "admin"}
    entries = [
        {"name": name, "token": secret, "tables": {"*": [rights[name]]}}
        for name, secret in secrets.items()
    ]
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": entries}))
    body = {"version": "3", "scores": [0.5], "labels": [1]}
    with (
        hps.Model.load(place, dram="8MiB") as model,
        serving(model, tokens=tmp_path / "tokens.json") as local,
    ):
        for name, statuses in (
            ("reader", (200, 403, 403)),
            ("writer", (200, 403, 200)),
            ("admin", (200, 200, 200)),
        ):
            headers = bearer(secrets[name])
            with client_of(local, token=secrets[name]) as client:
                calls = (
                    lambda client=client: client.versions(),
                    lambda client=client: client.go_to(2),
                    lambda client=client: client.add_outcomes("3", [0.5], [1]),
                )
                for call, expected in zip(calls, statuses, strict=True):
                    if expected == 200:
                        call()
                    else:
                        with pytest.raises(hps.HpsError, match=r"PERMISSION_DENIED.*lacks"):
                            call()
            found = (
                local.ask(VERSIONS, headers=headers)[0],
                local.ask(VERSION, {"version": 2}, headers=headers)[0],
                local.ask(f"/v1/models/{NAME}:outcome", body, headers=headers)[0],
            )
            assert found == statuses
        assert local.ask(VERSIONS)[0] == local.ask(VERSION, {"version": 1})[0] == 401


def test_requests_beside_changes_of_version_do_not_fail(
    days: Path, expected: dict[str, torch.Tensor], followed: tuple[hps.Model, Local]
) -> None:
    _, local = followed
    given, over = lines_of(days), threading.Event()
    seen: set[str] = set()
    wrong: list[object] = []

    def ask() -> None:
        while not over.is_set():
            status, reply = local.infer(given)
            version = reply.get("model_version")
            seen.add(version)
            if status != 200 or reply["outputs"][0]["data"] != pytest.approx(
                expected[version].tolist(), abs=1e-6
            ):
                wrong.append(reply)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with client_of(local) as client:
            for number in (1, 2, 3, 1, 2):
                client.go_to(number)
                wait_for(lambda number=number: str(number) in seen)  # type: ignore[misc]
                time.sleep(0.05)
            client.follow()
            wait_for(lambda: client.versions()["served"] == 3)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not wrong and seen == {"1", "2", "3"}


class Held:
    """A destination that gives no file of rows before it is let."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self.is_let = threading.Event()
        self.is_asked = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def open(self, name: str) -> Any:
        if "rows-" in name:
            self.is_asked.set()
            assert self.is_let.wait(60)
        return self._place.open(name)


@pytest.fixture
def held(followed: tuple[hps.Model, Local]) -> Held:
    follower: Any = followed[0]._follower
    follower.destination = held = Held(follower.destination)
    return held


def test_a_change_outlives_its_call_and_no_second_one_begins_meanwhile(
    days: Path, followed: tuple[hps.Model, Local], held: Held
) -> None:
    model, local = followed
    with client_of(local, deadline=0.5) as hasty, client_of(local) as client:
        with pytest.raises(hps.RemoteError, match="DEADLINE_EXCEEDED"):
            hasty.go_to(1)
        state = client.versions()
        assert (state["changing"], state["served"]) == (1, 3)
        assert local.infer(lines_of(days))[1]["model_version"] == "3"
        with pytest.raises(hps.RemoteError, match="ABORTED: a change to version 1 is under way"):
            client.go_to(2)
        assert local.ask(VERSION, {"follow": True})[0] == 409
        held.is_let.set()
        wait_for(lambda: client.versions()["changing"] == 0)
        assert model.version == "1" and not model.following()["is_following"]


def test_a_model_is_closed_beside_a_change(followed: tuple[hps.Model, Local], held: Held) -> None:
    model, local = followed
    with client_of(local) as client:
        refused: list[BaseException] = []

        def change() -> None:
            try:
                client.go_to(1)
            except hps.HpsError as error:
                refused.append(error)

        asking = threading.Thread(target=change)
        asking.start()
        assert held.is_asked.wait(60)
        closing = threading.Thread(target=model.close)
        closing.start()
        wait_for(lambda: model._follower._is_closed)  # type: ignore[union-attr]
        held.is_let.set()
        for thread in (asking, closing):
            thread.join(60)
            assert not thread.is_alive()
        assert len(refused) == 1 and "reading it was ended" in str(refused[0])


def test_a_request_made_for_a_model_that_goes_is_made_again(
    place: Path, days: Path, expected: dict[str, torch.Tensor]
) -> None:
    """Between the making of its batch and its scoring another model comes."""
    with hps.Model.load(place, dram="8MiB") as model:
        from hps.serving.scorer import ScoringOptions

        scorer = Scorer(model, ScoringOptions(name=NAME))
        score, made = scorer.batcher.score, []

        def late(batch: hps.Batch, deadline: float) -> Any:
            made.append(batch)
            if len(made) == 1:
                model.roll_back(1)
            return score(batch, deadline)

        scorer.batcher.score = late  # type: ignore[method-assign]
        lines = (days / "day-3.libsvm").read_text().splitlines()[:50]
        found = scorer._scored(
            lambda: scorer.inputs.lines.batch_of(lines),  # type: ignore[union-attr]
            "",
            time.monotonic() + 60,
        )
        assert len(made) == 2 and found.version == "1"
        assert found.scores.tolist() == pytest.approx(expected["1"].tolist(), abs=1e-6)


def test_the_command_lists_and_changes_versions(
    place: Path, days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert main(["versions", str(place), "--json", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].split()[:2] == ["version", "published"] and len(told) == 4
    assert json.loads(out.read_text())["versions"][2]["version"] == 3
    assert main(["versions", str(place), "--limit", "1"]) == 0
    assert "2 older ones are kept, too" in capsys.readouterr().out
    assert main(["versions", str(tmp_path / "none")]) == 0
    assert "nothing is published here" in capsys.readouterr().out
    assert main(["versions", str(place), "--set", "1"]) == 1
    assert "give --server" in capsys.readouterr().err
    assert main(["versions"]) == 1
    assert "give URL or --server" in capsys.readouterr().err
    with hps.Model.load(place, dram="8MiB") as model, serving(model) as local:
        server = ["versions", "--server", local.server.address]
        assert main([*server, "--set", "2", "--json", str(out)]) == 0
        assert "scores with version 2, and follows no more" in capsys.readouterr().out
        assert json.loads(out.read_text())["served"] == 2 and model.version == "2"
        assert main(server) == 0
        told = capsys.readouterr().out.splitlines()
        assert told[2].strip().startswith("* 2 ") and "does not follow newer ones" in told[-1]
        assert main([*server, "--set", "7"]) == 1
        assert "version 7 is not kept; those are 1 to 3" in capsys.readouterr().err
        assert main([*server, "--follow"]) == 0
        assert "follows; version 3 is the newest" in capsys.readouterr().out
        two = f"{local.server.address},{local.server.address[:-1]}"
        assert main(["versions", "--server", two]) == 1
        assert "name one" in capsys.readouterr().err


def test_scores_are_of_the_version_that_was_asked_for_or_none_are_given(
    days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_up_to(days, tmp_path / "pub", 2)
    lines = Tensor("lines", "BYTES", (1,), [lines_of(days)["data"][0].encode()])
    with hps.Model.load(tmp_path / "pub", dram="8MiB") as model:
        scorer, predict = Scorer(model, ScoringOptions(name=NAME)), model.predict_with_version

        def predict_then_change(batch: Any) -> tuple[torch.Tensor, str]:
            found = predict(batch)
            if model.version == "2":
                show(days, tmp_path / "pub", 3)
                assert model._follower is not None and model._follower.look()
            return found

        monkeypatch.setattr(model, "predict_with_version", predict_then_change)
        with pytest.raises(Refusal, match="has no version '3' here; it has '2'"):
            scorer.infer([lines], {}, "3", float("inf"))
        assert scorer.infer([lines], {}, "3", float("inf")).version == "3"


def test_a_change_that_ends_at_its_deadline_is_no_late_one(
    followed: tuple[hps.Model, Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndsLate(Future[None]):
        """Is done after its time is over, and before it is looked at."""

        def result(self, timeout: float | None = None) -> None:
            if timeout is not None:
                raise TimeoutError
            super().result()

    class Now:
        """Does a call where it is asked for."""

        def submit(self, call: Any, number: int) -> Future[None]:
            change = EndsLate()
            try:
                call(number)
                change.set_result(None)
            except BaseException as error:
                change.set_exception(error)
            return change

    model, _ = followed
    versions = Versions(model, LogLines(io.StringIO()))
    monkeypatch.setattr(versions, "_thread", Now())
    assert versions.go_to(2, time.monotonic() + 60)["served"] == 2
    monkeypatch.setattr(model, "roll_back", lambda number: (_ for _ in ()).throw(TimeoutError("s")))
    with pytest.raises(TimeoutError, match="s"):
        versions.go_to(1, time.monotonic() + 60)
    assert versions.state()["change_error"] == "TimeoutError: s"


def test_a_client_names_what_no_request_can_hold(followed: tuple[hps.Model, Local]) -> None:
    _, local = followed
    with client_of(local) as client:
        for call in (
            lambda: client.go_to(-1),
            lambda: client.go_to(2**64),
            lambda: client.versions(limit=-1),
            lambda: client.add_outcomes("3", [0.5], ["click"]),  # type: ignore[list-item]
        ):
            with pytest.raises(hps.ConfigError, match=r"Request of \{"):
                call()
        assert client.versions()["served"] == 3


def test_a_server_that_is_started_again_follows_the_newest(days: Path, tmp_path: Path) -> None:
    copy_up_to(days, tmp_path / "pub", 2)
    flags = ("--cache-dir", str(tmp_path / "cache"), "--poll-seconds", "0.05")
    with process(tmp_path / "pub", *flags) as server:
        with ModelServerClient(ClientConfig(addresses=[server.address])) as client:
            assert client.go_to(1)["served"] == 1
            show(days, tmp_path / "pub", 3)
            time.sleep(0.2)
            assert client.versions()["served"] == 1
        assert server.stop() == 0
    with (
        process(tmp_path / "pub", *flags) as server,
        ModelServerClient(ClientConfig(addresses=[server.address])) as client,
    ):
        wait_for(lambda: client.versions()["served"] == 3)
        assert client.versions()["following"]


def test_a_published_model_is_measured_as_its_checkpoint(
    days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = str(days / "day-3.libsvm"), tmp_path / "out.json"
    names = ("auc", "logloss", "calibration", "examples")
    for number in (1, 3):
        figures = []
        for where in (
            ["--model", str(days / "pub"), "--version", str(number)],
            ["--store", str(days / f"store-{number}")],
        ):
            assert main(["evaluate", log, *where, "--json", str(out)]) == 0
            found = json.loads(out.read_text())
            figures.append({name: found[name] for name in names})
        assert figures[0] == figures[1]
        assert f"of version {number} of" in capsys.readouterr().out
    assert main(["evaluate", log, "--model", str(tmp_path)]) == 1
    assert "no model is published here" in capsys.readouterr().err
    assert main(["evaluate", log, "--model", str(days / "pub"), "--tag", "x"]) == 1
    assert "--tag is of a store" in capsys.readouterr().err
    assert main(["evaluate", log, "--model", str(days / "pub"), "--store", "x"]) == 1
    assert "give --store" in capsys.readouterr().err
