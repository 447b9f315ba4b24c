"""What no target, no name and no client can do to a dashboard: end it, fill it, hold it up.

Above it: pytest. Below it: hps/dashboard over fake endpoints and files that hps did not write.
"""

import http.client
import json
import socket
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hps.dashboard.collector import Collector
from hps.dashboard.exposition import Between, parse
from hps.dashboard.fetch import Fetcher
from hps.dashboard.figures import rate_figures
from hps.dashboard.server import run_rounds
from hps.errors import DataError, DeadlineError
from hps.service.server.http_server import HttpLimits, HttpRequest, HttpServer, HttpStream
from tests.dashboard.endpoints import Clock, endpoint, watched
from tests.dashboard.test_dashboard_collector import collecting, one_target
from tests.dashboard.test_dashboard_server import Stream, board
from tests.service.server.test_server_access import READER, tokens

__all__ = ["tokens"]  # a fixture


@pytest.mark.parametrize(
    "begun",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 500 no\r\nContent-Length: 1000\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ids=["line", "head", "refusal", "chunks"],
)  # fmt: skip
def test_an_answer_that_drips_is_given_up_in_time_wherever_it_is(begun: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    connection.sendall(begun)
                    for _ in range(40):
                        connection.sendall(b"0")
                        time.sleep(0.1)
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        start = time.monotonic()
        with pytest.raises(DeadlineError):
            Fetcher("127.0.0.1", listener.getsockname()[1], seconds=0.5).get("/metrics")
        assert time.monotonic() - start < 2
        thread.join()


def test_of_too_many_samples_none_is_taken_apart() -> None:
    text = "# TYPE hps_many gauge\n" + "hps_many 1\n" * 400_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than 20,000 samples"):
            parse(text, 0.0)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(text)
    finally:
        tracemalloc.stop()


def strict(text: str | bytes) -> Any:
    """As a browser reads JSON: NaN and Infinity are none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_no_number_does_not_reach_the_page() -> None:
    with board() as shown:
        shown.endpoint.text = (
            "hps_failed 0\nhps_log_bytes NaN\nhps_train_auc NaN\nhps_period +Inf\n"
            'hps_train_rank{rank="0",ranks="1"} 1\n'
            "hps_ssd_read_bytes_total 1e308\n"
        )
        slices = '[["fetch", "", 1, 0.5, 1.5], ["copy", "", 1, NaN, Infinity]]'
        shown.endpoint.pages["/stages"] = f'{{"now": 1.0, "slices": {slices}}}'
        shown.round()
        state = strict(json.dumps(shown.collector.round()))
        assert state["values"][shown.endpoint.address] == {"failed": 0}
        assert state["slices"] == {shown.endpoint.address: [["fetch", "", 1, 0.5, 1.5]]}
        stream = Stream(shown)
        kind, told = stream.next()
        assert kind == "history" and strict(json.dumps(told))
        stream.close()


def test_a_run_s_line_of_no_moment_ends_nothing(tmp_path: Path) -> None:
    line = {"kind": "train", "examples": 10, "auc": 0.7}
    lines = [{**line, "time": 1_700_000_000.0}, line]
    text = "".join(json.dumps(one) + "\n" for one in lines)
    torn = '{"kind": "train", "examples": 20, "auc": NaN, "time": 1e999}\n'
    last = json.dumps({**line, "examples": 30, "time": 1_700_000_010.0}) + "\n"
    (tmp_path / "run.jsonl").write_text(text + torn + last)
    with collecting(watched(tmp_path), Clock()) as collector:
        state = collector.round()
        assert one_target(state)["state"] == "up" and one_target(state)["facts"]["examples"] == "30"
        strict(json.dumps(state))
        (found,) = collector.histories().values()
        assert found["times"] == [1_700_000_000.0, 1_700_000_010.0]


def test_a_run_that_comes_late_has_all_of_its_history(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "run"
    with collecting(watched(folder), clock) as collector:
        for _ in range(3):
            clock.now += 5
            assert one_target(collector.round())["state"] == "not reached yet"
        folder.mkdir()
        line = {"kind": "train", "examples": 10, "auc": 0.7, "time": clock.now - 3600}
        (folder / "run.jsonl").write_text(json.dumps(line) + "\n")
        collector.round()
        (found,) = collector.histories().values()
        assert found == {"times": [clock.now - 3600], "series": {"auc/train": [0.7]}}


def test_names_without_end_fill_neither_the_dashboard_nor_a_page() -> None:
    clock = Clock()
    with endpoint() as server, collecting(watched(server.address), clock) as collector:
        for round_number in range(3):
            long = f"{round_number}" * 10_000
            rows = [f'hps_table_rows{{table="t{idx}"}} 1' for idx in range(5000)]
            rows += [f'hps_model_version{{name="{long}",version="1"}} 1']
            server.text = f'hps_table_rows{{table="{long}"}} 1\n' + "\n".join([*rows, ""])
            clock.now += 5
            state = collector.round()
            assert one_target(state)["state"] == "up"
            assert 0 < len(state["values"][server.address]) <= 1024
            assert len(json.dumps(state)) < 200_000
        assert all(len(name) < 300 for name in collector.histories()[server.address]["series"])


def test_a_store_that_is_opened_anew_has_no_rate_of_its_whole_life() -> None:
    calls = 'hps_calls_total{method="Pull",status="OK"} 5\n'
    hits = 'hps_tier_hits_total{tier="dram_cache"} 1e9\n'
    silent, again = parse("hps_failed 0\n", 0.0), parse(hits + calls, 5.0)
    figures = dict(rate_figures(Between(silent, again)))
    assert figures["calls/Pull"] == 1  # of the server itself, which had none
    assert not any(name.startswith(("hits", "hit_rate")) for name in figures)
    later = parse(hits.replace("1e9", "1000000050"), 10.0)
    assert dict(rate_figures(Between(again, later)))["hits/dram_cache"] == 10


def test_waits_of_stages_count_anew_with_their_training() -> None:
    text = 'hps_stage_wait_seconds_total{{stage="copy",side="input"}} {}\n'
    between = Between(parse(text.format(900), 0.0), parse(text.format(2), 4.0))
    assert dict(rate_figures(between))["stage_input/copy"] == 0.5


def test_a_round_that_fails_is_not_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[int] = []
    stop = threading.Event()

    class Failing:
        def round(self) -> dict[str, int]:
            rounds.append(len(rounds))
            if len(rounds) == 1:
                raise RuntimeError("a fault of the dashboard")
            stop.set()
            return {"id": 2}

    with board() as shown:
        run_rounds(Failing(), shown.server, 0.01, stop)  # type: ignore[arg-type]
    assert len(rounds) == 2 and "a fault of the dashboard" in capsys.readouterr().err


def test_news_that_nobody_reads_end_no_watch() -> None:
    def say(line: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with endpoint("hps_failed 0\n") as server:
        collector = Collector(watched(server.address), 5.0, Clock(), say)
        assert one_target(collector.round())["state"] == "up"
        collector.close()


@pytest.mark.parametrize("host", ["evil.example:80", "127.0.0.1.evil.example", "10.0.0.7:8080", ""])
@pytest.mark.parametrize("path", ["/", "/events", "/dashboard.js"])
def test_a_name_that_leads_here_from_elsewhere_is_told_nothing(host: str, path: str) -> None:
    with board() as shown:
        answer = shown.get(path, Host=host)
        assert answer.status == 403 and "--tokens" in answer.text


@pytest.mark.parametrize(
    "host", ["localhost:7", "a.localhost", "127.0.0.2:80", "[::1]:80", "LocalHost"]
)
def test_names_of_this_machine_are_answered(host: str) -> None:
    with board() as shown:
        assert shown.get("/", Host=host).status == 200


def test_with_tokens_any_name_will_do(tokens: Path) -> None:
    with board(tokens=tokens) as shown:
        given = {"Host": "board.example", "Authorization": f"Bearer {READER}"}
        assert shown.get("/", **given).status == 200
        assert shown.get("/", Host="board.example").status == 401


def test_all_that_is_kept_is_made_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    with board() as shown:
        histories = shown.collector.histories

        def counting() -> Any:
            made.append(1)
            return histories()

        monkeypatch.setattr(shown.collector, "histories", counting)
        shown.round()
        for expected in (1, 1, 2):
            if expected == 2:
                shown.round()
            stream = Stream(shown)
            kind, told = stream.next()
            assert kind == "history" and told["id"] == expected and len(made) == expected
            stream.close()


def test_a_slow_reader_has_time_for_a_long_part() -> None:
    part = b"x" * 2**23

    async def parts() -> Any:
        yield part

    def answer(request: HttpRequest) -> HttpStream:
        return HttpStream(parts, "text/plain", seconds=30.0)

    server = HttpServer(("127.0.0.1", 0), answer, HttpLimits(seconds=0.5))
    server.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        connection.request("GET", "/")
        found, begun = connection.getresponse(), time.monotonic()
        size = 0
        while piece := found.read(2**19):
            size += len(piece)
            time.sleep(0.1)
        assert size == len(part) and time.monotonic() - begun > 1
        connection.close()
    finally:
        server.stop()
