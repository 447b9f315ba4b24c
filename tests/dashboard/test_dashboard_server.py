"""Who is shown the page, over what, and that no page misses a round.

Above it: pytest. Below it: hps/dashboard/server.py over fake endpoints, spoken to over HTTP.
"""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.dashboard.collector import Collector
from hps.dashboard.panels import PANELS
from hps.dashboard.server import (
    COOKIE,
    MOST_KEPT,
    DashboardOptions,
    DashboardServer,
    run_rounds,
)
from hps.service.server.tls import TlsFiles
from tests.dashboard.endpoints import Clock, Endpoint, endpoint, watched
from tests.service.server.test_server_access import (
    OLD,
    READER,
    certificates,
    server_files,
    tokens,
)

__all__ = ["certificates", "tokens"]  # fixtures
FIGURES = "hps_failed 0\nhps_log_bytes 7\n"


class Board:
    """A dashboard over one endpoint, whose rounds a test makes."""

    def __init__(self, server: Endpoint, **options: Any) -> None:
        self.clock = Clock()
        self.endpoint = server
        self.collector = Collector(watched(server.address), 5.0, self.clock)
        given = DashboardOptions(listen=options.pop("listen", "127.0.0.1:0"), **options)
        self.server = DashboardServer(self.collector, given)
        self.port = int(self.server.url.rstrip("/").rpartition(":")[2])
        self.server.start()

    def round(self) -> None:
        self.clock.now += 5
        self.server.tell(self.collector.round())

    def close(self) -> None:
        self.server.stop()
        self.collector.close()

    def connection(self, ca: Path | None = None, client: Path | None = None) -> Any:
        if ca is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        context = ssl.create_default_context(cafile=str(ca))
        if client is not None:
            context.load_cert_chain(client / "client.pem", client / "client.key")
        return http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)

    def get(self, path: str, verb: str = "GET", ca: Path | None = None, **headers: str) -> Any:
        """The answer, with its text as `text`."""
        connection = self.connection(ca)
        connection.request(verb, path, headers=headers)
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        connection.close()
        return answer


@contextmanager
def board(**options: Any) -> Iterator[Board]:
    with endpoint(FIGURES) as server:
        made = Board(server, **options)
        try:
            yield made
        finally:
            made.close()


class Stream:
    """The events of a page, one by one."""

    def __init__(self, shown: Board, last: str | None = None) -> None:
        self._connection = shown.connection()
        headers = {} if last is None else {"Last-Event-ID": last}
        self._connection.request("GET", "/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.kind = self._answer.headers["Content-Type"]
        assert self._answer.readline() == b"retry: 2000\n" and self._answer.readline() == b"\n"
        self.last = ""

    def next(self) -> tuple[str, Any]:
        """(kind, what it says)."""
        fields = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        self.last = fields["id"]
        return fields["event"], json.loads(fields["data"])

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_the_page_and_its_files_are_there_and_ask_nobody_else() -> None:
    with board() as shown:
        page = shown.get("/")
        assert page.status == 200 and page.headers["Content-Type"].startswith("text/html")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        for name in ("dashboard.js", "plots.js", "gantt.js", "words.js", "dashboard.css"):
            found = shown.get(f"/{name}")
            assert found.status == 200 and "http://" not in found.text.replace(
                "http://www.w3.org/2000/svg", ""
            )
        assert "v1.6.32" in shown.get("/uPlot.iife.min.js").text[:200]
        assert "MIT" in shown.get("/uPlot.LICENSE.txt").text
        assert shown.get("/healthz").text == "ok\n"


@pytest.mark.parametrize(
    "path", ["/none", "/../server.py", "/%2e%2e/server.py", "/web/index.html", "/index.html/", "//"]
)
def test_nothing_else_is_there(path: str) -> None:
    with board() as shown:
        assert shown.get(path).status == 404


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "HEAD"])
def test_nobody_writes(verb: str) -> None:
    with board() as shown:
        assert shown.get("/", verb).status == 405


def test_the_first_event_has_all_and_each_other_one_a_round() -> None:
    with board() as shown:
        shown.round()
        stream = Stream(shown)
        assert stream.kind == "text/event-stream"
        kind, told = stream.next()
        name = shown.endpoint.address
        assert kind == "history" and [one["name"] for one in told["panels"]] == [
            panel.name for panel in PANELS
        ]
        assert told["history"][name]["series"] == {"failed": [0], "log_bytes": [7]}
        for value in (8, 9):
            shown.endpoint.text = FIGURES.replace("7", str(value))
            shown.round()
            kind, told = stream.next()
            assert kind == "round" and told["values"][name]["log_bytes"] == value
            assert told["points"][name] == [[shown.clock.now, {"failed": 0, "log_bytes": value}]]
        stream.close()


def test_a_page_that_comes_back_is_given_what_it_missed_and_no_more() -> None:
    with board() as shown:
        shown.round()
        stream = Stream(shown)
        stream.next()
        shown.round()
        stream.next()
        stream.close()
        for _ in range(3):
            shown.round()
        stream = Stream(shown, stream.last)
        told = [stream.next() for _ in range(3)]
        assert [(kind, one["id"]) for kind, one in told] == [("round", idx) for idx in (3, 4, 5)]
        shown.round()
        assert stream.next()[1]["id"] == 6
        stream.close()


def test_a_page_that_was_away_for_long_or_elsewhere_is_given_all() -> None:
    with board() as shown:
        shown.round()
        stream = Stream(shown)
        stream.next()
        stream.close()
        number = stream.last.rpartition("-")[2]
        for _ in range(MOST_KEPT + 1):
            shown.round()
        for last in (stream.last, f"other-{int(number) + MOST_KEPT}", "x", ""):
            stream = Stream(shown, last)
            assert stream.next()[0] == "history", last
            stream.close()


def test_a_page_that_is_open_before_the_first_round_sees_it() -> None:
    with board() as shown:
        stream = Stream(shown)
        kind, told = stream.next()
        assert kind == "history" and told["targets"][0]["state"] == "not reached yet"
        shown.round()
        assert stream.next()[1]["targets"][0]["state"] == "up"
        stream.close()


def test_pages_end_when_the_dashboard_does() -> None:
    with board() as shown:
        shown.round()
        stream = Stream(shown)
        stream.next()
        shown.close()
        assert stream._answer.readline() == b""


def test_a_token_is_wanted_once_and_then_kept_where_no_script_sees_it(tokens: Path) -> None:
    with board(tokens=tokens) as shown:
        shown.round()
        for path in ("/", "/events", "/dashboard.js", "/uPlot.LICENSE.txt"):
            for headers in (
                {},
                {"Authorization": "Bearer wrong-secret-0123456789"},
                {"Authorization": f"Bearer {OLD}"},
                {"Cookie": f"{COOKIE}=wrong-secret-0123456789"},
                {"Cookie": f"{COOKIE}={OLD}"},
                {"Cookie": "=;=;"},
            ):
                answer = shown.get(path, **headers)
                assert answer.status == 401 and "open /?token=TOKEN once" in answer.text
                assert "hps_" not in answer.text and READER not in answer.text
        assert shown.get("/?token=wrong-secret-0123456789").status == 401
        answer = shown.get(f"/?token={READER}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
        kept = cookie.partition(";")[0]
        assert shown.get("/", Cookie=kept).status == 200
        assert shown.get("/", Cookie=f"other=1; {kept}").status == 200
        assert shown.get("/", Authorization=f"Bearer {READER}").status == 200
        # Never a place that somebody else names.
        answer = shown.get(f"//elsewhere.example/?token={READER}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert shown.get("/healthz").status == 200


def test_tokens_are_read_again(tokens: Path) -> None:
    with board(tokens=tokens) as shown:
        new = "new-secret-0123456789"
        assert shown.get("/", Authorization=f"Bearer {new}").status == 401
        entries = [{"name": "new", "token": new, "tables": {"*": ["read"]}}]
        tokens.write_text(json.dumps({"tokens": entries}))
        shown.server.reload()
        assert shown.get("/", Authorization=f"Bearer {new}").status == 200
        assert shown.get("/", Authorization=f"Bearer {READER}").status == 401
        tokens.write_text("{")
        with pytest.raises(hps.ConfigError):
            shown.server.reload()
        assert shown.get("/", Authorization=f"Bearer {new}").status == 200


def test_with_tls_the_page_is_served_by_it_alone(certificates: Path, tokens: Path) -> None:
    ca = certificates / "ca.pem"
    with board(tls=server_files(certificates), tokens=tokens) as shown:
        assert shown.server.url.startswith("https://")
        answer = shown.get(f"/?token={READER}", ca=ca)
        assert answer.status == 303 and "Secure" in answer.headers["Set-Cookie"]
        plain = shown.get(f"/?token={READER}")
        assert plain.status == 400 and "ask with https://" in plain.text


def test_with_mutual_tls_a_browser_needs_a_certificate(certificates: Path) -> None:
    with board(tls=server_files(certificates, client_ca=True)) as shown:
        with pytest.raises(OSError):
            shown.get("/", ca=certificates / "ca.pem")
        connection = shown.connection(certificates / "ca.pem", certificates)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listen": "0.0.0.0:0"}, "--listen 0.0.0.0: other machines can reach it.*figures"),
        ({"listen": "8080"}, "--listen '8080': write HOST:PORT, such as 127.0.0.1:8080"),
        ({"tokens": Path("/none")}, "--tokens /none: No such file"),
        (
            {"tls": TlsFiles(cert=Path("/none"), key=Path("/none"))},
            "--tls-cert /none, --tls-key /none: .*No such",
        ),
    ],
)
def test_what_cannot_be_served_is_explained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words), board(**options):
        pass


def test_a_port_that_is_taken_is_told_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with endpoint(FIGURES) as target, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ["dashboard", "--watch", target.address, "--listen", f"127.0.0.1:{port}"]
        assert main(words) == 1
        assert target.asked == []
    assert "Address already in use" in capsys.readouterr().err


def test_rounds_go_on_until_they_are_stopped() -> None:
    with board() as shown:
        stop = threading.Event()
        thread = threading.Thread(
            target=run_rounds, args=(shown.collector, shown.server, 0.01, stop)
        )
        thread.start()
        stream = Stream(shown)
        numbers = [stream.next()[1]["id"] for _ in range(5)]
        stop.set()
        thread.join(10)
        stream.close()
        first = numbers[0]
        assert not thread.is_alive() and numbers == list(range(first, first + 5))


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with endpoint(FIGURES) as target:
        words = [sys.executable, "-m", "hps", "dashboard", "--listen", "127.0.0.1:0", "--every"]
        words += ["1", "--watch", f"{target.address},{tmp_path / 'later'}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert line.startswith("dashboard on http://127.0.0.1:")
            port = int(line.split("/")[2].rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            said = [process.stderr.readline(), process.stderr.readline()]
            assert any("warning: later: there is no such file" in one for one in said)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()
