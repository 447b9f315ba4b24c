"""The Open Inference Protocol's JSON, with or without binary tensors behind it, and the plain form.

Above it: rest.py. Below it: tensors.py. The plain form is that of TensorFlow Serving:
{"instances": [{"C1": "05db9164", "I1": 3}, ...]} or {"inputs": {"C1": ["05db9164", ...]}}.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hps.common.json_text import Json, parse_json
from hps.common.row_layout import Floats
from hps.errors import ConfigError
from hps.serving.refusals import invalid
from hps.serving.scorer import OUTPUT, Scored
from hps.serving.tensors import Tensor, of_raw, of_values, to_raw

LENGTH_HEADER = "Inference-Header-Content-Length"
_SIZE = "binary_data_size"
_MAX_ID = 1024


@dataclass(frozen=True)
class InferRequest:
    """A request of the protocol, taken apart.

    Args:
        inputs, parameters: see `Scorer.infer`.
        id: that the reply has, too; None for none.
        is_binary: the reply's scores are bytes behind its JSON.
    """

    inputs: list[Tensor]
    parameters: Json
    id: str | None
    is_binary: bool


def read_infer(body: bytes, header_length: str | None) -> InferRequest:
    """A request of its body.

    Args:
        body: JSON, and behind it the bytes of binary inputs in their order.
        header_length: that of the JSON, as its HTTP header has it; None: all is JSON.

    Raises:
        Refusal, ConfigError: it is none; names what is wrong.
    """
    text, binary = body, memoryview(b"")
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length) > len(body):
            raise invalid(
                f"header {LENGTH_HEADER}: {header_length[:20]!r} is not the length of this "
                "request's JSON"
            )
        text, binary = body[: int(header_length)], memoryview(body)[int(header_length) :]
    request = _object(text)
    parameters = _member(request, "parameters", dict, {})
    name = _member(request, "id", str, None)
    if name is not None and len(name) > _MAX_ID:
        raise invalid(f"'id' has {len(name)} characters; {_MAX_ID} at most")
    inputs, used = [], 0
    for given in _member(request, "inputs", list, []):
        tensor, used = _tensor(given, binary, used)
        inputs.append(tensor)
    if used != len(binary):
        raise invalid(f"{len(binary)} bytes follow the JSON, and its inputs take {used}")
    is_binary = _flag(parameters, "binary_data_output", False)
    for output in _member(request, "outputs", list, []):
        if not isinstance(output, dict) or output.get("name") != OUTPUT:
            raise invalid(f"there is no output {str(output)[:80]}; the model has {OUTPUT!r}")
        is_binary = _flag(_member(output, "parameters", dict, {}), "binary_data", is_binary)
    return InferRequest(inputs, parameters, name, is_binary)


def infer_reply(request: InferRequest, name: str, scored: Scored) -> tuple[bytes, int | None]:
    """(body, length of its JSON if bytes follow it) of the reply."""
    count = len(scored.scores)
    output: Json = {"name": OUTPUT, "datatype": "FP32", "shape": [count]}
    reply: Json = {"model_name": name, "model_version": scored.version, "outputs": [output]}
    if request.id is not None:
        reply["id"] = request.id
    if not request.is_binary:
        output["data"] = scored.scores.tolist()
        return json.dumps(reply).encode(), None
    output["parameters"] = {_SIZE: 4 * count}
    text = json.dumps(reply).encode()
    return text + to_raw(scored.scores), len(text)


def read_columns(body: bytes) -> dict[str, list[Any]]:
    """Columns of the plain form; what an instance does not name, and others do, is missing.

    Raises:
        Refusal, ConfigError: it is neither instances nor inputs.
    """
    request = _object(body)
    instances, inputs = request.get("instances"), request.get("inputs")
    if isinstance(inputs, dict) and instances is None:
        for name, column in inputs.items():
            if not isinstance(column, list):
                raise invalid(f"inputs: {name[:80]!r} is no list with a value for each example")
        return inputs
    if not isinstance(instances, list) or not all(isinstance(one, dict) for one in instances):
        raise invalid(
            'give {"instances": [{"C1": "05db9164", ...}, ...]}, an object for each example, or '
            '{"inputs": {"C1": ["05db9164", ...], ...}}, a list for each column'
        )
    names = list(dict.fromkeys(name for one in instances for name in one))
    if instances and not names:
        raise invalid("instances: no example names a column; GET /v2/models/NAME lists the inputs")
    return {name: [one.get(name) for one in instances] for name in names}


def read_lookup(body: bytes, most: int) -> tuple[str, list[int]]:
    """(table, keys) of {"table": "ads", "keys": [7, 8]}.

    Raises:
        Refusal, ConfigError: it is none, or has more keys than `most`.
    """
    request = _object(body)
    table, keys = request.get("table"), request.get("keys")
    if not isinstance(table, str) or not isinstance(keys, list):
        raise invalid('give {"table": "ads", "keys": [7, 8]}')
    if len(keys) > most:
        raise invalid(f"{len(keys)} keys in one request; {most} at most: send several")
    for key in keys:
        if not isinstance(key, int) or isinstance(key, bool) or not -(2**63) <= key < 2**64:
            raise invalid(f"keys: {key!r} is no key, a whole number of 64 bits")
    return table, [key % 2**64 for key in keys]


def read_version(body: bytes) -> int | None:
    """The number of {"version": 41}; None of {"follow": true}.

    Raises:
        Refusal, ConfigError: it is neither.
    """
    request = _object(body)
    if len(request) == 1 and request.get("follow") is True:
        return None
    number = request.get("version")
    if len(request) != 1 or not isinstance(number, int) or isinstance(number, bool):
        raise invalid('give {"version": 41}, a version that is kept, or {"follow": true}')
    return number


@dataclass(frozen=True)
class GivenOutcomes:
    """What became of examples: float32 [B] each; see OutcomeFigures."""

    version: str
    scores: Floats
    labels: Floats
    weights: Floats | None


def read_outcomes(body: bytes) -> GivenOutcomes:
    """Of {"version": "41", "scores": [0.02, 0.3], "labels": [0, 1], "weights": [1, 1]}, of which
    the weights may be left out.

    Raises:
        Refusal, ConfigError: it is none.
    """
    request = _object(body)
    version = request.get("version")
    version = str(version) if type(version) is int else version
    if not isinstance(version, str):
        raise invalid('give {"version": "41", "scores": [0.02, 0.3], "labels": [0, 1]}')
    scores, labels = (_floats(request, name) for name in ("scores", "labels"))
    weights = _floats(request, "weights") if "weights" in request else None
    return GivenOutcomes(version, scores, labels, weights)


def _floats(request: Mapping[str, Any], name: str) -> Floats:
    values = _member(request, name, list, [])
    for value in values:
        if not isinstance(value, int | float) or (isinstance(value, bool) and name != "labels"):
            raise invalid(f"{name}: {str(value)[:40]!r} is no number")
    try:
        with np.errstate(over="ignore"):  # infinity is refused with its place
            return np.array(values, np.float32)
    except OverflowError:
        raise invalid(f"{name}: a whole number is too large") from None


def _object(text: bytes) -> Json:
    value = parse_json(text, "the request", error=ConfigError)
    if not isinstance(value, dict):
        raise invalid("the request is no JSON object")
    return value


def _member(request: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = request.get(name, default)
    if value is not default and not isinstance(value, kind):
        raise invalid(f"{name!r} is {str(value)[:40]!r}; it is a JSON {_KINDS[kind]}")
    return value


_KINDS: dict[type, str] = {dict: "object", list: "array", str: "string"}


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"parameter {name!r} is {str(value)[:40]!r}; it is true or false")
    return value


def _tensor(given: Any, binary: memoryview, used: int) -> tuple[Tensor, int]:
    """One input, and the bytes behind the JSON that inputs have used up to it."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise invalid("an input has a name, a datatype and a shape")
    name, datatype, shape = given["name"], given.get("datatype"), given.get("shape")
    if not isinstance(datatype, str):
        raise invalid(f"input {name[:80]!r}: its datatype is missing, such as 'BYTES'")
    is_shape = isinstance(shape, list) and all(
        isinstance(length, int) and not isinstance(length, bool) for length in shape
    )
    if not isinstance(shape, list) or not is_shape:
        raise invalid(f"input {name[:80]!r}: its shape is missing, such as [2]")
    size = _member(given, "parameters", dict, {}).get(_SIZE)
    if size is None:
        data = _member(given, "data", list, None)
        if data is None:
            raise invalid(f"input {name[:80]!r} has no data")
        return of_values(name, datatype, shape, _flat(data)), used
    if "data" in given:
        raise invalid(f"input {name[:80]!r} has data and {_SIZE}; give one of them")
    if not isinstance(size, int) or not 0 <= size <= len(binary) - used:
        raise invalid(f"input {name[:80]!r}: {size!r} bytes do not follow the JSON")
    return of_raw(name, datatype, shape, binary[used : used + size]), used + size


def _flat(data: Sequence[Any]) -> Sequence[Any]:
    """Values that may be in lists of one level, row by row."""
    if not any(isinstance(value, list) for value in data):
        return data
    found: list[Any] = []
    for value in data:
        found.extend(value if isinstance(value, list) else [value])
    return found
