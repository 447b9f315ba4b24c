"""The history of a run and the page of plots: read back, number for number.

Above it: pytest. Below it: `hps.report`, `hps train --report --tensorboard`, `hps report`.
"""

import errno
import io
import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.errors import StoreError
from hps.metrics import BinaryMetrics
from hps.report.history import JsonLines, TensorBoard, open_history
from hps.report.page import write_page
from hps.report.runs import Run, read_run
from hps.train import train
from hps.train.progress import Progress
from tests.logs import write_criteo
from tests.parity.test_resume import options

tensorboard_proto = pytest.importorskip("tensorboardX.proto.event_pb2")
pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("log") / "log.txt", 1500, num_keys=2000)


def traces_of(page: str) -> dict[str, list[dict[str, Any]]]:
    """Title -> the traces that the page gives to plotly."""
    decoder = json.JSONDecoder()
    found = {}
    body = page.split("<body>")[1]
    for part in body.split("<h2>")[1:]:
        start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', part)
        if start is not None:
            found[part.split("</h2>")[0]], _ = decoder.raw_decode(part[start.end() :])
    return found


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) of the event files."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = tensorboard_proto.Event.FromString(data[place + 12 : place + 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            place += 12 + length + 4
    return found


def words(log: Path, store: Path, *more: str) -> list[str]:
    small = ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--dram", "8MiB"]
    return ["train", str(log), "--store", str(store), *small, "--progress-seconds", "0", *more]


def test_the_page_of_a_run_holds_its_figures(tmp_path: Path, log: Path) -> None:
    folder, board = tmp_path / "a <b> & 'c'", tmp_path / "board"
    out = tmp_path / "out.json"
    more = ["--valid", str(log), "--eval-every", "5", "--test", str(log), "--json", str(out)]
    more += ["--report", str(folder), "--tensorboard", str(board)]
    assert main(words(log, tmp_path / "store", *more)) == 0
    figures = json.loads(out.read_text())
    page = (folder / "report.html").read_text()
    head, body = page.split("<body>")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)", head.split("<script>")[0] + body)
    assert "a &lt;b&gt; &amp;" in body and "<b>" not in body
    traces = traces_of(page)
    auc = {trace["name"].split(", ")[-1]: trace for trace in traces["AUC"]}
    assert auc["--valid"]["x"] == [500, 1000, 1500]
    assert auc["--valid"]["y"] == [entry["auc"] for entry in figures["evaluations"]]
    assert auc["--test"]["y"] == [figures["test_auc"]]
    assert auc["trained on next"]["x"][-1] == 1500
    busy = [stage["busy_seconds"] for stage in figures["stages"].values()]
    assert traces["Time of the stages"][0]["y"] == busy
    shown = {trace["name"].split(", ")[-1]: trace for trace in traces["Scores"]}
    assert sum(shown["click"]["y"]) + sum(shown["no click"]["y"]) == 1500
    exact = traces["Calibration"][0]
    bins = figures["scores"]["reliability"]
    assert exact["x"] == [one["predicted"] for one in bins]
    assert "to repeat it: <code>hps" in body and "<td>C26</td>" in body
    # The event files have the same numbers, as float32.
    scalars = scalars_of(board)
    assert [step for step, _ in scalars["valid/auc"]] == [500, 1000, 1500]
    assert [value for _, value in scalars["valid/auc"]] == pytest.approx(auc["--valid"]["y"])
    assert scalars["train/logloss"][-1][0] == 1500


def test_runs_stand_side_by_side(tmp_path: Path, log: Path, capsys: Any) -> None:
    for name, rate in (("x", "0.05"), ("y", "0.2")):
        more = ["--valid", str(log), "--lr", rate, "--json", str(tmp_path / f"{name}.json")]
        assert main(words(log, tmp_path / f"store-{name}", *more)) == 0
    out = tmp_path / "both.html"
    runs = [str(tmp_path / "x.json"), str(tmp_path / "y.json"), str(tmp_path / "x.json")]
    assert main(["report", *runs, "--out", str(out)]) == 0
    assert "3 run(s)" in capsys.readouterr().out
    names = [trace["name"] for trace in traces_of(out.read_text())["AUC"]]
    assert names == ["x (1), --valid", "y, --valid", "x (3), --valid"]
    aucs = [trace["y"] for trace in traces_of(out.read_text())["AUC"]]
    assert aucs[0] == aucs[2] != aucs[1]


def test_a_run_that_goes_on_adds_to_its_history_and_one_that_is_refused_takes_nothing(
    tmp_path: Path, log: Path
) -> None:
    changes = {"report": tmp_path / "r", "checkpoint_every": 4, "valid": [log], "eval_every": 6}
    train(options(log, tmp_path / "store", limit=640, **changes))
    before = read_run(tmp_path / "r").history
    assert [line["examples"] for line in before if line["kind"] == "valid"] == [384, 640]
    with pytest.raises(hps.ConfigError, match="holds a trained model"):
        train(options(log, tmp_path / "store", **changes))
    assert read_run(tmp_path / "r").history == before
    with (tmp_path / "r" / "run.jsonl").open("a") as file:  # of steps that a kill has undone
        file.write('{"kind": "train", "examples": 900, "auc": 0.1, "logloss": 9.0}\n{"kind": "tr')
        file.write("\n")
    train(options(log, tmp_path / "store", resume=True, **changes))
    after = read_run(tmp_path / "r")
    assert after.history[: len(before)] == before
    assert 900 not in [line["examples"] for line in after.history if line["kind"] == "train"]
    assert [line["examples"] for line in after.of_kind("valid")][:3] == [384, 640, 768]
    train(options(log, tmp_path / "new", limit=640, **changes))  # a new run in the same folder
    assert len(read_run(tmp_path / "r").of_kind("valid")) == 2


def test_a_history_changes_no_bit(tmp_path: Path, log: Path) -> None:
    plain = train(options(log, tmp_path / "a"))
    told = train(options(log, tmp_path / "b", report=tmp_path / "r", tensorboard=tmp_path / "t"))
    assert plain["digests"] == told["digests"] and plain["loss_digest"] == told["loss_digest"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("missing.json", None, "there is no such file"),
        ("bad.json", "{", "it is not JSON"),
        ("other.json", "[1]", "not what 'hps train --json' writes"),
        ("other.json", '{"examples": 3}', "not what 'hps train --json' writes"),
        ("binary.json", "\udcff", "it is not text"),
        ("folder/other.txt", "x", "neither run.json nor run.jsonl"),
        ("folder/run.jsonl", '{"no": 1}\n', "line 1: it is not what 'hps train --report' writes"),
        ("folder/run.json", "[]", "not what 'hps train --json' writes"),
    ],
)
def test_what_is_no_run_is_refused_by_name(
    tmp_path: Path, name: str, text: str | None, reason: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(hps.HpsError, match=reason) as raised:
        read_run(path.parent if path.parent != tmp_path else path)
    assert str(tmp_path) in str(raised.value)


def test_a_run_without_figures_or_history_still_has_a_page(tmp_path: Path) -> None:
    with open_history(tmp_path / "r", None, goes_on=False) as history:
        history.add("begin", 0, {})
        history.add("train", 100, {"logloss": 0.5, "auc": float("nan"), "hit_rate/dram_cache": 1})
    run = read_run(tmp_path / "r")
    assert "auc" not in run.history[1]  # not a number: JSON has none
    write_page([run, Run("empty", {}, [])], tmp_path / "page.html")
    traces = traces_of((tmp_path / "page.html").read_text())
    assert set(traces) == {"Logloss", "Hit rates of the tiers"}
    assert traces["Logloss"][0]["mode"] == "markers", "of one point no line is seen"


def test_folders_that_cannot_be_are_refused(tmp_path: Path, log: Path) -> None:
    (tmp_path / "file").write_text("")
    for changes in ({"report": tmp_path / "file"}, {"tensorboard": tmp_path / "file" / "x"}):
        with pytest.raises(hps.StoreError, match="file"):
            train(options(log, tmp_path / "store", **changes))
    with pytest.raises(hps.StoreError, match="cannot write"):
        JsonLines(tmp_path / "no" / "run.jsonl", goes_on=False)


def test_scores_are_spread_into_bins() -> None:
    metrics = BinaryMetrics(max_distinct=64)
    logits = [idx / 100 - 5 for idx in range(1000)]
    metrics.update(logits, [idx % 2 for idx in range(1000)])
    scores = metrics.scores(num_bins=10)
    assert sum(one["examples"] for one in scores["reliability"]) == 1000
    assert sum(one["clicks"] for one in scores["reliability"]) == 500
    predicted = [one["predicted"] for one in scores["reliability"]]
    assert predicted == sorted(predicted) and 0 < predicted[0] < 0.05 and 0.95 < predicted[-1] < 1
    assert [sum(pair) for pair in zip(*scores["histogram"], strict=True)] == [500, 500]
    exact = BinaryMetrics()
    exact.update([0.0, 2.0, -2.0], [1, 1, 0])
    assert [one["predicted"] for one in exact.scores()["reliability"]] == pytest.approx(
        [0.11920292, 0.5, 0.88079708]
    )
    assert BinaryMetrics().scores(4) == {"reliability": [], "histogram": [[0, 0]] * 4}


def test_a_folder_is_free_again_after_a_sink_that_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, folder: Path) -> None:
        raise hps.ConfigError("no tensorboardX")

    folders = {"report": tmp_path / "r", "tensorboard": tmp_path / "t", "goes_on": False}
    with monkeypatch.context() as patch:
        patch.setattr(TensorBoard, "__init__", refuse)
        with pytest.raises(hps.ConfigError) as kept, open_history(**folders):
            pass
    assert kept.value.__traceback__ is not None  # what is kept holds the sinks, too
    with open_history(**folders) as history:
        assert not history.is_empty


def test_a_full_disk_costs_no_training(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plain = train(options(log, tmp_path / "a"))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    written: list[str] = []

    def fail(self: Any, *_: Any) -> None:
        written.append(self.name)
        if written.count(self.name) > 1:
            raise StoreError(full.errno, f"cannot write {self.name}: {full.strerror}")

    monkeypatch.setattr(JsonLines, "add", fail)
    monkeypatch.setattr(TensorBoard, "add", fail)
    changes = {"report": tmp_path / "r", "tensorboard": tmp_path / "t", "valid": [log]}
    told = train(options(log, tmp_path / "b", **changes), Progress(0.0))
    assert told["digests"] == plain["digests"] and told["loss_digest"] == plain["loss_digest"]
    said = capsys.readouterr().err
    for name in ("--report", "--tensorboard"):
        assert written.count(name) == 2  # the beginning, and what failed
        assert said.count(f"the training goes on without {name}") == 1


def test_a_line_that_a_full_disk_cuts_is_told_by_name_and_not_tried_again(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "run.jsonl", goes_on=False)
    lines.add("train", 1, {"auc": 0.5})
    lines.close()
    lines._file = io.FileIO("/dev/full", "ab")
    with pytest.raises(StoreError, match=r"cannot write .*run\.jsonl: No space left on device"):
        lines.add("train", 2, {"auc": 0.5})
    lines.close()
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text"), [("run.jsonl", '{"hello": 1}\n'), ("notes.txt", "x"), ("a.html", "")]
)
def test_a_folder_with_files_of_others_is_refused(
    tmp_path: Path, log: Path, name: str, text: str
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / name).write_text(text)
    with pytest.raises(hps.ConfigError, match=name):
        train(options(log, tmp_path / "store", report=tmp_path / "r"))
    assert (tmp_path / "r" / name).read_text() == text


def test_two_runs_at_once_do_not_share_a_folder(tmp_path: Path, log: Path) -> None:
    folder, store = tmp_path / "r", tmp_path / "store"
    with open_history(folder, None, goes_on=False) as history:
        history.add("begin", 0, {})
        before = (folder / "run.jsonl").read_bytes()
        with pytest.raises(hps.ConfigError, match="another run is writing there"):
            train(options(log, store, report=folder))
        assert (folder / "run.jsonl").read_bytes() == before and not store.exists()
    train(options(log, store, report=folder))  # one after the other
    assert read_run(folder).history[0]["kind"] == "begin"


def test_a_run_without_auc_or_with_nothing_left_to_train_has_its_page(
    tmp_path: Path, log: Path
) -> None:
    lines = [f"1{line[1:]}" for line in log.read_text().splitlines()]
    (tmp_path / "clicks.txt").write_text("\n".join(lines) + "\n")
    more = ["--valid", str(tmp_path / "clicks.txt"), "--report", str(tmp_path / "r")]
    assert main(words(log, tmp_path / "store", *more)) == 0
    page = (tmp_path / "r" / "report.html").read_text().split("<body>")[1]
    figures = (tmp_path / "r" / "run.json").read_text()
    assert re.search(r"best validation</td><td class=.n.>logloss 0\.\d+ after 1,500", page)
    assert main(words(log, tmp_path / "store", *more, "--resume")) == 0
    assert (tmp_path / "r" / "run.json").read_text() == figures
