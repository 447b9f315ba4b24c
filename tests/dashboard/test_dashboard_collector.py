"""What is asked of each target, and what becomes of one that goes, hangs, lies or comes back.

Above it: pytest. Below it: hps/dashboard/collector.py over fake endpoints, runs and real stores.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.common.json_text import Json
from hps.dashboard import sources
from hps.dashboard.collector import Collector
from hps.dashboard.fetch import Credentials, Fetcher
from hps.dashboard.history import MOST_BYTES
from hps.dashboard.sources import StoreSource
from hps.dashboard.watched import Asking, Watched, parse_watched
from hps.errors import ConfigError, DataError, DeadlineError, StoreError
from hps.service.server.tls import server_context
from tests.dashboard.endpoints import ASKING, Clock, Endpoint, endpoint, watched
from tests.service.server.test_server_access import certificates, server_files

__all__ = ["certificates"]  # a fixture


@contextmanager
def collecting(
    targets: Sequence[Watched], clock: Clock, seconds: float = 5.0, said: list[str] | None = None
) -> Iterator[Collector]:
    say = (lambda line: None) if said is None else said.append
    collector = Collector(targets, seconds, clock, say)
    try:
        yield collector
    finally:
        collector.close()


def one_target(state: Json) -> Json:
    (found,) = state["targets"]
    return dict(found)


def test_figures_are_the_source_s_own_and_rates_those_between_two_rounds() -> None:
    clock = Clock()
    with endpoint() as server, collecting(watched(server.address), clock) as collector:
        server.set(hps_failed=0, hps_tier_rows__ssd_store=143760, hps_log_bytes=4096)
        server.text += "hps_ssd_read_bytes_total 1000\n"
        state = collector.round()
        assert one_target(state)["state"] == "up" and one_target(state)["kind"] == "server"
        values = state["values"][server.address]
        assert values["rows/ssd_store"] == 143760 and values["log_bytes"] == 4096
        assert "ssd_rate/read" not in values
        server.text = server.text.replace("1000\n", "1500\n")
        clock.now += 5
        state = collector.round()
        assert state["values"][server.address]["ssd_rate/read"] == 100
        history = collector.histories()[server.address]
        assert history["times"] == [clock.now - 5, clock.now]
        assert history["series"]["ssd_rate/read"] == [None, 100]
        assert [request.path for request in server.asked] == ["/metrics"] * 2


def test_a_target_that_goes_is_away_since_then_and_comes_back() -> None:
    clock, said = Clock(), []
    server = Endpoint("hps_failed 0\nhps_log_bytes 7\n")
    address, port = server.address, server.port
    with collecting(watched(address), clock, said=said) as collector:
        collector.round()
        server.stop()
        clock.now += 5
        gone_at = clock.now
        for _ in range(3):
            state = collector.round()
            target = one_target(state)
            assert (target["state"], target["since"]) == ("away", gone_at)
            assert "refused" in target["error"] and target["kind"] == "server"
            assert state["values"][address] == {}  # what is not known is not shown
            clock.now += 5
        assert collector.histories()[address]["series"]["log_bytes"] == [7, None, None, None]
        with endpoint("hps_failed 0\nhps_log_bytes 9\n", port):
            state = collector.round()
        target = one_target(state)
        assert (target["state"], target["since"], target["error"]) == ("up", clock.now, "")
        assert state["values"][address]["log_bytes"] == 9
    assert [line.partition(":")[2].partition(": ")[2][:9] for line in said] == [
        "server, a",
        "away: Con",
        "server, a",
    ]


def test_a_target_that_is_not_there_at_the_start_is_asked_on_and_told_once() -> None:
    clock, said = Clock(), []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with collecting(watched(address), clock, said=said) as collector:
            for _ in range(3):
                assert one_target(collector.round())["state"] == "not reached yet"
    (line,) = said
    assert line.startswith("warning: ") and "it is asked again" in line


def test_one_that_does_not_answer_holds_up_no_other() -> None:
    clock = Clock()
    with (
        endpoint("hps_failed 0\n") as quick,
        endpoint("hps_failed 0\n") as slow,
        collecting(watched(quick.address, slow.address), clock, seconds=0.3) as collector,
    ):
        slow.pause = 1.0
        start = time.monotonic()
        states = {one["name"]: one for one in collector.round()["targets"]}
        assert time.monotonic() - start < 0.9
        assert states[quick.address]["state"] == "up"
        assert states[slow.address]["error"] == "no answer within 0.3 s"
        collector.round()
        assert len(slow.asked) == 1  # it is not asked again before it has answered
        slow.pause = 0.0
        until = time.monotonic() + 20
        while collector.round()["targets"][1]["state"] != "up":
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("<html>", 200, "not Prometheus' text"),
        ("go_threads 7\n", 200, "none of its metrics is called hps_"),
        ("no token; send it\n", 401, "status 401: no token; send it"),
        ("", 500, "500"),
    ],
)
def test_what_nobody_understands_is_told(text: str, status: int, words: str) -> None:
    with endpoint(text) as server, collecting(watched(server.address), Clock()) as collector:
        server.status = status
        assert words in one_target(collector.round())["error"]


def test_an_answer_has_a_length_and_a_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hps.dashboard.fetch.MOST_BYTES", 1000)
    with endpoint("x" * 1001) as server, pytest.raises(DataError, match="longer than 1,000 bytes"):
        Fetcher("127.0.0.1", server.port).get("/metrics")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0.2 s"):
            Fetcher("127.0.0.1", port, seconds=0.2).get("/metrics")
        assert time.monotonic() - start < 2

        def drip() -> None:
            """A byte now and then: each is in time, all of them are not."""
            connection, _ = silent.accept()  # the one that gave up
            connection.close()
            connection, _ = silent.accept()
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            for _ in range(100):
                try:
                    connection.sendall(b"x")
                except OSError:
                    break
                time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(DeadlineError):
            Fetcher("127.0.0.1", port, seconds=0.5).get("/metrics")
        thread.join()
        assert time.monotonic() - start < 5


def test_the_slices_of_a_trainer_come_with_its_figures_and_may_be_missing() -> None:
    slices = [["fetch", "", 3, 1.0, 2.0], ["compute", "input", 0, 2.0, 2.5]]
    text = 'hps_train_rank{rank="1",ranks="4"} 1\nhps_train_auc 0.75\n'
    with endpoint(text) as trainer, collecting(watched(trainer.address), Clock()) as collector:
        for page, wanted in (
            (None, {}),
            ("{", {}),
            ('{"slices": [[1]]}', {}),
            (json.dumps({"now": 3.0, "slices": slices}), {trainer.address: slices}),
        ):
            trainer.pages = {} if page is None else {"/stages": page}
            state = collector.round()
            assert state["slices"] == wanted
            assert state["values"][trainer.address]["auc/train"] == 0.75
            assert one_target(state)["facts"]["rank"] == "1 of 4"


def test_the_rates_of_a_training_are_those_between_its_notes() -> None:
    clock = Clock()
    noted = clock.now - 0.5
    with endpoint() as trainer, collecting(watched(trainer.address), clock) as collector:
        for examples, moved, wanted in (
            (0, 0, None),
            (1000, 4, 250),
            (1000, 0, 250),
            (1600, 6, 100),
        ):
            noted += moved
            trainer.text = (
                'hps_train_rank{rank="0",ranks="1"} 1\n'
                f"hps_train_noted_seconds {noted}\nhps_train_examples_total {examples}\n"
            )
            values = collector.round()["values"][trainer.address]
            assert values.get("examples") == wanted
            clock.now += 4.8 if moved else 1.0
        clock.now += 60  # nothing is noted any more
        assert collector.round()["values"][trainer.address]["examples"] == 0


def stages_text(rank: int, fetch: float, compute: float, exchange: float) -> str:
    return (
        f'hps_train_rank{{rank="{rank}",ranks="3"}} 1\n'
        f'hps_stage_busy_seconds_total{{stage="fetch"}} {fetch}\n'
        f'hps_stage_busy_seconds_total{{stage="compute"}} {compute}\n'
        f"hps_train_exchange_seconds_total {exchange}\n"
    )


def test_the_slowest_rank_is_told_beside_the_median_without_what_it_waited() -> None:
    clock = Clock()
    with endpoint() as a, endpoint() as b, endpoint() as c:
        ranks = [a, b, c]
        with collecting(watched(*[one.address for one in ranks]), clock) as collector:
            for moment in (0, 1):
                for rank, one in enumerate(ranks):
                    # All compute for two seconds; the quick ones only wait for rank 1.
                    waits = 0.0 if rank == 1 else 1.5
                    one.text = stages_text(rank, 0.25 * moment, 2.0 * moment, waits * moment)
                state = collector.round()
                clock.now += 5
        found = {one["what"]: one for one in state["stragglers"]}
        assert found["stage compute"]["slowest"] == b.address
        assert found["stage compute"]["value"] == pytest.approx(2.0)
        assert found["stage compute"]["median"] == pytest.approx(0.5)
        assert found["stage fetch"]["ratio"] == pytest.approx(1.0)
        assert state["stragglers"][0]["what"] == "stage compute"


def histogram(method: str, up_to: float, count: int) -> str:
    ends = (0.01, 0.1, 1.0)
    lines = [
        f'hps_call_seconds_bucket{{method="{method}",le="{end}"}} {count if end >= up_to else 0}'
        for end in ends
    ]
    return "\n".join([*lines, f'hps_call_seconds_bucket{{method="{method}",le="+Inf"}} {count}\n'])


def test_the_slowest_shard_is_told_by_method() -> None:
    clock = Clock()
    with endpoint() as a, endpoint() as b, endpoint() as c:
        shards = [a, b, c]
        with collecting(watched(*[one.address for one in shards]), clock) as collector:
            for count in (0, 100):
                for one in shards:
                    calls = f'hps_failed 0\nhps_calls_total{{method="Pull",status="OK"}} {count}\n'
                    one.text = calls + histogram("Pull", 1.0 if one is b else 0.1, count)
                state = collector.round()
                clock.now += 5
        (found,) = state["stragglers"]
        assert found["what"] == "Pull, 99 of 100" and found["slowest"] == b.address
        assert 0.9 < found["value"] < 1.0 and 0.09 < found["median"] < 0.1


def test_eight_hours_of_rounds_stay_within_the_memory_that_was_said() -> None:
    clock = Clock()
    with endpoint() as server, collecting(watched(server.address), clock) as collector:
        names = {f"hps_tier_rows__tier{idx}": float(idx) for idx in range(300)}
        server.set(hps_failed=0, **names)
        for _ in range(300):
            collector.round()
            clock.now += 8 * 3600 / 300
        assert collector.nbytes() <= MOST_BYTES
        facts = one_target(collector.state())["facts"]
        assert facts["figures left out"] == "45 or more: there are too many"


def write_lines(path: Path, lines: list[dict[str, Any]], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_s_file_is_read_on_where_it_grew_and_anew_where_it_begins_anew(
    tmp_path: Path,
) -> None:
    clock = Clock()
    file = tmp_path / "run.jsonl"
    lines = [{"time": clock.now - 60, "kind": "begin", "examples": 0}]
    lines += [
        {"time": clock.now - 50 + idx, "kind": "train", "examples": idx, "auc": 0.5 + idx / 100}
        for idx in range(5)
    ]
    write_lines(file, lines)
    with collecting(watched(tmp_path), clock) as collector:
        state = collector.round()
        assert state["values"][tmp_path.name] == {"auc/train": 0.54}
        assert collector.histories()[tmp_path.name]["times"] == [one["time"] for one in lines[1:]]
        with file.open("a") as torn:
            torn.write('{"time": 1, "kind": "tr')
        valid = {"time": clock.now - 10, "kind": "valid", "examples": 9, "logloss": 0.25}
        assert collector.round()["points"][tmp_path.name] == []
        with file.open("a") as rest:
            rest.write('ain", "examples": 5}\n')
        write_lines(file, [valid])
        state = collector.round()
        assert state["values"][tmp_path.name] == {"auc/train": 0.54, "loss/valid": 0.25}
        assert [time for time, _ in state["points"][tmp_path.name]][-1] == clock.now - 10
        assert one_target(state)["facts"]["examples"] == "9"
        again = [{"time": clock.now - 5, "kind": "train", "examples": 1, "auc": 0.9}]
        write_lines(file, again, "w")
        assert collector.round()["values"][tmp_path.name]["auc/train"] == 0.9
        assert one_target(collector.state())["state"] == "up"
        (tmp_path / "run.json").write_text("{}")
        os.utime(tmp_path / "run.json", (clock.now, clock.now))
        assert one_target(collector.round())["state"] == "ended"
        file.unlink()
        assert one_target(collector.round())["state"] == "away"


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies there; a reader's pin comes and goes, which changes the time of its folder."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def keys(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.uint64)


def store_config(path: Path) -> hps.Config:
    tables = [hps.TableConfig(name=name, dim=4) for name in ("ads", "users")]
    return hps.Config(path=path, tables=tables, dram=hps.DramCacheConfig(bytes="1MiB"))


def test_a_store_is_watched_beside_its_writer_and_not_a_byte_of_it_changes(
    tmp_path: Path,
) -> None:
    clock = Clock()
    clock.now = time.time()
    path = tmp_path / "store"
    with hps.ParameterServer(store_config(path)) as server:
        server.pull("ads", keys(100), create=True)
        server.checkpoint("day-1")
        with collecting(watched(path), clock) as collector:
            before = files_of(path)
            state = collector.round()
            assert files_of(path) == before
            values = state["values"]["store"]
            assert values["rows/ssd_store"] == values["table_rows/ads"] == 100
            assert values["table_rows/users"] == 0 and 0 <= values["checkpoint_age"] < 60
            facts = one_target(state)["facts"]
            assert facts == {"checkpoints": "1", "newest checkpoint": "day-1"}
            server.pull("users", keys(50), create=True)
            server.checkpoint()  # the writer is not in the way of who watches, nor he in its
            clock.now += 30
            until = time.monotonic() + 20
            while collector.round()["values"]["store"]["table_rows/users"] != 50:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert collector.state()["values"]["store"]["rows/ssd_store"] == 150


def test_of_a_large_store_the_index_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hps.ParameterServer(store_config(tmp_path / "store")) as server:
        server.pull("ads", keys(100), create=True)
    monkeypatch.setattr(sources, "MOST_ROWS", 99)
    opened: list[bool] = []
    open_store = sources.open_store

    def noting(path: Path, tables: Any, **options: Any) -> Any:
        opened.append(options["rows"])
        return open_store(path, tables, **options)

    monkeypatch.setattr(sources, "open_store", noting)
    source = StoreSource(tmp_path / "store")
    for _ in range(3):
        figures = source.read(time.time()).figures
    assert figures["rows/ssd_store"] == 100 and "table_rows/ads" not in figures
    assert opened == [False] * 3


def test_the_index_is_not_read_again_before_fifty_times_as_long_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hps.ParameterServer(store_config(tmp_path / "store")) as server:
        server.pull("ads", keys(100), create=True)
        server.checkpoint()
        source = StoreSource(tmp_path / "store")
        assert source.read(time.time()).figures["table_rows/ads"] == 100
        source._due += 3600
        server.pull("ads", keys(200), create=True)
        server.checkpoint()
        found = source.read(time.time()).figures
        assert found["rows/ssd_store"] == 200 and found["table_rows/ads"] == 100
        source._due = 0.0
        assert source.read(time.time()).figures["table_rows/ads"] == 200


def test_the_index_is_read_once_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hps.ParameterServer(store_config(tmp_path / "store")) as server:
        server.pull("ads", keys(100), create=True)
    source = StoreSource(tmp_path / "store")
    assert source.read(time.time()).figures["table_rows/ads"] == 100
    source._due = 0.0  # as after fifty times as long
    monkeypatch.setattr(source, "_open", lambda rows, found=source._open: _light(found, rows))
    assert source.read(time.time()).figures["table_rows/ads"] == 100


def _light(found: Any, rows: bool) -> Any:
    assert not rows, "the index was read again"
    return found(rows=rows)


def test_targets_are_addresses_runs_and_stores_with_names_of_their_own(tmp_path: Path) -> None:
    for name in ("a/run", "b/run"):
        (tmp_path / name).mkdir(parents=True)
        write_lines(tmp_path / name / "run.jsonl", [{"kind": "begin", "examples": 0}])
    words = [f"{tmp_path}/a/run,127.0.0.1:9100, https://[::1]:9200/metrics", f"{tmp_path}/b/run"]
    found = parse_watched(words, ASKING)
    assert [one.name for one in found] == [
        f"{tmp_path}/a/run",
        "127.0.0.1:9100",
        "https://[::1]:9200/metrics",
        f"{tmp_path}/b/run",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([""], "--watch names nothing"),
        ([" , "], "--watch names nothing"),
        (["127.0.0.1:9100,127.0.0.1:9100"], "names 127.0.0.1:9100 twice; leave one out"),
        (["127.0.0.1:9100", "http://127.0.0.1:9100/"], "twice, also as 127.0.0.1:9100"),
        (["ftp://host/x"], "nobody watches ftp://; give HOST:PORT"),
        (["127.0.0.1:99999"], "write HOST:PORT"),
        ([f"127.0.0.1:{port}" for port in range(9000, 9065)], "65 targets; 64 at most"),
        (["{folder}"], "neither the folder of a run .* nor a store"),
        (["{folder}/file.txt"], "neither the folder of a run .* nor a store"),
        (["{folder}/none", "{folder}/../{name}/none"], "twice, also as"),
    ],
)
def test_what_cannot_be_watched_is_explained(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("text")
    given = [word.format(folder=tmp_path, name=tmp_path.name) for word in words]
    with pytest.raises(ConfigError, match=said):
        parse_watched(given, ASKING)


def test_a_folder_that_is_not_there_yet_may_become_anything(tmp_path: Path) -> None:
    clock = Clock()
    with collecting(watched(tmp_path / "later"), clock) as collector:
        assert one_target(collector.round())["error"] == "there is no such file or folder yet"
        (tmp_path / "later").mkdir()
        assert one_target(collector.round())["error"] == "the folder is empty so far"
        write_lines(tmp_path / "later" / "run.jsonl", [{"kind": "begin", "examples": 0}])
        assert one_target(collector.round())["kind"] == "run"


def test_a_closed_port_and_a_name_nobody_knows_are_store_errors() -> None:
    with pytest.raises(StoreError):
        Fetcher("127.0.0.1", 1, seconds=1.0).get("/metrics")
    with pytest.raises((StoreError, DeadlineError)):
        Fetcher("no-such-host.invalid", 80, seconds=1.0).get("/metrics")


def test_a_target_with_tls_and_tokens_is_shown_both(certificates: Path) -> None:
    server = Endpoint("hps_failed 0\n")
    server._server.context = server_context(server_files(certificates))
    address = f"https://localhost:{server.port}"
    ca = certificates / "ca.pem"
    try:
        for credentials, words in (
            (Credentials(ca=ca, token="secret-0123456789"), ""),
            (Credentials(), "CERTIFICATE_VERIFY_FAILED"),
        ):
            targets = parse_watched([address], Asking(credentials=credentials))
            with collecting(targets, Clock()) as collector:
                found = one_target(collector.round())
            assert (found["error"] == "") is (not words) and words in found["error"]
        assert server.asked[0].headers.get("authorization") == "Bearer secret-0123456789"
        plain = parse_watched([f"localhost:{server.port}"], ASKING)
        with collecting(plain, Clock()) as collector:
            assert "ask with https://" in one_target(collector.round())["error"]
    finally:
        server.stop()


def test_a_token_does_not_travel_in_the_clear_unless_it_may() -> None:
    shown = Credentials(token="secret-0123456789")
    with pytest.raises(ConfigError, match=r"would travel in the clear; give https://192.0.2.1:9"):
        parse_watched(["192.0.2.1:9100"], Asking(credentials=shown))
    for words, allow in (("192.0.2.1:9100", True), ("https://192.0.2.1:9100", False)):
        assert parse_watched([words], Asking(credentials=shown, allow_insecure=allow))
    assert parse_watched(["127.0.0.1:9100"], Asking(credentials=shown))


def test_files_of_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for credentials, words in (
        (Credentials(ca=bad), "--watch-ca .*bad.pem"),
        (Credentials(cert=bad, key=bad), "--watch-cert .*bad.pem"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_watched(["https://127.0.0.1:9100"], Asking(credentials=credentials))
