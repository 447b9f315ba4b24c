"""hps train --admit-...: keys come by rows as the rule says, the model keeps it, a resumed run may
change its number.

Above it: pytest. Below it: the days of test_training_periods.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError
from hps.train import train
from tests.train.test_training_periods import days, options_of, told

__all__ = ["days"]  # a fixture


def rule_of(store: Path) -> hps.Admission | None:
    with hps.open(store) as reader:
        (table,) = reader.tables.values()
        return table.admission


def test_few_keys_come_by_rows_and_a_resumed_run_keeps_the_rule(
    days: list[Path], tmp_path: Path
) -> None:
    every = train(options_of(days[:2], tmp_path / "every", statistics=True))
    store = tmp_path / "store"
    train(options_of(days[:1], store, admit_count=4))
    again: dict[str, Any] = {"resume": True, "new_data": True}
    figures = train(options_of(days[1:2], store, **again))
    assert rule_of(store) == hps.Admission(count=4)
    assert 0 < figures["rows"] < every["rows"]
    with hps.open(tmp_path / "every") as all_rows, hps.open(store) as some:
        (table,) = some.tables
        shows = {}
        for keys, _, show, _, _ in all_rows.items(table, statistics=True):
            shows |= dict(zip(keys.tolist(), show.tolist(), strict=True))
        kept = {key for keys, _ in some.items(table) for key in keys.tolist()}
    assert kept == {key for key, show in shows.items() if show >= 4}
    train(options_of(days[2:3], store, **again, admit_count=2))
    assert rule_of(store) == hps.Admission(count=2)


def test_the_flags_say_the_same(
    days: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--format", "slots", "--model", "lr", "--batch-size", "16", "--epochs", "1"]
    out, store = tmp_path / "figures.json", tmp_path / "store"
    flags += ["--admit-probability", "0.5", "--json", str(out)]
    assert main(["train", str(days[0]), "--store", str(store), *flags]) == 0
    assert rule_of(store) == hps.Admission(probability=0.5)
    rows = json.loads(out.read_text())["rows"]
    capsys.readouterr()
    assert main(["stats", str(store)]) == 0
    assert rows > 0 and "keys come by rows by probability 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "rule",
    [
        {"admit_count": 3, "expire_unseen": 1},
        {"admit_probability": 0.3},
        {"two_level": 0.4, "admit_count": 2, "expire_unseen": 1},
    ],
    ids=lambda rule: "-".join(rule),
)
def test_a_gpu_cache_admits_the_same(
    days: list[Path], tmp_path: Path, rule: dict[str, Any]
) -> None:
    given = {"advance_every": "file", **rule}
    expected = told(train(options_of(days, tmp_path / "dram", depth=0, **given)))
    for place, (gpu, depth) in enumerate((("8MiB", 2), (60_000, 0), (60_000, 3))):
        more = {"gpu": gpu, "device": "cpu", "dram": 60_000, "depth": depth}
        found = train(options_of(days, tmp_path / str(place), **given, **more))
        assert told(found) == expected
    assert expected["rows"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"admit_count": 2, "admit_probability": 0.5}, "are two rules; give one"),
        ({"admit_count": 2, "statistics": False}, "--no-statistics and --admit-count"),
        ({"admit_count": 0}, "admit_count"),
        ({"admit_probability": 1.5}, "admit_probability"),
    ],
)
def test_what_is_no_rule_is_refused(
    days: list[Path], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(days, tmp_path / "store", **given)
    assert not (tmp_path / "store").exists()
