"""Handlers of the Open Inference Protocol over gRPC: from a message's bytes to the scorer and back.

Above it: server.py. Below it: scorer.py; the messages of proto/hps/inference.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hps.common.version import __version__
from hps.inference import open_inference_pb2 as pb
from hps.service.messages.framing import read_small
from hps.service.server.auth import READ, require_some_right
from hps.service.server.calls import Call, Handler, Service
from hps.service.server.health import Health
from hps.serving.refusals import invalid
from hps.serving.scorer import OUTPUT, Scored, Scorer
from hps.serving.tensors import BYTES, DTYPES, Tensor, of_raw, of_values, to_raw

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
SERVER_NAME = "hps"
EXTENSIONS = ("binary_tensor_data", "parameters")
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


class InferenceHandlers:
    """Handlers of one server, named as the proto's methods; thread-safe.

    Args:
        scorer: that answers.
        health: whether the server is ready.
        message_bytes: of a request, at most.
    """

    def __init__(self, scorer: Scorer, health: Health, message_bytes: int) -> None:
        self._scorer = scorer
        self._health = health
        self._message_bytes = message_bytes

    def handlers(self, calls: Service) -> dict[str, Handler]:
        """Those that need a token, by the full names of their methods."""
        return _named(
            calls,
            {
                "ServerMetadata": self.server_metadata,
                "ModelMetadata": self.model_metadata,
                "ModelInfer": self.model_infer,
            },
        )

    def open_handlers(self, calls: Service) -> dict[str, Handler]:
        """Those that need none."""
        return _named(
            calls,
            {
                "ServerLive": self.server_live,
                "ServerReady": self.server_ready,
                "ModelReady": self.model_ready,
            },
        )

    def server_live(self, call: Call, data: bytes) -> bytes:
        read_small(pb.ServerLiveRequest, data)
        return pb.ServerLiveResponse(live=True).SerializeToString()

    def server_ready(self, call: Call, data: bytes) -> bytes:
        read_small(pb.ServerReadyRequest, data)
        return pb.ServerReadyResponse(ready=self._health.is_serving()).SerializeToString()

    def model_ready(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.ModelReadyRequest, data)
        self._scorer.check_model(request.name, request.version)
        return pb.ModelReadyResponse(ready=self._health.is_serving()).SerializeToString()

    def server_metadata(self, call: Call, data: bytes) -> bytes:
        read_small(pb.ServerMetadataRequest, data)
        require_some_right(call.caller, READ)
        return pb.ServerMetadataResponse(
            name=SERVER_NAME, version=__version__, extensions=EXTENSIONS
        ).SerializeToString()

    def model_metadata(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.ModelMetadataRequest, data)
        scorer = self._scorer
        scorer.check_caller(call.caller)
        scorer.check_model(request.name, request.version)
        kind = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=scorer.name,
            versions=[scorer.model.version],
            platform=scorer.platform,
            inputs=[
                kind(name=one.name, datatype=one.datatype, shape=one.shape)
                for one in scorer.described_inputs()
            ],
            outputs=[kind(name=OUTPUT, datatype="FP32", shape=[-1])],
        ).SerializeToString()

    def model_infer(self, call: Call, data: bytes) -> bytes:
        request = read_small(pb.ModelInferRequest, data, self._message_bytes)
        self._scorer.check_caller(call.caller)
        self._scorer.check_model(request.model_name, request.model_version)
        wrong = [one.name for one in request.outputs if one.name != OUTPUT]
        if wrong:
            raise invalid(f"there is no output {wrong[0][:80]!r}; the model has {OUTPUT!r}")
        scored = self._scorer.infer(
            _inputs(request), _parameters(request.parameters), request.model_version, call.deadline
        )
        call.remaining()
        return _reply(request, self._scorer.name, scored)


def _named(calls: Service, methods: Mapping[str, Any]) -> dict[str, Handler]:
    return {f"/{SERVICE_NAME}/{name}": calls.unary(name, run) for name, run in methods.items()}


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    found = {}
    for name, parameter in given.items():
        which = parameter.WhichOneof("parameter_choice")
        found[name] = None if which is None else getattr(parameter, which)
    return found


def _inputs(request: pb.ModelInferRequest) -> list[Tensor]:
    inputs, raw = request.inputs, request.raw_input_contents
    if not raw:
        return [_of_contents(one) for one in inputs]
    if len(raw) != len(inputs):
        raise invalid(
            f"{len(raw)} raw_input_contents for {len(inputs)} inputs; give one for each, or typed "
            "contents in all"
        )
    if any(one.HasField("contents") for one in inputs):
        raise invalid("an input has contents beside raw_input_contents; give one of them")
    return [
        of_raw(one.name, one.datatype, one.shape, data)
        for one, data in zip(inputs, raw, strict=True)
    ]


def _of_contents(given: pb.ModelInferRequest.InferInputTensor) -> Tensor:
    field = _FIELDS.get(given.datatype)
    if field is None:
        hint = "; send it as raw_input_contents" if given.datatype in DTYPES else ""
        raise invalid(
            f"input {given.name[:80]!r}: datatype {given.datatype[:20]!r} has no contents{hint}"
        )
    values: Sequence[Any] = getattr(given.contents, field)
    return of_values(given.name, given.datatype, given.shape, values)


def _reply(request: pb.ModelInferRequest, name: str, scored: Scored) -> bytes:
    reply = pb.ModelInferResponse(model_name=name, model_version=scored.version, id=request.id)
    output = reply.outputs.add(name=OUTPUT, datatype="FP32", shape=[len(scored.scores)])
    if request.raw_input_contents:
        reply.raw_output_contents.append(to_raw(scored.scores))
    else:
        output.contents.fp32_contents.extend(scored.scores.tolist())
    return reply.SerializeToString()
