"""REST: JSON and bytes, the plain form, rows, and how wrong requests are refused.

Above it: pytest. Below it: hps.serving.server in this process, urllib, curl.
"""

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from tests.serving.conftest import Models
from tests.serving.logs_of_kinds import KINDS
from tests.serving.serving_lab import NAME, Local, ask, bytes_input, serving

INFER = f"/v2/models/{NAME}/infer"


def test_curl_gets_a_probability(models: Models, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    made, model = models("criteo")
    body = tmp_path / "request.json"
    body.write_text(json.dumps({"inputs": [bytes_input("lines", made.lines()[:2])]}))
    with serving(model) as local:
        command = ["curl", "-sS", "--data-binary", f"@{body}", f"{local.url}{INFER}"]
        ran = subprocess.run(command, capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    (batch,) = model.open_reader([made.log], batch_size=4096)
    scores = json.loads(ran.stdout)["outputs"][0]["data"]
    assert np.allclose(scores, model.predict(batch)[:2], rtol=1e-5)


def test_paths_of_health_and_metadata(models: Models) -> None:
    _, model = models("csv")
    with serving(model) as local:
        assert local.ask("/v2/health/live") == (200, {"live": True})
        assert local.ask("/v2/health/ready") == (200, {"ready": True})
        assert local.ask("/v2")[1]["name"] == "hps"
        for path in (f"/v2/models/{NAME}", f"/v2/models/{NAME}/versions/final"):
            status, about = local.ask(path)
            assert status == 200 and about["versions"] == ["final"]
            assert local.ask(f"{path}/ready") == (200, {"name": NAME, "ready": True})
        for path in ("/v2/models/nix", f"/v2/models/{NAME}/versions/7"):
            for end in ("", "/ready"):
                status, said = local.ask(path + end)
                assert status == 404 and ("'nix'" in said["error"] or "'7'" in said["error"])
        status, said = local.ask("/v2/nothing")
        assert (status, said["error"]) == (404, "Not Found: GET /v2/nothing; see docs/serving.md")
        status, said = local.ask(INFER)
        assert status == 405 and "Method Not Allowed" in said["error"]
        assert not local.log("internal")


def test_a_connection_without_a_request_does_not_keep_the_server(models: Models) -> None:
    _, model = models("csv")
    with serving(model) as local:
        connection = http.client.HTTPConnection(local.server.http_address)
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() and connection.sock is not None
        started = time.monotonic()
        local.server.stop()
        assert time.monotonic() - started < 3
        connection.close()


def test_bytes_may_follow_the_json_in_both_directions(models: Models) -> None:
    made, model = models("criteo")
    lines = [line.encode() for line in made.lines()[:3]]
    data = b"".join(len(line).to_bytes(4, "little") + line for line in lines)
    given = {"name": "lines", "datatype": "BYTES", "shape": [3]}
    with serving(model) as local:
        _, plain = local.infer(bytes_input("lines", made.lines()[:3]), id="7")
        assert plain["id"] == "7"
        head = json.dumps(
            {
                "inputs": [{**given, "parameters": {"binary_data_size": len(data)}}],
                "outputs": [{"name": "probability", "parameters": {"binary_data": True}}],
            }
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, found, body = ask(f"{local.url}{INFER}", head + data, headers=headers)
        assert found["Server"] == "hps"
        assert status == 200 and found["Content-Type"] == "application/octet-stream"
        length = int(found["Inference-Header-Content-Length"])
        (output,) = json.loads(body[:length])["outputs"]
        assert output["parameters"] == {"binary_data_size": 12} and "data" not in output
        assert np.frombuffer(body[length:], "<f4").tolist() == plain["outputs"][0]["data"]
        for head_length, tail, says in (
            (str(len(head)), data[:-1], "bytes do not follow the JSON"),
            (str(len(head)), data + b"x", "bytes follow the JSON, and its inputs take"),
            ("99999999", data, "is not the length of this request's JSON"),
            ("-1", data, "is not the length of this request's JSON"),
            (str(len(head) - 1), data, "is not JSON"),
        ):
            headers = {"Inference-Header-Content-Length": head_length}
            status, _, body = ask(f"{local.url}{INFER}", head + tail, headers=headers)
            assert status == 400 and says in json.loads(body)["error"], body


def test_examples_by_feature_name_in_plain_json(models: Models) -> None:
    _, model = models("csv")
    path = f"/v1/models/{NAME}:predict"
    with serving(model) as local:
        lines = ["n1,0,,7,,e01", "n2,0,0.5,8,d2,e02"]
        _, reply = local.infer(bytes_input("lines", lines))
        expected = {"predictions": reply["outputs"][0]["data"], "model_version": "final"}
        examples: list[dict[str, Any]] = [
            {"c": "n1", "a": None, "b": 7, "d": None, "e": "e01"},
            {"c": "n2", "a": 0.5, "b": 8, "d": "d2", "e": "e02"},
        ]
        assert local.ask(path, {"instances": examples}) == (200, expected)
        whole_rows = [{**one, "label": 1} for one in examples]  # as the log has them
        assert local.ask(path, {"instances": whole_rows}) == (200, expected)
        del examples[0]["a"], examples[0]["d"]
        assert local.ask(path, {"instances": examples}) == (200, expected)
        columns = {name: [one.get(name) for one in examples] for name in examples[1]}
        assert local.ask(path, {"inputs": columns}) == (200, expected)
        for wrong, says in (
            ({"instances": [{}]}, "no example names a column"),
            ({"instances": []}, "1 to 4,096 examples, and this one 0"),
            ({"instances": [1]}, "an object for each example"),
            ({}, "give {"),
            ({"inputs": {"c": "n1"}}, "inputs: 'c' is no list"),
            ({"instances": [{"nix": 1}]}, "input 'nix': the model has no such column"),
            ({"instances": [{"c": "n1"}]}, "columns ['a', 'b', 'd', 'e'] are missing"),
            ({"instances": [{"c": "n1"}]}, "null in JSON"),
            ({"instances": [{**examples[1], "a": "cheap"}]}, "column 'a' holds 'cheap'"),
            ({"instances": [{**examples[1], "c": ["n1", "n2"]}]}, "column 'c'"),
            ({"instances": [{**examples[1], "c": {"x": 1}}]}, "'c'"),
        ):
            status, said = local.ask(path, wrong)
            assert status == 400 and says in said["error"], said
        status, said = local.ask("/v1/models/nix:predict", {"instances": examples})
        assert status == 404


def test_bags_in_plain_json(models: Models) -> None:
    _, model = models("parquet")
    rows = {"price": [0.5, 0.25], "shop": ["s1", "s2"], "seen": [[1, 2], []]}
    with serving(model) as local:
        status, reply = local.ask(f"/v1/models/{NAME}:predict", {"inputs": rows})
    assert status == 200 and reply["predictions"] == model.predict(rows).tolist()


GOOD = bytes_input("C1", ["x"])
WRONG = [
    (b"{", "is not JSON"),
    (b"[]", "the request is no JSON object"),
    (b"[" * 100 + b"]" * 100, "nests JSON more than"),
    (b"{}", "a request has 1 to 4096 inputs"),
    ({"inputs": {}}, "'inputs' is '{}'; it is a JSON array"),
    ({"inputs": [7]}, "an input has a name"),
    ({"inputs": [{"name": "x"}]}, "input 'x': its datatype is missing"),
    ({"inputs": [{**GOOD, "shape": "1"}]}, "input 'C1': its shape is missing"),
    ({"inputs": [{**GOOD, "shape": [True]}]}, "input 'C1': its shape is missing"),
    ({"inputs": [{"name": "C1", "datatype": "BYTES", "shape": [1]}]}, "input 'C1' has no data"),
    ({"inputs": [{**GOOD, "data": [["x"], "y"]}]}, "input 'C1' has 2 values; its shape"),
    ({"inputs": [{**GOOD, "data": [[["x"]]]}]}, "is no text"),
    ({"inputs": [{**GOOD, "datatype": "INT64"}]}, "'x' is no INT64"),
    ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 3}}]}, "give one of them"),
    ({"inputs": [GOOD], "outputs": [{"name": "nix"}]}, "there is no output"),
    ({"inputs": [GOOD], "parameters": 7}, "'parameters' is '7'; it is a JSON object"),
    ({"inputs": [GOOD], "parameters": {"binary_data_output": 1}}, "it is true or false"),
    ({"inputs": [GOOD], "parameters": {"timeout": "1"}}, "parameter 'timeout' is '1'"),
    ({"inputs": [GOOD], "id": "x" * 2000}, "'id' has 2000 characters"),
]


@pytest.fixture(scope="module")
def criteo(models: Models) -> Any:
    with serving(models("criteo")[1]) as local:
        yield local


@pytest.mark.parametrize(("body", "says"), WRONG)
def test_what_is_no_request_is_refused_with_its_reason(criteo: Local, body: Any, says: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, text = ask(f"{criteo.url}{INFER}", data)
    assert status == 400 and says in json.loads(text)["error"], text
    assert not criteo.log("internal")


def test_a_packed_request_is_read(models: Models) -> None:
    made, model = models("criteo")
    body = json.dumps({"inputs": [bytes_input("lines", made.lines()[:2])]}).encode()
    with serving(model, limits=hps_limits(message_bytes="64KiB")) as local:
        headers = {"Content-Encoding": "deflate"}
        status, _, _ = ask(f"{local.url}{INFER}", zlib.compress(body), headers=headers)
        assert status == 200
        bomb = zlib.compress(b" " * 2**24)
        assert len(bomb) < 2**15
        status, _, text = ask(f"{local.url}{INFER}", bomb, headers=headers)
        assert status == 413 and "longer than 65536 bytes" in json.loads(text)["error"]


def hps_limits(**fields: Any) -> Any:
    from hps.service.server.limits import ServerLimits

    return ServerLimits(**fields)


def test_rows_of_keys(models: Models) -> None:
    _, model = models("criteo")
    path = f"/v1/models/{NAME}:lookup"
    with serving(model, limits=hps_limits(keys=4)) as local:
        status, reply = local.ask(path, {"table": "features", "keys": [1, -1, 2**64 - 1]})
        keys = np.array([1, 2**64 - 1, 2**64 - 1], np.uint64)
        assert status == 200 and reply["model_version"] == "final"
        assert reply["rows"] == np.asarray(model.lookup("features", keys)).tolist()
        for wrong, code, says in (
            ({"table": "nix", "keys": [1]}, 404, "the model has no table 'nix'"),
            ({"table": "features"}, 400, 'give {"table"'),
            ({"table": "features", "keys": [1.5]}, 400, "1.5 is no key"),
            ({"table": "features", "keys": [2**64]}, 400, "is no key"),
            ({"table": "features", "keys": [1] * 5}, 400, "5 keys in one request; 4 at most"),
        ):
            status, reply = local.ask(path, wrong)
            assert status == code and says in reply["error"]


def test_a_request_that_is_too_long_or_has_too_many_examples(models: Models) -> None:
    made, model = models("criteo")
    line = made.lines()[0]
    with serving(model, scoring={"max_rows": 3}, limits=hps_limits(message_bytes="64KiB")) as local:
        status, reply = local.infer(bytes_input("lines", [line] * 4))
        assert status == 400 and "1 to 3 examples, and this one 4" in reply["error"]
        status, reply = local.infer(bytes_input("lines", [line * 1000]))
        assert status == 413 and "longer than 65536 bytes; send several" in reply["error"]
        (refused,) = (one for one in local.log("call") if one["status"] == "RESOURCE_EXHAUSTED")
        assert refused["method"] == "http infer"


class HeldModel:
    """A model whose scores wait until they may go on."""

    def __init__(self, model: hps.Model) -> None:
        self._model = model
        self.may_go = threading.Event()
        self.has_begun = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict_with_version(self, batch: Any) -> Any:
        self.has_begun.set()
        assert self.may_go.wait(30)
        return self._model.predict_with_version(batch)


def test_more_requests_than_may_wait_get_429(models: Models) -> None:
    made, model = models("criteo")
    held: Any = HeldModel(model)
    line = bytes_input("lines", made.lines()[:1])
    with serving(held, limits=hps_limits(requests=2)) as local:
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(local.infer(line))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        flight = local.server.front.admissions.in_flight
        while flight()["requests"] < 2:
            time.sleep(0.01)
        status, headers, body = ask(f"{local.url}{INFER}", json.dumps({"inputs": [line]}).encode())
        assert status == 429 and headers["Retry-After"] == "1"
        assert "2 calls are in flight" in json.loads(body)["error"]
        assert local.ask("/v2/health/ready")[0] == 200  # probes have room of their own
        held.may_go.set()
        for thread in threads:
            thread.join()
        assert [status for status, _ in found] == [200, 200]


def test_a_deadline_is_kept(models: Models) -> None:
    made, model = models("criteo")
    held: Any = HeldModel(model)
    line = bytes_input("lines", made.lines()[:1])
    with serving(held) as local:
        first = threading.Thread(target=lambda: local.infer(line))
        first.start()
        assert held.has_begun.wait(30)
        status, reply = local.infer(line, parameters={"timeout": 50_000})
        assert status == 504 and "deadline passed" in reply["error"]
        held.may_go.set()
        first.join()


def test_a_connection_that_does_not_ask_is_closed(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.serving import connections

    monkeypatch.setattr(connections, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_PERIOD_SECONDS", 0.1)
    _, model = models("criteo")
    with serving(model, limits=hps_limits(connections=2)) as local:
        host, _, port = str(local.server.http_address).rpartition(":")
        silent = socket.create_connection((host, int(port)))
        silent.sendall(b"GET /v2/health/live HTTP/1.1\r\n")
        silent.settimeout(30)
        assert silent.recv(100) == b""
        # One that has asked stays, and there is room for two.
        kept = [socket.create_connection((host, int(port))) for _ in range(2)]
        for one in kept:
            one.settimeout(30)
            one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in one.recv(1000)
        third = socket.create_connection((host, int(port)))
        third.settimeout(30)
        with suppress(ConnectionError):  # it was closed before it could ask
            third.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert third.recv(100) == b""
        time.sleep(0.5)
        kept[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in kept[0].recv(1000)
        for one in (silent, third, *kept):
            one.close()


ODD: list[Any] = [None, True, 0, -1, 7, 2**63, 2**64, -(2**70), 10**400, 0.5, 1e300, 7.0]
ODD += [
    "",
    " ",
    "7",
    "007",
    "x y",
    "x\n",
    "x\t",
    "\0",
    "é",
    "\ud800",
    "#",
    ":",
    "1:2",
    "nan",
    "1e999",
]
ODD += [[], [7], ["7"], [7, "7"], [None], [True], [0.5], [[7]], [["\ud800"]], ["\ud800"], {}]
ODD += [{"7": 0.5}, {"x": None}, {"7": "x"}, {"\ud800": 1}, [{"7": 1}], [[7, 0.5]], "x" * 70000]


@pytest.mark.parametrize("kind", [*KINDS])
def test_odd_values_are_scored_or_refused_and_never_a_fault(models: Models, kind: str) -> None:
    _, model = models(kind)
    with serving(model) as local:
        names = [one.name for one in local.server.scorer.described_inputs()]
        names = [name for name in names if name != "lines" and not name.endswith(".keys")]
        known = local.server.scorer.inputs
        columns = [name for name in names if name in known.features or name in known.dense]
        plain = {name: [1 if name in known.dense else "1"] for name in columns}
        if kind == "libsvm, described":
            plain["ad"] = ["50"]  # one of its own indices
        scored = 0
        for name in (columns[0], columns[-1]):
            for value in ODD:
                given = {**plain, name: [value]}
                status, said = local.ask(f"/v1/models/{NAME}:predict", {"inputs": given})
                assert status in (200, 400), (name, value, said, local.log("internal"))
                scored += status == 200
                if status == 400:
                    assert name in said["error"] or "make no batch" in said["error"], said
        assert scored > 5
        if "lines" in [one.name for one in local.server.scorer.described_inputs()]:
            for value in ODD:
                status, said = local.infer(bytes_input("lines", [value]))
                assert status in (200, 400), (value, said, local.log("internal"))
