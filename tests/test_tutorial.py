"""docs/tutorial.md holds: its blocks run in order, print what it shows, and bear out what it says.

Above it: pytest. Below it: docs/tutorial.md, examples/make_shop_log.py, the command `hps`.

The page is run once, on days of fewer rows; each test looks at what was left behind.
"""

import io
import json
import os
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import hps
from hps.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
ROWS = 10_000
# What the page says, and what is said instead for days of ROWS rows.
SMALLER = {"--rows 100000": f"--rows {ROWS}", "--eval-every 100": "--eval-every 20"}
SMALLER |= {"eval-every = 100": "eval-every = 20"}
# Words by which a command of the page is found.
PLAIN, GOOD = ("hps train", "--store plain"), ("hps train", "--epochs", "--store good")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Tour:
    """What running the page has left: the folder, and each command with what it printed."""

    folder: Path
    said: list[tuple[str, str]]
    shown: list[tuple[str, str]]  # a block of output on the page, and what was printed there

    def output_of(self, *words: str) -> str:
        """Of the one command that has all the words."""
        found = [out for command, out in self.said if all(word in command for word in words)]
        assert len(found) == 1, (words, [command for command, _ in self.said])
        return found[0]

    def figure(self, name: str, *words: str) -> float:
        """A line of the table at a run's end, of the one command that has all the words."""
        found = re.findall(rf"^{name} +([\d.,]+)$", self.output_of(*words), re.MULTILINE)
        assert len(found) == 1, (name, words, found)
        return float(found[0].replace(",", ""))

    def best_on_validation(self, *words: str) -> float:
        """The AUC of the line of the best validation in the table at a run's end."""
        found = re.findall(r"^ +[\d,]+ +([\d.]+) +[\d.]+  best$", self.output_of(*words), re.M)
        assert len(found) == 1, (words, found)
        return float(found[0])

    def best_possible(self, day: int) -> float:
        """The planted model's own AUC of a day."""
        lines = self.output_of("make_shop_log.py").splitlines()
        return float(lines[day].rpartition(" ")[2])


def run_command(command: str, out: io.StringIO) -> None:
    """One command of the page, as a shell in the checkout's environment would run it."""
    words = shlex.split(command, comments=True)
    if words[0] == "cd":
        os.chdir(words[1])
    elif words[0] == "hps":
        assert main(words[1:]) == 0, (command, out.getvalue())
    elif words[0] == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", words[1:])
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    else:
        assert words[0] in ("head", "cat"), command
        out.write(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def run_block(kind: str, text: str, tour: Tour) -> str:
    """Runs a block, or writes it under the name that its first line says; what it printed."""
    if kind == "toml":
        name, _, _ = text.partition("\n")
        Path(name.removeprefix("# ")).write_text(text)
        return ""
    commands = [text]
    if kind == "bash":
        commands = text.replace("\\\n", " ").splitlines()
    everything = ""
    for command in commands:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            if kind == "python":
                exec(compile(command, PAGE.name, "exec"), {"__name__": "tutorial"})
            else:
                run_command(command, out)
        tour.said.append((command, out.getvalue()))
        everything += out.getvalue()
    return everything


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    folder = tmp_path_factory.mktemp("tutorial")
    tour = Tour(folder / "shop", [], [])
    text = PAGE.read_text()
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = ""
        for kind, block in BLOCK.findall(text):
            if kind == "text":
                tour.shown.append((block, printed))
            else:
                printed = run_block(kind, block, tour)
        yield tour
    torch.set_num_threads(threads)


def beginning_of(line: str) -> str:
    """A line up to its first number, which depends on the size of the log."""
    return " ".join(re.split(r"[-+]?\d", line)[0].split())


def test_each_line_that_the_page_shows_is_one_that_its_commands_print(tour: Tour) -> None:
    assert len(tour.shown) == 10
    for block, printed in tour.shown:
        known = [" ".join(line.split()) for line in printed.splitlines()]
        for line in block.splitlines():
            begin = beginning_of(line.removesuffix("..."))
            if begin:
                assert any(one.startswith(begin) for one in known), (line, printed)


def test_a_first_run_is_better_than_can_be_and_its_rows_are_impressions(tour: Tour) -> None:
    assert tour.best_on_validation("--store first") > tour.best_possible(3) + 0.1
    rows = tour.figure("rows", "--store first")
    assert rows > 3 * ROWS > 10 * tour.figure("rows", *PLAIN)


def test_the_survey_shows_what_is_wrong_with_the_two_columns(tour: Tour) -> None:
    text = tour.output_of("cat features.toml")
    about = dict(re.findall(r"^\[columns\.(\w+)\]\n# (.*)$", text, re.MULTILINE))
    # The survey looks at all days here, of which there are fewer lines than it would take.
    assert about["impression"].startswith(f"{3 * ROWS:,} distinct keys")
    assert float(about["seconds_viewed"].rpartition(" ")[2]) > 0.7
    assert abs(float(about["price"].rpartition(" ")[2])) < 0.4
    assert 'kind = "dense"' in text.partition("[columns.price]")[2].partition("[")[0]


def test_the_features_file_makes_a_better_model(tour: Tour) -> None:
    plain, good = tour.best_on_validation(*PLAIN), tour.best_on_validation(*GOOD)
    best = tour.best_possible(3)
    assert plain + 0.65 * (best - plain) < good < best
    assert tour.figure("rows", *GOOD) > tour.figure("rows", *PLAIN)


def test_patience_ends_the_run_and_the_best_model_is_no_longer_the_newest(tour: Tour) -> None:
    out = tour.output_of(*GOOD)
    assert "ended early: 3 validation(s) in a row" in out
    best, final = (
        float(re.findall(rf"^{name} .*?\bauc ([\d.]+)", tour.output_of("models good"), re.M)[0])
        for name in ("best", r"final \*")
    )
    assert final < best


def test_the_page_of_two_runs_has_both(tour: Tour) -> None:
    for page, runs in (("both", ("plain", "good")), ("models", ("lr", "fm", "good"))):
        text = (tour.folder / f"{page}.html").read_text()
        assert [run for run in runs if run not in text] == []
    assert (tour.folder / "runs" / "good" / "report.html").stat().st_size > 10_000


def test_pairs_of_features_are_worth_something(tour: Tour) -> None:
    figures = {}
    for name in ("lr", "fm"):
        figures[name] = json.loads((tour.folder / f"{name}.json").read_text())["best"]["auc"]
    plain = tour.best_on_validation(*PLAIN)
    assert plain < figures["lr"] < figures["fm"] < tour.best_possible(3)


def test_the_test_day_says_the_same_of_the_two_models(tour: Tour) -> None:
    good = tour.figure("auc", "evaluate", "--tag best")
    assert tour.figure("auc", "evaluate", "--store plain") + 0.03 < good < tour.best_possible(4)
    assert 0.6 < tour.figure("gauc", "evaluate", "--tag best") < 0.95


def test_scores_are_one_a_line_and_the_same_in_both_files(tour: Tour) -> None:
    csv = pyarrow.csv.read_csv(tour.folder / "scores.csv")["probability"].to_numpy()
    parquet = pyarrow.parquet.read_table(tour.folder / "scores.parquet")["probability"]
    assert len(csv) == ROWS
    assert csv.astype("float32").tolist() == parquet.to_numpy().tolist()


def test_a_raw_row_scores_as_its_line_of_the_log_does(tour: Tour) -> None:
    day: dict[str, list[Any]] = pyarrow.csv.read_csv(tour.folder / "day-4.csv").to_pydict()
    some = {name: values[:50] for name, values in day.items() if name != "clicked"}
    some["query"] = [value or None for value in some["query"]]
    csv = pyarrow.csv.read_csv(tour.folder / "scores.csv")["probability"].to_pylist()
    with hps.Model.load(tour.folder / "good", tag="best") as model:
        assert model.predict(some).tolist() == pytest.approx(csv[:50], rel=1e-5)
    first, further_down, mean = re.findall(r"0\.\d{4}", tour.output_of("hps.Model.load"))
    assert float(first) > float(further_down) > 0
    assert float(mean) == pytest.approx(sum(csv) / ROWS, abs=1e-4)


def test_the_store_has_rows_of_what_was_trained_on_alone(tour: Tour) -> None:
    out = tour.output_of("lookup")
    assert out.count("absent: no row is stored") == 1
    assert out.partition("user=1:")[2].count("absent") == 1
    assert out.count("embedding: ") == 2


def test_the_next_day_makes_the_model_better(tour: Tour) -> None:
    before = tour.figure("auc", "evaluate", "--store good --tag best")
    after = tour.figure("auc", "evaluate", "--store good --tag final")
    assert before < after < tour.best_possible(4)
    assert tour.figure("test auc", "--progressive") == after
    scored = re.findall(r"^day-3\.csv +[\d,]+ +([\d.]+)", tour.output_of("--progressive"), re.M)
    # Of each example before it was trained on: no better than what can be.
    assert tour.best_on_validation(*PLAIN) < float(scored[0]) < tour.best_possible(3)
