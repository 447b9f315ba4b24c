"""docs/tutorials/train_from_csv.md and improve_a_model.md hold: they run, print what they show, and
bear out what they say.

Above it: pytest. Below it: reader.py, the two pages, which one reader reads in turn.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow.csv
import pytest

import hps
from tests.tutorials.reader import Reading, read

ROWS = 10_000  # of a day
# Words by which a command of the page is found.
FIRST, GOOD = ("hps train", "--store first"), ("hps train", "--store good", "--epochs")


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reading]:
    with read(tmp_path_factory.mktemp("csv"), "train_from_csv", "improve_a_model") as done:
        yield done


def best_possible(reading: Reading, day: int) -> float:
    """The planted model's own AUC of a day."""
    return float(reading.output_of("make_log.py").splitlines()[day].rpartition(" ")[2])


def test_what_the_pages_show_is_printed(reading: Reading) -> None:
    reading.check()


def test_the_survey_shows_what_is_wrong_with_the_two_columns(reading: Reading) -> None:
    text = (reading.folder / "columns.toml").read_text()
    about = dict(re.findall(r"^\[columns\.(\w+)\]\n# (.*)$", text, re.MULTILINE))
    assert about["impression"].startswith(f"{3 * ROWS:,} distinct keys")
    assert float(about["seconds_viewed"].rpartition(" ")[2]) > 0.7


def test_more_said_about_the_columns_makes_a_better_model(reading: Reading) -> None:
    first, good = reading.best_on_validation(*FIRST), reading.best_on_validation(*GOOD)
    best = best_possible(reading, 3)
    assert first + 0.5 * (best - first) < good < best
    tested = [reading.figure("auc", "evaluate", store) for store in ("first", "good")]
    assert tested[0] + 0.02 < tested[1] < best_possible(reading, 4)


def test_patience_ends_the_run_and_the_best_model_is_no_longer_the_newest(reading: Reading) -> None:
    assert "ended early: 3 validation(s) in a row" in reading.output_of(*GOOD)
    best, final = (
        float(re.findall(rf"^{name} .*?\bauc ([\d.]+)", reading.output_of("models good"), re.M)[0])
        for name in ("best", r"final \*")
    )
    assert final < best


def test_the_page_of_runs_has_all_three(reading: Reading) -> None:
    text = (reading.folder / "models.html").read_text()
    assert [run for run in ("lr", "fm", "good-run") if run not in text] == []
    assert (reading.folder / "good-run" / "report.html").stat().st_size > 10_000
    aucs = [json.loads((reading.folder / f"{name}.json").read_text())["best"]["auc"]
            for name in ("lr", "fm")]  # fmt: skip
    assert reading.best_on_validation(*FIRST) < min(aucs) and max(aucs) < best_possible(reading, 3)


def test_a_raw_row_scores_as_its_line_of_the_log_does(reading: Reading) -> None:
    day: dict[str, list[Any]] = pyarrow.csv.read_csv(reading.folder / "day-4.csv").to_pydict()
    some = {name: values[:50] for name, values in day.items() if name != "clicked"}
    some["query"] = [value or None for value in some["query"]]
    scores = pyarrow.csv.read_csv(reading.folder / "scores.csv")["probability"].to_pylist()
    assert len(scores) == ROWS
    with hps.Model.load(reading.folder / "first") as model:
        assert model.predict(some).tolist() == pytest.approx(scores[:50], rel=1e-5)


def test_the_next_day_makes_the_model_better(reading: Reading) -> None:
    before = reading.figure("auc", "evaluate", "--store good --tag best")
    assert before < reading.figure("test auc", "--progressive") < best_possible(reading, 4)
