"""What Grafana and Prometheus are given asks for figures that hps has; the alerts do as they say.

Above it: pytest. Below it: deploy/grafana/, deploy/prometheus/; promtool, where HPS_PROMTOOL, the
PATH or build/promtool has it (tools/promtool.sh).
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

import hps
from hps.dashboard import figures, sources
from hps.service.server.admission import Admissions
from hps.service.server.auth import anyone
from hps.service.server.call_counts import CallCounts
from hps.service.server.limits import ServerLimits
from hps.service.server.metrics import ServerCollector
from hps.service.shard.shard import Shard
from hps.serving.figures import ScoreFigures
from hps.serving.metrics import ScorerCollector
from hps.serving.outcomes import OutcomeFigures
from hps.train.run_metrics import _HISTORY, RunMetrics, RunNote

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "deploy" / "grafana" / "hps.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PLAYED = ROOT / "tests" / "deploy" / "alerts_test.yaml"
NAME = re.compile(r"\bhps_[a-z0-9_]+\b")
LABELS = {"job", "instance", "__name__"}  # of Prometheus itself


def samples(families: Iterable[Metric]) -> Iterator[tuple[str, set[str]]]:
    """Name and labels of each sample; of a family without any its name, as Prometheus has it."""
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    for family in families:
        for ending in endings.get(family.type, [""]):
            yield family.name + ending, set(getattr(family, "_labelnames", ()))
        for sample in family.samples:
            yield sample.name, set(sample.labels)


def of_a_server(folder: Path) -> Iterator[Metric]:
    config = hps.Config(path=folder, tables=[hps.TableConfig(name="ads", dim=4, statistics=True)])
    shard = Shard(config)
    try:
        counts = CallCounts()
        counts.count("Pull", "OK", 0.1, 8, 8)
        collector = ServerCollector(counts, Admissions(ServerLimits(), None), shard)
        shard.checkpoint("day-1")
        yield from collector.collect(anyone("test"))
    finally:
        shard.close(checkpoint=False)


def of_a_model_server() -> Iterator[Metric]:
    scores = ScoreFigures()
    model = SimpleNamespace(
        server=SimpleNamespace(stats=dict),
        version="3",
        has_versions=True,
        following=lambda: {"is_following": True, "newest": 3, "created": 1.0},
    )
    scorer: Any = SimpleNamespace(
        figures=scores,
        batcher=SimpleNamespace(num_waiting=0),
        name="ads",
        model=model,
        outcomes=OutcomeFigures(),
    )
    admissions = Admissions(ServerLimits(), None)
    yield from ScorerCollector(CallCounts(), admissions, scorer).collect(anyone("test"))


def of_a_training(folder: Path) -> Iterator[Metric]:
    options: Any = SimpleNamespace(
        metrics="127.0.0.1:0",
        metrics_tokens=None,
        metrics_cert=None,
        metrics_key=None,
        metrics_insecure=False,
        store=folder,
    )
    stage = {"busy_seconds": 1.0, "wait_input_seconds": 1.0, "wait_output_seconds": 1.0}
    with RunMetrics(options, SimpleNamespace(rank=0, size=1)) as metrics:  # type: ignore[arg-type]
        metrics.add("train", 1, {name.partition("/")[2]: 1.0 for name in _HISTORY})
        metrics.add("valid", 1, {name.partition("/")[2]: 1.0 for name in _HISTORY})
        metrics._note = RunNote(1.0, 1, 1, {"fetch": stage}, 0.0, {}, 0, 1.0, 1, 1.0)
        yield from metrics.collect(anyone("test"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels of every metric that hps exports, by the name that Prometheus knows."""
    folder = tmp_path_factory.mktemp("store")
    found: dict[str, set[str]] = {}
    for families in (of_a_server(folder), of_a_model_server(), of_a_training(folder)):
        for name, labels in samples(families):
            found[name] = found.get(name, set()) | labels
    return found


def expressions() -> list[str]:
    board = json.loads(BOARD.read_text())
    panels = [one["expr"] for panel in board["panels"] for one in panel.get("targets", ())]
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    assert len(panels) > 20 and len(rules) > 10
    return [*panels, *rules]


def test_every_figure_that_is_asked_for_is_one_of_hps(exported: dict[str, set[str]]) -> None:
    asked = {name for text in expressions() for name in NAME.findall(text)}
    asked |= set(NAME.findall(PLAYED.read_text()))
    for module in (figures, sources):
        assert module.__file__ is not None
        asked |= set(NAME.findall(Path(module.__file__).read_text()))
    asked = {f"{name}_bucket" if f"{name}_bucket" in exported else name for name in asked}
    assert len(asked) > 40
    assert sorted(asked - exported.keys()) == []


def test_every_label_that_is_asked_for_is_one_of_its_figure(
    exported: dict[str, set[str]],
) -> None:
    for text in expressions():
        for name, inside in re.findall(r"\b(hps_[a-z0-9_]+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)\s*[=!]", inside)) - LABELS
            assert labels <= exported[name] | {"le"}, (name, labels)
        for names in re.findall(r"by \(([^)]*)\)", text):
            asked = {one.strip() for one in names.split(",")} - LABELS - {"le"}
            owners = [exported[name] for name in NAME.findall(text)]
            assert any(asked <= owned for owned in owners), text


def test_the_metrics_that_the_page_lists_are_those_that_there_are(
    exported: dict[str, set[str]],
) -> None:
    listed = (ROOT / "docs" / "dashboard.md").read_text().partition("## Metrics of a training")[2]
    told = {name for name in NAME.findall(listed.partition("\n## ")[0])}
    own = {name for name in exported if name.startswith(("hps_train_", "hps_valid_", "hps_stage_"))}
    assert told >= own and told <= exported.keys()


def find_promtool() -> str:
    places = (os.environ.get("HPS_PROMTOOL", "promtool"), ROOT / "build/promtool/usr/bin/promtool")
    found = next((path for one in places if (path := shutil.which(str(one)))), None)
    if found is None:
        pytest.skip("no promtool: tools/promtool.sh, or apt-get install prometheus")
    return found


def test_the_rules_are_rules_to_prometheus(tmp_path: Path) -> None:
    tool = find_promtool()
    words = [tool, "check", "rules", str(RULES)]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text(RULES.read_text().replace("hps_failed == 1", "hps_failed = 1"))
    assert subprocess.run([tool, "check", "rules", str(bad)], capture_output=True).returncode != 0


def test_each_alert_is_raised_when_it_should_be_and_not_before(tmp_path: Path) -> None:
    tool = find_promtool()
    for path in (RULES, PLAYED):
        shutil.copy(path, tmp_path / path.name)
    words = [tool, "test", "rules", PLAYED.name]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    rules = tmp_path / RULES.name
    rules.write_text(RULES.read_text().replace("hps_disk_bytes < 0.1", "hps_disk_bytes < 0.05"))
    assert subprocess.run(words, cwd=tmp_path, capture_output=True).returncode != 0


def test_every_alert_is_played() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    played: dict[str, set[bool]] = {}
    for test in yaml.safe_load(PLAYED.read_text())["tests"]:
        for one in test["alert_rule_test"]:
            played.setdefault(one["alertname"], set()).add(bool(one["exp_alerts"]))
    assert played == {name: {False, True} for name in names}


def test_the_board_is_one_that_grafana_takes() -> None:
    board = json.loads(BOARD.read_text())
    assert board["uid"] == "hps" and board["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (column, row)
        for place in places
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(column for column, _ in cells) < 24
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$(\w+|\{\w+\})", target["expr"]))
            assert used <= {"job", "instance", "__rate_interval"}, target["expr"]
