"""What tritonclient does of a job that is JSON on standard input; prints what came of it as JSON.

Above it: serving_lab.py, which runs it as a process: its messages have the names of hps.inference,
and one process can hold only one of the two. Below it: tritonclient, as it is installed.

A job: {"kind": "grpc" | "http", "address": ..., "act": one of ACTS, ...}.
"""

import json
import sys
import threading
from typing import Any

import numpy as np


def _client(job: dict[str, Any]) -> tuple[Any, Any]:
    """(module, client) of the job's protocol."""
    if job["kind"] == "grpc":
        import tritonclient.grpc as module
    else:
        import tritonclient.http as module
    more = {"concurrency": 8} if job["kind"] == "http" else {}
    return module, module.InferenceServerClient(job["address"], **more)


def _inputs(module: Any, job: dict[str, Any], is_binary: bool = True) -> list[Any]:
    found = []
    for name, datatype, shape, values in job["inputs"]:
        given = module.InferInput(name, shape, datatype)
        if datatype == "BYTES":
            array = np.array([text.encode() for text in values], object).reshape(shape)
        else:
            kinds = {"INT64": np.int64, "FP32": np.float32, "INT32": np.int32, "UINT64": np.uint64}
            array = np.array(values, kinds[datatype]).reshape(shape)
        if job["kind"] == "http":
            given.set_data_from_numpy(array, binary_data=is_binary)
        else:
            given.set_data_from_numpy(array)
        found.append(given)
    return found


def _said(module: Any, result: Any) -> dict[str, Any]:
    reply = result.get_response()
    is_json = isinstance(reply, dict)
    return {
        "scores": result.as_numpy("probability").tolist(),
        "dtype": str(result.as_numpy("probability").dtype),
        "version": reply["model_version"] if is_json else reply.model_version,
        "model": reply["model_name"] if is_json else reply.model_name,
        "id": reply.get("id") if is_json else reply.id,
    }


def infer(job: dict[str, Any]) -> dict[str, Any]:
    """One request; also with JSON in the place of bytes where that is asked for."""
    module, client = _client(job)
    how = dict(job.get("how", {}))
    if job.get("outputs"):
        binary = {"binary_data": job["is_binary"]} if job["kind"] == "http" else {}
        how["outputs"] = [module.InferRequestedOutput(name, **binary) for name in job["outputs"]]
    inputs = _inputs(module, job, job.get("is_binary", True))
    try:
        result = client.infer(job["model"], inputs, **how)
    except Exception as error:
        return {"error": str(error), "type": type(error).__name__}
    return _said(module, result)


def about(job: dict[str, Any]) -> dict[str, Any]:
    """Health and metadata."""
    _, client = _client(job)
    model = job["model"]
    as_json = {"as_json": True} if job["kind"] == "grpc" else {}
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(model),
        "version_ready": client.is_model_ready(model, job["version"]),
        "server": client.get_server_metadata(**as_json),
        "model": client.get_model_metadata(model, **as_json),
    }


def many(job: dict[str, Any]) -> dict[str, Any]:
    """Each thread asks for its own lines, again and again; whose scores were not its own."""
    module, client = _client(job)
    wrong: list[str] = []

    def ask(number: int) -> None:
        own = client
        if job["kind"] == "http":  # its connections are of one thread
            _, own = _client(job)
        lines, expected = job["parts"][number]
        inputs = _inputs(module, {**job, "inputs": [["lines", "BYTES", [len(lines)], lines]]})
        for _ in range(job["times"]):
            found = _said(module, own.infer(job["model"], inputs))["scores"]
            if not np.allclose(found, expected, rtol=1e-5, atol=1e-7):
                wrong.append(f"{number}: {found[:3]} {expected[:3]}")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(job["parts"]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"wrong": wrong}


def fields(job: dict[str, Any]) -> dict[str, Any]:
    """Message -> names and numbers of its fields, as tritonclient has them."""
    from tritonclient.grpc import service_pb2

    found = {}
    for name in job["messages"]:
        message = service_pb2.DESCRIPTOR.message_types_by_name[name]
        nested = {one.name: one for one in message.nested_types}
        for key, one in {"": message, **nested}.items():
            kinds = {field.name: [field.number, field.type] for field in one.fields}
            found[f"{name}.{key}".rstrip(".")] = kinds
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return {"fields": found, "service": service.full_name}


ACTS = {"infer": infer, "about": about, "many": many, "fields": fields}

if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(ACTS[given["act"]](given)))
