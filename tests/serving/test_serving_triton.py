"""tritonclient as it is, over gRPC and over HTTP, in a process of its own.

Above it: pytest. Below it: hps.serving.server in this process; triton_client.py.
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("geventhttpclient")

from hps.inference import open_inference_pb2 as pb
from tests.serving.conftest import Models
from tests.serving.serving_lab import NAME, Local, serving, triton

KINDS = ("grpc", "http")


def job(local: Local, kind: str, act: str, **more: Any) -> dict[str, Any]:
    address = local.server.address if kind == "grpc" else local.server.http_address
    return triton({"kind": kind, "address": address, "act": act, "model": NAME, **more})


def test_the_messages_are_those_of_the_protocol() -> None:
    own = {}
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        nested = {one.name: one for one in message.nested_types}
        for key, one in {"": message, **nested}.items():
            kinds = {field.name: [field.number, field.type] for field in one.fields}
            own[f"{name}.{key}".rstrip(".")] = kinds
    found = triton(
        {"kind": "grpc", "act": "fields", "messages": list(pb.DESCRIPTOR.message_types_by_name)}
    )
    assert len(own) > 15 and own == found["fields"]
    assert found["service"] == "inference.GRPCInferenceService"


@pytest.mark.parametrize("kind", KINDS)
def test_health_and_metadata(models: Models, kind: str) -> None:
    _, model = models("criteo")
    with serving(model) as local:
        found = job(local, kind, "about", version="final")
    assert [found[name] for name in ("live", "ready", "model_ready", "version_ready")] == [True] * 4
    assert found["server"]["name"] == "hps"
    about = found["model"]
    assert (about["name"], about["versions"], about["platform"]) == (NAME, ["final"], "hps_deepfm")
    inputs = {
        one["name"]: (one["datatype"], list(map(int, one["shape"]))) for one in about["inputs"]
    }
    assert inputs["lines"] == inputs["C26"] == ("BYTES", [-1]) and inputs["I13"] == ("FP32", [-1])
    assert inputs["features.keys"] == ("INT64", [-1, 26]) and inputs["dense"] == ("FP32", [-1, 13])
    (output,) = about["outputs"]
    assert (output["name"], output["datatype"]) == ("probability", "FP32")


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_lines_columns_and_keys_are_scored(models: Models, kind: str, is_binary: bool) -> None:
    made, model = models("criteo")
    lines = made.lines()[:5]
    (batch,) = model.open_reader([made.log], batch_size=4096)
    with serving(model) as local:
        _, reply = local.infer({"name": "lines", "datatype": "BYTES", "shape": [5], "data": lines})
        expected = reply["outputs"][0]["data"]
        how = {"outputs": ["probability"], "is_binary": is_binary, "how": {"request_id": "r1"}}
        found = job(local, kind, "infer", inputs=[["lines", "BYTES", [5, 1], lines]], **how)
        assert found == {
            "scores": expected,
            "dtype": "float32",
            "version": "final",
            "model": NAME,
            "id": "r1",
        }
        names = [f"I{number}" for number in range(1, 14)] + [f"C{n}" for n in range(1, 27)]
        parts = [line.split("\t")[1:] for line in lines]
        columns = [
            [name, "BYTES", [5], [part[place] for part in parts]]
            for place, name in enumerate(names)
        ]
        assert job(local, kind, "infer", inputs=columns, **how)["scores"] == expected
        keys = batch.features["features"].keys_L.reshape(26, -1)[:, :5].T.reshape(-1).tolist()
        dense = batch.dense[:5].reshape(-1).tolist()
        inputs = [["features.keys", "INT64", [5, 26], keys], ["dense", "FP32", [5, 13], dense]]
        assert job(local, kind, "infer", inputs=inputs, **how)["scores"] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_said(models: Models, kind: str) -> None:
    _, model = models("criteo")
    good = [["lines", "BYTES", [1], ["x"]]]
    codes = {"grpc": ("INVALID_ARGUMENT", "NOT_FOUND"), "http": ("[400]", "[404]")}[kind]
    with serving(model) as local:
        for more, code, says in (
            ({"inputs": good}, codes[0], "input 'lines': line 1"),
            ({"inputs": [["C1", "BYTES", [1], ["x"]]]}, codes[0], "columns ['I1', 'I2'"),
            ({"inputs": good, "outputs": ["nix"], "is_binary": True}, codes[0], "no output"),
            ({"inputs": good, "how": {"model_version": "7"}}, codes[1], "no version '7' here"),
            ({"inputs": good, "model": "nix"}, codes[1], "there is no model 'nix' here"),
        ):
            found = job(local, kind, "infer", **more)
            assert found["type"] == "InferenceServerException", found
            assert code in found["error"] and says in found["error"], found


@pytest.mark.parametrize("kind", KINDS)
def test_eight_threads_get_their_own_scores(models: Models, kind: str) -> None:
    made, model = models("criteo")
    lines = made.lines()
    parts = [lines[10 * number : 10 * number + number + 1] for number in range(8)]
    (batch,) = model.open_reader([made.log], batch_size=4096)
    scores = model.predict(batch).tolist()
    expected = [scores[10 * number : 10 * number + number + 1] for number in range(8)]
    assert len({round(part[0], 6) for part in expected}) == 8
    with serving(model) as local:
        found = job(local, kind, "many", parts=list(zip(parts, expected, strict=True)), times=25)
        assert found["wrong"] == []
        figures = local.server.scorer.figures.snapshot()
    assert figures.num_rows == 25 * sum(range(1, 9))
    # Requests were put together: some batches had several.
    assert sum(figures.requests.counts) < 200 and sum(figures.requests.counts[1:]) > 0
    assert np.isclose(figures.scores["final"].total, 25 * sum(map(sum, expected)), rtol=1e-4)
