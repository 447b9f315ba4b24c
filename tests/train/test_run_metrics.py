"""The figures of a running training: what `hps train --metrics` serves, to whom, and when.

Above it: pytest. Below it: hps/train/run_metrics.py, under whole runs of `hps.train.train`.
"""

import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import hps
from hps.train import TrainOptions, train
from hps.train.loop import TrainingLoop
from hps.train.progress import Progress
from hps.train.ranks import TrainingRanks
from hps.train.run_metrics import RunMetrics
from tests.logs import write_criteo
from tests.service.server.test_server_access import certificates

__all__ = ["certificates"]  # a fixture
BATCHES, BATCH = 12, 100
Figures = dict[str, float]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("log") / "log.txt", BATCHES * BATCH)


def options_of(log: Path, store: Path, **more: Any) -> TrainOptions:
    small = {"model": "fm", "dim": 4, "batch_size": BATCH, "dram": "8MiB", "digest": False}
    return TrainOptions(data=[log], store=store, **{**small, **more})


def get(address: str, path: str = "/metrics", token: str = "") -> str:
    request = urllib.request.Request(f"http://{address}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> Figures:
    """Value by name, and by the values of its labels after it."""
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def looking(monkeypatch: pytest.MonkeyPatch, look: Callable[[RunMetrics], None]) -> Iterator[None]:
    """Looks at the figures when the loop of a run has ended and the run has not."""
    run = TrainingLoop.run

    def run_and_look(self: TrainingLoop, *arguments: Any) -> Any:
        ended = run(self, *arguments)
        assert self._metrics is not None
        look(self._metrics)
        return ended

    monkeypatch.setattr(TrainingLoop, "run", run_and_look)
    yield


def run_seen(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> tuple[Figures, dict[str, Any], Any]:
    """The figures at the end of the loop, the stages then, and what the run itself tells."""
    seen: list[tuple[Figures, dict[str, Any]]] = []

    def look(metrics: RunMetrics) -> None:
        address = metrics.address
        seen.append((parsed(get(address)), json.loads(get(address, "/stages"))))

    with looking(monkeypatch, look):
        told = train(options, Progress(0.001, StringIO()))
    return *seen[0], told


def test_the_figures_are_those_that_the_run_tells(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(
        log, tmp_path / "store", metrics="127.0.0.1:0", checkpoint_every=5, valid=[log]
    )
    figures, stages, told = run_seen(options, monkeypatch)
    assert figures["hps_train_examples_total"] == told["examples"] == BATCHES * BATCH
    assert figures["hps_train_batches_total"] == BATCHES
    assert figures["hps_table_rows/features"] == told["rows"]
    for name in ("hits", "misses"):
        of_tier = told["tiers"]["dram_cache"][name]
        assert 0 < figures[f"hps_tier_{name}_total/dram_cache"] <= of_tier
    assert figures["hps_ssd_written_bytes_total"] > 0
    assert figures["hps_train_checkpoints_total"] >= 2
    assert figures["hps_checkpoint_created_seconds"] <= figures["hps_train_noted_seconds"]
    evaluation = told["evaluations"][-1]
    assert figures["hps_valid_auc"] == evaluation["auc"]
    assert figures["hps_valid_logloss"] == evaluation["logloss"]
    for stage, seconds in told["stages"].items():
        busy = figures[f"hps_stage_busy_seconds_total/{stage}"]
        assert busy == pytest.approx(seconds["busy_seconds"], abs=1e-6), stage
    assert figures["hps_train_rank/0/1"] == 1
    of_compute = [one for one in stages["slices"] if one[0] == "compute" and not one[1]]
    assert [one[2] for one in of_compute] == list(range(1, BATCHES + 1))
    assert all(start <= end <= stages["now"] for *_, start, end in stages["slices"])


def test_the_figures_go_on_over_the_spans_of_a_run(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation ends a span; the seconds of the stages do not begin anew."""
    options = options_of(
        log, tmp_path / "store", metrics="127.0.0.1:0", valid=[log], eval_every=4, trace=None
    )
    figures, stages, told = run_seen(options, monkeypatch)
    assert len(told["evaluations"]) == 3
    busy = told["stages"]["compute"]["busy_seconds"]
    assert figures["hps_stage_busy_seconds_total/compute"] == pytest.approx(busy, abs=1e-6)
    numbers = [one[2] for one in stages["slices"] if one[0] == "compute" and not one[1]]
    assert numbers == list(range(1, BATCHES + 1))


def test_a_trace_and_the_figures_see_the_same_slices(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.json"
    options = options_of(log, tmp_path / "store", metrics="127.0.0.1:0", trace=trace)
    _, stages, _ = run_seen(options, monkeypatch)
    events = [one for one in json.loads(trace.read_text()) if one.get("ph") == "X"]
    assert sorted((one["name"] for one in events if one["cat"] != "wait"), key=str) == sorted(
        f"{stage} {batch}" for stage, side, batch, _, _ in stages["slices"] if not side
    )


def test_who_asks_never_waits_for_a_step(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be held by the training thread for as long as it likes."""
    seen: list[str] = []

    def look(metrics: RunMetrics) -> None:
        assert metrics._sources is not None
        server: Any = metrics._sources[0]
        with server.parts.tables.updates, server.parts.tables.lock:
            thread = threading.Thread(target=lambda: seen.append(get(metrics.address)))
            thread.start()
            thread.join(10)

    with looking(monkeypatch, look):
        train(options_of(log, tmp_path / "store", metrics="127.0.0.1:0"))
    assert seen and "hps_tier_rows" in seen[0]


def test_figures_that_cannot_be_had_end_no_training(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = RunMetrics.begin
    asked: list[str] = []

    class Failing:
        def stats(self) -> None:
            asked.append("stats")
            raise hps.StoreError(5, "planted")

    def begin_failing(self: RunMetrics, server: Any, checkpoints: Any) -> None:
        begin(self, Failing(), checkpoints)  # type: ignore[arg-type]

    monkeypatch.setattr(RunMetrics, "begin", begin_failing)
    told = train(options_of(log, tmp_path / "store", metrics="127.0.0.1:0"))
    assert told["examples"] == BATCHES * BATCH and asked


def test_the_port_is_free_again_after_the_run_also_after_an_error(
    log: Path, tmp_path: Path
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address = f"127.0.0.1:{port}"
    train(options_of(log, tmp_path / "a", metrics=address))
    with pytest.raises(hps.ConfigError):
        train(options_of(log, tmp_path / "a", metrics=address))  # holds a model already
    train(options_of(log, tmp_path / "b", metrics=address))


def test_a_port_that_is_taken_is_told_before_anything_is_made(log: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(hps.ConfigError, match=rf"--metrics {address}: Address already in use"):
            train(options_of(log, tmp_path / "store", metrics=address))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metrics": "0.0.0.0:0"}, "other machines can reach it.*--metrics-insecure"),
        ({"metrics": "9200"}, "--metrics '9200': write HOST:PORT, such as 127.0.0.1:9200"),
        ({"metrics_insecure": True}, r"--metrics-insecure\) is for figures; give their address"),
        ({"metrics_tokens": "x"}, r"--metrics-tokens\) is for figures"),
        ({"metrics": "127.0.0.1:0", "metrics_cert": "x"}, "--metrics-key.: give both or none"),
        ({"metrics": "127.0.0.1:0", "metrics_tokens": "/none"}, "--metrics-tokens /none: No such"),
        (
            {"metrics": "127.0.0.1:0", "metrics_cert": "/none", "metrics_key": "/none"},
            "--metrics-key /none: No such",
        ),
    ],
)
def test_what_cannot_be_is_explained(
    log: Path, tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(hps.ConfigError, match=words):
        train(options_of(log, tmp_path / "store", **more))
    assert not (tmp_path / "store").exists()


class OfRank(TrainingRanks):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.size = rank, 3


def test_each_rank_takes_the_port_that_many_above(log: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        base = free.getsockname()[1]
    options = options_of(log, tmp_path / "store", metrics=f"127.0.0.1:{base}")
    with RunMetrics(options, OfRank(2)) as metrics:
        assert metrics.address == f"127.0.0.1:{base + 2}"
        assert parsed(get(metrics.address)) == {"hps_train_rank/2/3": 1.0}
    options = options_of(log, tmp_path / "store", metrics="127.0.0.1:65534")
    with pytest.raises(hps.ConfigError, match="rank 2 takes the port 65536"):
        RunMetrics(options, OfRank(2))


def test_tokens_say_who_may_read_which_table(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of, none_of = "all-tables-0123456789", "no-table-here-0123456789"
    entries = [
        {"name": "a", "token": all_of, "tables": {"*": ["read"]}},
        {"name": "b", "token": none_of, "tables": {"other": ["read"]}},
    ]
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"tokens": entries}))
    found: dict[str, str] = {}

    def look(metrics: RunMetrics) -> None:
        for token in (all_of, none_of):
            found[token] = get(metrics.address, token=token)
        for path in ("/metrics", "/stages"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(metrics.address, path)
        found["health"] = get(metrics.address, "/healthz")

    with looking(monkeypatch, look):
        train(options_of(log, tmp_path / "store", metrics="127.0.0.1:0", metrics_tokens=str(file)))
    assert 'table="features"' in found[all_of] and 'table="features"' not in found[none_of]
    assert "hps_train_examples_total" in found[none_of] and found["health"] == "ok\n"


def test_with_a_certificate_figures_are_served_over_tls_alone(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificates: Path
) -> None:
    found: list[str] = []

    def look(metrics: RunMetrics) -> None:
        port = metrics.address.rpartition(":")[2]
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        url = f"https://localhost:{port}/metrics"
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            found.append(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(metrics.address)

    files = {
        "metrics_cert": certificates / "server.pem",
        "metrics_key": certificates / "server.key",
    }
    with looking(monkeypatch, look):
        train(options_of(log, tmp_path / "store", metrics="127.0.0.1:0", **files))
    assert "hps_train_examples_total" in found[0]


def test_figures_change_no_bit(log: Path, tmp_path: Path) -> None:
    plain = train(options_of(log, tmp_path / "a", digest=True))
    seen = train(options_of(log, tmp_path / "b", digest=True, metrics="127.0.0.1:0"))
    assert seen["loss_digest"] == plain["loss_digest"] and seen["digests"] == plain["digests"]


def test_figures_are_private_to_the_names_of_this_machine(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of others, whose names lead here, are to read nothing."""
    answers: dict[str, int] = {}

    def look(metrics: RunMetrics) -> None:
        port = metrics.address.rpartition(":")[2]
        for host in ("localhost", "127.0.0.1", "evil.example", f"evil.example:{port}"):
            for path in ("/metrics", "/stages"):
                request = urllib.request.Request(f"http://{metrics.address}{path}")
                request.add_header("Host", host)
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        answers[f"{host}{path}"] = answer.status
                except urllib.error.HTTPError as error:
                    answers[f"{host}{path}"] = error.code

    with looking(monkeypatch, look):
        train(options_of(log, tmp_path / "s", metrics="127.0.0.1:0"), Progress(0.001, StringIO()))
    assert {code for name, code in answers.items() if "evil" in name} == {403}
    assert {code for name, code in answers.items() if "evil" not in name} == {200}


def test_an_error_of_any_kind_in_a_note_ends_no_training(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: hps.ParameterServer) -> None:
        raise OSError(5, "Input/output error")

    note = RunMetrics.note

    def noting(self: RunMetrics, *given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(hps.ParameterServer, "stats", failing)
            note(self, *given)

    monkeypatch.setattr(RunMetrics, "note", noting)
    told = train(
        options_of(log, tmp_path / "s", metrics="127.0.0.1:0"), Progress(0.001, StringIO())
    )
    assert told["examples"] == BATCHES * BATCH
