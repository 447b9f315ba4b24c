"""`hps serve-model` as a process: its start, its end, its name among the commands.

Above it: pytest. Below it: hps.cli.serve_model over a real store.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from tests.serving.logs_of_kinds import Trained
from tests.serving.serving_lab import NAME, ask, bytes_input, predicted, process


def test_it_serves_until_sigterm_and_ends_what_is_in_flight(
    stores: Callable[[str], Trained], tmp_path: Path
) -> None:
    made = stores("criteo")
    expected = predicted(made.store, made.log, tmp_path / "scores.npy")
    flags = ("--max-delay-ms", "2000", "--metrics", "127.0.0.1:0", "--drain-seconds", "20")
    with process(made.store, *flags) as server:
        body = json.dumps({"inputs": [bytes_input("lines", made.lines())]}).encode()
        url = f"http://{server.http}/v2/models/{NAME}/infer"
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(ask(url, body)))
        thread.start()
        metrics = next(line["address"] for line in server.log() if line["event"] == "metrics")
        while b"hps_in_flight_requests 1.0" not in ask(f"http://{metrics}/metrics")[2]:
            pass
        assert server.stop() == 0
        thread.join()
        status, _, reply = found[0]
        assert status == 200 and json.loads(reply)["outputs"][0]["data"] == expected
        events = [line["event"] for line in server.log()]
        assert events[-2:] == ["draining", "stopped"]
        (listening,) = (line for line in server.log() if line["event"] == "listening")
        assert (listening["name"], listening["version"]) == (NAME, "final")
        assert listening["address"] == server.address and listening["http"] == server.http
        assert server.log()[-1]["calls_cancelled"] is False


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--checkpoint", "nix"], "nix"),
        (["--http", "0.0.0.0:0"], "--http 0.0.0.0: other machines can reach it"),
        (["--tls-cert", "x"], "--tls-cert and --tls-key: give both or none"),
        (["--name", "a b"], "--name 'a b': the name of a model is"),
        (["--device", "cpu"], "give its budget (--gpu) too"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(
    stores: Callable[[str], Trained],
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    says: str,
) -> None:
    store = str(stores("criteo").store)
    arguments = ["serve-model", store, "--listen", "127.0.0.1:0", "--dram", "8MiB", *flags]
    assert main(arguments) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--listen", "--http", "--metrics"])
def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        ports = {"--listen": "127.0.0.1:0", flag: taken}
        flags = [text for pair in ports.items() for text in pair]
        assert main(["serve-model", str(tmp_path / "nowhere"), *flags]) == 1
    assert f"{flag} {taken}: cannot listen there: Address already in use" in capsys.readouterr().err


def test_the_version_of_a_store_is_its_checkpoints_tag_or_else_its_id(
    stores: Callable[[str], Trained],
) -> None:
    made = stores("libsvm")
    with hps.open(made.store, read_only=False) as server:
        state, position = server.checkpoint_state()
        server.checkpoint(model=state, reader=position)
        newest = server.checkpoints()[-1]["id"]
    with hps.Model.load(made.store, "final", dram="8MiB") as model:
        assert model.version == "final"
        (batch,) = model.open_reader([made.log], batch_size=4096)
        scores, version = model.predict_with_version(batch)
        assert version == "final" and scores.tolist() == model.predict(batch).tolist()
    with hps.Model.load(made.store, newest, dram="8MiB") as model:
        assert model.version == str(newest)


def test_a_published_model_is_followed_version_by_version(
    stores: Callable[[str], Trained], tmp_path: Path
) -> None:
    made, place = stores("criteo"), tmp_path / NAME
    store = tmp_path / "store"
    hps.ssd_store.clone(made.store, store)
    body = json.dumps({"inputs": [bytes_input("lines", made.lines())]}).encode()
    with hps.open(store, read_only=False) as server:
        server.publish(place)
        with process(place, "--poll-seconds", "0.02") as serving:
            url = f"http://{serving.http}/v2/models/{NAME}"
            for number in (1, 2, 3):
                if number > 1:
                    (table,) = server.tables
                    keys = np.concatenate([keys for keys, _ in server.items(table)])
                    grads = np.full((len(keys), server.tables[table].dim), 0.1 * number, np.float32)
                    model, reader = server.checkpoint_state()
                    server.push(table, keys, grads)
                    server.checkpoint(model=model, reader=reader)
                    server.publish(place)
                deadline = time.monotonic() + 60
                reply = json.loads(ask(f"{url}/infer", body)[2])
                while reply["model_version"] != str(number):
                    assert time.monotonic() < deadline, "the version did not come within 60 s"
                    reply = json.loads(ask(f"{url}/infer", body)[2])
                expected = predicted(store, made.log, tmp_path / "scores.npy")
                assert reply["outputs"][0]["data"] == expected
            assert serving.stop() == 0


def test_what_is_of_published_models_alone_is_said(
    stores: Callable[[str], Trained], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(stores("criteo").store)
    assert main(["serve-model", store, "--listen", "127.0.0.1:0", "--version", "3"]) == 1
    assert "are of published models" in capsys.readouterr().err
