"""A model's server for tests, in this process or as one of its own, and clients of both protocols.

Above it: the tests of the server. Below it: hps.serving.server, `hps serve-model`;
triton_client.py, in a process of its own: tritonclient's messages have the names of hps.inference.
"""

import io
import json
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

import hps
from hps.inference import open_inference_pb2 as pb
from hps.service.server.front import ServerOptions
from hps.service.server.log_lines import LogLines
from hps.serving.scorer import ScoringOptions
from hps.serving.server import ModelServer, ModelServerOptions

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "ads"
_LONGEST_START_SECONDS = 120.0


@dataclass
class Local:
    """A server in this process and the lines that it logs."""

    server: ModelServer
    lines: io.StringIO

    @property
    def url(self) -> str:
        return f"http://{self.server.http_address}"

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def ask(self, path: str, value: Any = None, **how: Any) -> tuple[int, Any]:
        """(status, JSON) of a request with JSON, or of a GET."""
        body = None if value is None else json.dumps(value).encode()
        status, _, text = ask(f"{self.url}{path}", body, **how)
        return status, json.loads(text)

    def infer(self, *inputs: dict[str, Any], **more: Any) -> tuple[int, Any]:
        return self.ask(f"/v2/models/{NAME}/infer", {"inputs": list(inputs), **more})


def ask(
    url: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, **how: Any
) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of a request; a POST where there is a body."""
    request = urllib.request.Request(url, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30, **how) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


@contextmanager
def serving(
    model: hps.Model, *, scoring: dict[str, Any] | None = None, **front: Any
) -> Iterator[Local]:
    """A server in this process, stopped with the block."""
    lines = io.StringIO()
    options = ModelServerOptions(
        front=ServerOptions(listen="127.0.0.1:0", **{"drain_seconds": 5.0, **front}),
        scoring=ScoringOptions(name=NAME, **(scoring or {})),
        http="127.0.0.1:0",
    )
    server = ModelServer(model, options, LogLines(lines))
    try:
        yield Local(server, lines)
    finally:
        server.stop()


def caller(channel: grpc.Channel, method: str) -> Any:
    """What calls a method of the protocol."""
    replies = {
        one.name: getattr(pb, one.output_type.name)
        for one in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    }
    return channel.unary_unary(
        f"/inference.GRPCInferenceService/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=replies[method].FromString,
    )


def lines_request(lines: list[str], **more: Any) -> pb.ModelInferRequest:
    """A request of raw lines."""
    request = pb.ModelInferRequest(model_name=NAME, **more)
    given = request.inputs.add(name="lines", datatype="BYTES", shape=[len(lines)])
    given.contents.bytes_contents.extend(line.encode() for line in lines)
    return request


def bytes_input(name: str, values: list[str], shape: list[int] | None = None) -> dict[str, Any]:
    """An input of JSON."""
    shape = [len(values)] if shape is None else shape
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": values}


def predicted(store: Path, log: Path, out: Path) -> list[float]:
    """What `hps predict` writes for a log."""
    import numpy as np

    from hps.cli.main import main

    assert main(["predict", str(log), "--store", str(store), "--out", str(out)]) == 0
    found: list[float] = np.load(out).tolist()
    return found


@dataclass
class Process:
    """`hps serve-model` as a process."""

    popen: Any
    address: str
    http: str
    stderr: Path

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return int(self.popen.wait(120))

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stderr.read_text().splitlines()]


@contextmanager
def process(store: Path, *flags: str) -> Iterator[Process]:
    """`hps serve-model` over a store, killed at the end of the block if it still runs."""
    stderr = store.parent / "serving.stderr"
    address = "127.0.0.1:0"
    command = [sys.executable, "-m", "hps", "serve-model", str(store), "--name", NAME]
    command += ["--listen", address, "--http", address, "--dram", "8MiB", *flags]
    with open(stderr, "w") as errors:
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
    try:
        assert popen.stdout is not None
        ready, _, _ = select.select([popen.stdout], [], [], _LONGEST_START_SECONDS)
        line = popen.stdout.readline().decode().strip() if ready else ""
        assert line.startswith("listening on "), stderr.read_text()[-2000:]
        grpc_address, _, http = line.removeprefix("listening on ").partition(", http on ")
        yield Process(popen, grpc_address, http, stderr)
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()


def triton(job: dict[str, Any]) -> dict[str, Any]:
    """What triton_client.py does of a job, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_client.py"))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found
