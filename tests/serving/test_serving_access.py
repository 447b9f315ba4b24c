"""Tokens, TLS, figures: of the model's server as `hps serve` has them.

Above it: pytest. Below it: hps.serving.server in this process; certificates by openssl.
"""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import hps
from hps.inference import open_inference_pb2 as pb
from hps.service.server.front import ServerOptions
from hps.service.server.tls import TlsFiles
from hps.serving.scorer import ScoringOptions
from hps.serving.server import ModelServerOptions
from hps.v1 import parameter_server_pb2
from tests.serving.conftest import Models
from tests.serving.serving_lab import NAME, ask, bytes_input, caller, lines_request, serving
from tests.serving.test_serving_grpc import channel_of, refusal

READER, OTHER = "reader-secret-0123456789", "other-secret-0123456789"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    entries = [
        {"name": "reader", "token": READER, "tables": {"features": ["read"]}},
        {"name": "other", "token": OTHER, "tables": {"users": ["read"]}},
    ]
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": entries}))
    return path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_tokens_of_both_protocols(models: Models, tokens: Path) -> None:
    made, model = models("criteo")
    lines = made.lines()[:1]
    body = {"inputs": [bytes_input("lines", lines)]}
    path = f"/v2/models/{NAME}/infer"
    with serving(model, tokens=tokens, metrics="127.0.0.1:0") as local:
        for token, status, says in (
            (None, 401, "no token"),
            ("nobody-secret-0123456789", 401, "an unknown token"),
            (OTHER, 403, "'other' lacks the right 'read' on some table of the model"),
        ):
            headers = {} if token is None else bearer(token)
            found, said = local.ask(path, body, headers=headers)
            assert found == status and says in said["error"]
            for other in (f"/v2/models/{NAME}", "/v2"):
                expected = 200 if other == "/v2" and status == 403 else status
                assert local.ask(other, headers=headers)[0] == expected
            look = {"table": "features", "keys": [1]}
            assert local.ask(f"/v1/models/{NAME}:lookup", look, headers=headers)[0] == status
            plain = {"instances": [{}]}
            assert local.ask(f"/v1/models/{NAME}:predict", plain, headers=headers)[0] == status
        assert local.ask(path, body, headers=bearer(READER))[0] == 200
        for open_path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{NAME}/ready"):
            assert local.ask(open_path)[0] == 200
        with channel_of(local) as channel:
            infer, request = caller(channel, "ModelInfer"), lines_request(lines)
            for token, code in ((None, "UNAUTHENTICATED"), (OTHER, "PERMISSION_DENIED")):
                metadata = None if token is None else [("authorization", f"Bearer {token}")]
                assert refusal(infer, request, metadata=metadata)[0] == code
                about = caller(channel, "ModelMetadata")
                assert (
                    refusal(about, pb.ModelMetadataRequest(name=NAME), metadata=metadata)[0] == code
                )
                lookup = channel.unary_unary("/hps.v1.ModelServer/Lookup")
                pull = parameter_server_pb2.PullRequest(table="features").SerializeToString()
                assert refusal(lookup, pull, metadata=metadata)[0] == code
            metadata = [("authorization", f"Bearer {READER}")]
            assert len(infer(request, timeout=30, metadata=metadata).outputs) == 1
            assert caller(channel, "ServerReady")(pb.ServerReadyRequest(), timeout=30).ready
        url = f"http://127.0.0.1:{local.server.front.metrics_port}/metrics"
        assert ask(url)[0] == 401
        rows = 'hps_table_rows{table="features"}'
        assert rows in ask(url, headers=bearer(READER))[2].decode()
        assert rows not in ask(url, headers=bearer(OTHER))[2].decode()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFiles]:
    folder = tmp_path_factory.mktemp("tls")
    files = TlsFiles(cert=folder / "cert.pem", key=folder / "key.pem")
    make_certificate(files)
    yield files


def make_certificate(files: TlsFiles) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    command += "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    names = ["-keyout", str(files.key), "-out", str(files.cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)


def test_tls_of_both_protocols(models: Models, certificate: TlsFiles) -> None:
    made, model = models("criteo")
    body = json.dumps({"inputs": [bytes_input("lines", made.lines()[:1])]}).encode()
    with serving(model, tls=certificate) as local:
        url = f"https://{local.server.http_address}/v2/models/{NAME}/infer"

        def trusting() -> ssl.SSLContext:
            return ssl.create_default_context(cafile=str(certificate.cert))

        assert ask(url, body, context=trusting())[0] == 200
        with pytest.raises(OSError, match=r"(?i)certificate"):
            ask(url, body, context=ssl.create_default_context())
        with pytest.raises(OSError):
            ask(url.replace("https", "http"), body)
        root = grpc.ssl_channel_credentials(certificate.cert.read_bytes())
        with grpc.secure_channel(local.server.address, root) as channel:
            request = lines_request(made.lines()[:1])
            assert len(caller(channel, "ModelInfer")(request, timeout=30).outputs) == 1
        # A renewed certificate serves new connections; one that cannot be used changes nothing.
        before = certificate.cert.read_bytes()
        make_certificate(certificate)
        with pytest.raises(OSError):
            ask(url, body, context=trusting())
        local.server.reload()
        assert ask(url, body, context=trusting())[0] == 200
        good = certificate.cert.read_bytes()
        certificate.cert.write_bytes(before)
        local.server.reload()
        assert {line["what"] for line in local.log("reload") if line["level"] == "error"} == {
            "certificate",
            "certificate of http",
        }
        certificate.cert.write_bytes(good)
        assert ask(url, body, context=trusting())[0] == 200


def test_figures(models: Models) -> None:
    made, model = models("criteo")
    with serving(model, metrics="127.0.0.1:0") as local:
        local.infer(bytes_input("lines", made.lines()[:3]))
        local.infer(bytes_input("lines", made.lines()[3:5]))
        local.infer(bytes_input("nix", ["x"]))
        _, reply = local.infer(bytes_input("lines", made.lines()[:5]))
        scores = reply["outputs"][0]["data"]
        text = ask(f"http://127.0.0.1:{local.server.front.metrics_port}/metrics")[2].decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        figures = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
        ready = f"http://127.0.0.1:{local.server.front.metrics_port}/healthz"
        assert ask(ready)[0] == 200
        local.server.front.health.stop()
        assert ask(ready)[0] == 503
    assert figures['hps_calls_total{method="http infer",status="OK"}'] == 3
    assert figures['hps_calls_total{method="http infer",status="INVALID_ARGUMENT"}'] == 1
    assert figures['hps_call_seconds_count{method="http infer"}'] == 4
    assert figures["hps_scored_rows_total"] == 10
    assert figures["hps_batch_rows_sum"] == 10 and figures["hps_batch_rows_count"] == 3
    assert figures["hps_batch_requests_sum"] == 3 and figures["hps_waiting_requests"] == 0
    assert figures["hps_batch_wait_seconds_count"] == 3
    mean = figures['hps_score_sum{version="final"}'] / figures['hps_score_count{version="final"}']
    assert mean == pytest.approx(sum(scores) / 5, rel=1e-5)
    assert figures['hps_model_version{name="ads",version="final"}'] == 1
    assert figures['hps_tier_rows{tier="dram_cache"}'] > 0
    for name in text.splitlines():
        if name.startswith("# HELP"):
            assert name.split()[2].startswith("hps_"), name


def test_addresses_that_others_reach_need_tls(tmp_path: Path) -> None:
    scoring = ScoringOptions(name="m")

    def options(http: str, **front: Any) -> ModelServerOptions:
        return ModelServerOptions(
            front=ServerOptions(listen="127.0.0.1:0", **front), scoring=scoring, http=http
        )

    with pytest.raises(hps.ConfigError, match=r"--http 0\.0\.0\.0: other machines can reach it"):
        options("0.0.0.0:8000")
    assert options("0.0.0.0:8000", allow_insecure=True)
    with pytest.raises(hps.ConfigError, match=r"--http 'x': .*the port is missing"):
        options("x")
    with pytest.raises(hps.ConfigError, match="--name 'a/b': the name of a model is"):
        ScoringOptions(name="a/b")


def test_an_address_that_is_taken_is_named(models: Models) -> None:
    _, model = models("criteo")
    from hps.serving.server import ModelServer

    with serving(model) as local:
        front = ServerOptions(listen="127.0.0.1:0")
        taken = ModelServerOptions(
            front=front, scoring=ScoringOptions(name=NAME), http=local.server.http_address
        )
        with pytest.raises(hps.ConfigError, match=r"--http 127\.0\.0\.1:\d+: Address already"):
            ModelServer(model, taken, local.server.front.calls.log)
