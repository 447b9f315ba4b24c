"""The protocol over gRPC by generated messages: typed and raw contents, rows, statuses, drain.

Above it: pytest. Below it: hps.serving.server in this process.
"""

import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from hps.inference import open_inference_pb2 as pb
from hps.service.server.limits import ServerLimits
from hps.v1 import model_server_pb2, parameter_server_pb2
from tests.serving.conftest import Models
from tests.serving.serving_lab import NAME, Local, ask, bytes_input, caller, lines_request, serving
from tests.serving.test_serving_rest import HeldModel


def channel_of(local: Local) -> grpc.Channel:
    return grpc.insecure_channel(local.server.address)


def refusal(call: Any, request: Any, **how: Any) -> tuple[str, str]:
    """(status, text) of a refused call."""
    try:
        call(request, timeout=30, **how)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("the call was not refused")


def test_typed_and_raw_contents_get_replies_of_their_kind(models: Models) -> None:
    made, model = models("criteo")
    lines = made.lines()[:3]
    with serving(model) as local, channel_of(local) as channel:
        infer = caller(channel, "ModelInfer")
        typed = infer(lines_request(lines, id="7"), timeout=30)
        assert (typed.model_name, typed.model_version, typed.id) == (NAME, "final", "7")
        (output,) = typed.outputs
        scores = list(output.contents.fp32_contents)
        assert (output.name, output.datatype, list(output.shape)) == ("probability", "FP32", [3])
        assert not typed.raw_output_contents and len(scores) == 3
        request = pb.ModelInferRequest(model_name=NAME, model_version="final")
        request.inputs.add(name="lines", datatype="BYTES", shape=[3])
        texts = [line.encode() for line in lines]
        request.raw_input_contents.append(
            b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        )
        raw = infer(request, timeout=30)
        assert np.frombuffer(raw.raw_output_contents[0], "<f4").tolist() == scores
        assert not raw.outputs[0].contents.fp32_contents and raw.id == ""


def two_raw(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents.extend([b"", b""])


def both(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents.append(b"")


def no_contents(request: pb.ModelInferRequest) -> None:
    request.inputs[0].ClearField("contents")


def half_floats(request: pb.ModelInferRequest) -> None:
    request.inputs[0].datatype = "FP16"


def output(request: pb.ModelInferRequest) -> None:
    request.outputs.add(name="nix")


def other_model(request: pb.ModelInferRequest) -> None:
    request.model_name = "nix"


def other_version(request: pb.ModelInferRequest) -> None:
    request.model_version = "7"


def bad_timeout(request: pb.ModelInferRequest) -> None:
    request.parameters["timeout"].string_param = "1"


def spent_timeout(request: pb.ModelInferRequest) -> None:
    request.parameters["timeout"].int64_param = 1


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (two_raw, "INVALID_ARGUMENT", "2 raw_input_contents for 1 inputs"),
        (both, "INVALID_ARGUMENT", "contents beside raw_input_contents"),
        (no_contents, "INVALID_ARGUMENT", "input 'lines' has 0 values; its shape [1] has 1"),
        (half_floats, "INVALID_ARGUMENT", "'FP16' has no contents; send it as raw_input_contents"),
        (output, "INVALID_ARGUMENT", "there is no output 'nix'"),
        (other_model, "NOT_FOUND", "there is no model 'nix' here; it has 'ads'"),
        (other_version, "NOT_FOUND", "model 'ads' has no version '7' here; it has 'final'"),
        (bad_timeout, "INVALID_ARGUMENT", "parameter 'timeout' is '1'"),
        (spent_timeout, "DEADLINE_EXCEEDED", "deadline passed"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(
    models: Models, change: Any, status: str, says: str
) -> None:
    made, model = models("criteo")
    request = lines_request(made.lines()[:1])
    change(request)
    with serving(model) as local, channel_of(local) as channel:
        code, text = refusal(caller(channel, "ModelInfer"), request)
        assert code == status and says in text
        calls = [one for one in local.log("call") if one["method"] == "ModelInfer"]
        assert calls[0]["status"] == status and says in calls[0]["message"]


def test_bytes_that_are_no_message_are_refused(models: Models) -> None:
    _, model = models("criteo")
    with serving(model) as local, channel_of(local) as channel:
        for name in ("ModelInfer", "ModelMetadata", "ServerReady"):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            code, text = refusal(method, b"\xff\xff")
            assert code == "INVALID_ARGUMENT" and "are not a" in text
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelStreamInfer")
        assert refusal(method, b"")[0] == "UNIMPLEMENTED"


def test_rows_of_keys(models: Models) -> None:
    _, model = models("criteo")
    keys = np.array([1, 2**64 - 1, 1], np.uint64)
    limits = ServerLimits(keys=4)
    with serving(model, limits=limits) as local, channel_of(local) as channel:
        lookup = channel.unary_unary(
            "/hps.v1.ModelServer/Lookup",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=model_server_pb2.LookupReply.FromString,
        )
        request = parameter_server_pb2.PullRequest
        reply = lookup(request(table="features", keys=keys.tobytes()), timeout=30)
        assert (reply.dim, reply.wire, reply.version) == (3, 0, "final")
        rows = np.frombuffer(reply.rows, np.float32).reshape(3, 3)
        assert np.array_equal(rows, np.asarray(model.lookup("features", keys)))
        half = lookup(request(table="features", keys=keys.tobytes(), wire=1), timeout=30)
        assert len(half.rows) == 18
        for wrong, code, says in (
            (request(table="nix", keys=b""), "NOT_FOUND", "the model has no table 'nix'"),
            (request(table="features", keys=b"123"), "INVALID_ARGUMENT", "keys has 3 bytes"),
            (request(table="features", wire=9), "INVALID_ARGUMENT", "wire=9"),
            (request(table="features", dim=4), "INVALID_ARGUMENT", "has dim 3, not 4"),
            (request(table="features", keys=bytes(40)), "RESOURCE_EXHAUSTED", "5 keys in one"),
        ):
            status, text = refusal(lookup, wrong)
            assert status == code and says in text


def test_a_deadline_of_the_client_is_kept(models: Models) -> None:
    made, model = models("criteo")
    held: Any = HeldModel(model)
    with serving(held) as local, channel_of(local) as channel:
        infer = caller(channel, "ModelInfer")
        first = infer.future(lines_request(made.lines()[:1]), timeout=30)
        assert held.has_begun.wait(30)
        waiting = infer.future(lines_request(made.lines()[1:2]), timeout=0.2)
        assert waiting.code().name == "DEADLINE_EXCEEDED"
        held.may_go.set()
        assert len(first.result().outputs) == 1


def health_of(channel: grpc.Channel, service: str) -> int:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return int(check(health_pb2.HealthCheckRequest(service=service), timeout=30).status)


def test_a_server_that_stops_is_not_ready_first_and_ends_what_is_in_flight(models: Models) -> None:
    made, model = models("criteo")
    held: Any = HeldModel(model)
    with serving(held) as local, channel_of(local) as channel:
        names = ("", "inference.GRPCInferenceService", "hps.v1.ModelServer")
        assert [health_of(channel, name) for name in names] == [1, 1, 1]
        by_grpc = caller(channel, "ModelInfer").future(lines_request(made.lines()[:1]), timeout=30)
        by_http: list[Any] = []
        thread = threading.Thread(
            target=lambda: by_http.append(local.infer(bytes_input("lines", made.lines()[:1])))
        )
        thread.start()
        flight = local.server.front.admissions.in_flight
        while flight()["requests"] < 2:
            assert held.has_begun.wait(30)
        ended: list[bool] = []
        stopping = threading.Thread(target=lambda: ended.append(local.server.stop()))
        stopping.start()
        while not local.server.front.admissions.is_draining():
            pass
        assert [health_of(channel, name) for name in names] == [2, 2, 2]
        assert not caller(channel, "ServerReady")(pb.ServerReadyRequest(), timeout=30).ready
        assert not caller(channel, "ModelReady")(pb.ModelReadyRequest(name=NAME), timeout=30).ready
        assert caller(channel, "ServerLive")(pb.ServerLiveRequest(), timeout=30).live
        assert local.ask("/v2/health/ready") == (503, {"ready": False})
        assert local.ask("/v2/health/live")[0] == 200
        assert local.ask(f"/v2/models/{NAME}/ready")[0] == 503
        code, text = refusal(caller(channel, "ModelInfer"), lines_request(made.lines()[:1]))
        assert code == "UNAVAILABLE" and "the server is stopping" in text
        status, headers, _ = ask(f"{local.url}/v2/models/{NAME}/infer", b"{}")
        assert status == 503 and headers["Retry-After"] == "1"
        time.sleep(1.5)  # longer than gRPC would wait by itself
        assert stopping.is_alive()
        held.may_go.set()
        assert len(by_grpc.result().outputs) == 1
        thread.join()
        stopping.join()
        assert by_http[0][0] == 200 and ended == [True]


def test_requests_are_taken_while_it_says_that_it_is_not_ready(models: Models) -> None:
    from dataclasses import replace

    made, model = models("criteo")
    with serving(model) as local, channel_of(local) as channel:
        server = local.server
        server._options = replace(server._options, unready_seconds=1.0)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        while server.front.health.is_serving():
            pass
        assert local.ask("/v2/health/ready")[0] == 503
        reply = caller(channel, "ModelInfer")(lines_request(made.lines()[:1]), timeout=30)
        assert len(reply.outputs) == 1
        assert local.infer(bytes_input("lines", made.lines()[:1]))[0] == 200
        stopping.join()
