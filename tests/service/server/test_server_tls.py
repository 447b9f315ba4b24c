"""A renewed certificate is given to gRPC once, and while no handshake is being set up.

Above it: pytest. Below it: hps.service.server.tls.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hps.service.server import tls
from tests.service.server.test_server_access import certificates, server_files

__all__ = ["certificates"]  # a fixture
SETTLE = 0.2


@pytest.fixture
def renewals(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[tls.TlsCredentials, Callable[[], Any]]:
    """Credentials, and what gRPC calls before each handshake."""
    asked: list[Callable[[], Any]] = []
    monkeypatch.setattr(tls, "_SETTLE_SECONDS", SETTLE)
    monkeypatch.setattr(
        grpc, "dynamic_ssl_server_credentials", lambda first, fetch, **_: asked.append(fetch)
    )
    made = tls.TlsCredentials(server_files(certificates))
    made.credentials()
    return made, asked[0]


def test_a_certificate_is_replaced_once_a_renewal(
    renewals: tuple[tls.TlsCredentials, Callable[[], Any]],
) -> None:
    made, fetch = renewals
    for _ in range(2):
        assert fetch() is None
        assert fetch() is None
        made.reload()
        assert fetch() is not None
    made.reload()
    made.reload()
    assert fetch() is not None
    assert fetch() is None


def test_no_handshake_begins_while_a_certificate_is_replaced(
    renewals: tuple[tls.TlsCredentials, Callable[[], Any]],
) -> None:
    made, fetch = renewals
    made.reload()
    answers: list[tuple[float, Any]] = []

    def ask() -> None:
        answer = fetch()
        answers.append((time.monotonic(), answer))

    started = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (replaced_at, renewed), *others = answers
    assert renewed is not None
    assert replaced_at - started >= SETTLE  # those that have asked before have their handshakes
    assert all(answer is None and at - replaced_at >= SETTLE * 0.99 for at, answer in others)


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_connections_that_come_and_go_do_not_end_a_server(
    certificates: Path, seconds: float
) -> None:
    words = [sys.executable, "-m", "tests.service.server.tls_storm", str(certificates)]
    storms = [
        subprocess.Popen([*words, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in storms:
        out, err = process.communicate()
        assert process.returncode == 0, err.decode()[-2000:]
        assert int(out) > 100
