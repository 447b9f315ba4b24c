"""What the command line tells of a run that was validated: of which model, and in a line.

Above it: pytest. Below it: hps/cli/train.py, hps/cli/models.py.
"""

import json
from pathlib import Path

import pytest

from hps.cli.main import main
from tests.logs import write_criteo

NOT_OF_THE_BEST = "test figures are of the newest model, not of the one tagged 'best'"
SMALL = ["--dim", "2", "--hidden", "8", "--batch-size", "64", "--dram", "8MiB", "--depth", "0"]


def trained(folder: Path, *words: str) -> dict[str, dict[str, int]]:
    log, other = folder / "log", folder / "other"
    if not log.exists():
        write_criteo(log, 300)
        write_criteo(other, 300, seed=1)
    data = [str(log), "--valid", str(other), "--lr", "0.5", "--dense-lr", "0.05", *SMALL]
    out = folder / "out"
    assert main(["train", *data, "--store", str(folder / "ctr"), "--json", str(out), *words]) == 0
    figures: dict[str, dict[str, int]] = json.loads(out.read_text())
    return figures


def test_a_test_of_a_model_past_the_best_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = ["--test", str(tmp_path / "other"), "--best-by", "logloss"]
    figures = trained(tmp_path, "--epochs", "5", *test)
    assert figures["best"]["batches"] < figures["total_batches"], "the log teaches nothing"
    assert NOT_OF_THE_BEST in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--epochs", "1", "--test"], ["--epochs", "5"]])
def test_one_of_the_best_model_or_of_none_does_not(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    test = [str(tmp_path / "other")] if words[-1] == "--test" else []
    trained(tmp_path, *words, *test)
    assert NOT_OF_THE_BEST not in capsys.readouterr().out


def test_the_list_of_models_has_the_last_evaluation_in_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "--epochs", "1")
    capsys.readouterr()
    assert main(["models", str(tmp_path / "ctr"), "--json", str(tmp_path / "models")]) == 0
    (best, final) = json.loads((tmp_path / "models").read_text())
    lines = capsys.readouterr().out.splitlines()
    for model, line in zip((best, final), lines[1:], strict=True):
        told = model["evaluation"]
        short = f"auc {told['auc']:.5f}, logloss {told['logloss']:.5f} after 300  "
        assert short in line and "normalized_entropy" not in line
        assert len(line) < 140
