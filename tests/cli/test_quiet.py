"""`--quiet`: people are told nothing but errors and warnings, programs the same as ever; and what
`hps train` shows on a terminal.

Above it: pytest. Below it: hps/cli/output.py, hps/cli/flags.py, hps/train/progress.py.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hps.cli.main import main
from tests.logs import write_criteo

MODEL = ["--model", "lr", "--batch-size", "256", "--dram", "4MiB"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_criteo(tmp_path / "log.tsv", 2000)
    return tmp_path / "log.tsv"


def test_a_quiet_training_says_nothing_and_writes_its_figures(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "log.tsv", "--store", "a", *MODEL, "--progress-seconds", "0.001"]
    assert main([*words, "--json", "told.json"]) == 0
    told = capsys.readouterr()
    assert "examples" in told.out and "loss" in told.err
    assert main([*words[:2], "--store", "b", *words[4:], "--quiet", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    figures = json.loads(said.out)
    assert figures["digests"] == json.loads(Path("told.json").read_text())["digests"]


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "made.tsv", "--examples", "500", "--keys", "50"],
        ["evaluate", "log.tsv", "--store", "a"],
        ["predict", "log.tsv", "--store", "a", "--out", "scores.npy"],
        ["publish", "a", "published"],
        ["clone", "a", "copy", "--checkpoint", "final"],
        ["export", "a", "rows.parquet", "--table", "features"],
        ["verify", "a"],
        ["compact", "a"],
    ],
    ids=lambda words: words[0],
)
def test_quiet_commands_do_their_work_in_silence(
    words: list[str], log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "log.tsv", "--store", "a", *MODEL, "--quiet"]) == 0
    before = set(Path().rglob("*"))
    assert main([*words, "--quiet"]) == 0
    said = capfd.readouterr()
    assert said.out == "" and said.err == ""
    assert words[0] in ("evaluate", "verify", "compact") or set(Path().rglob("*")) - before


def test_a_quiet_command_still_says_what_is_wrong(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "log.tsv", "--store", "no-store", "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("hps: error: ")


def test_training_on_a_terminal_has_a_bar_and_on_a_pipe_plain_lines(log: Path) -> None:
    words = [sys.executable, "-m", "hps", "train", "log.tsv", *MODEL, "--progress-seconds", "0.001"]
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm"}
    piped = subprocess.run(
        [*words, "--store", "a"], capture_output=True, text=True, env=environment
    )
    assert piped.returncode == 0 and "\x1b" not in piped.stdout + piped.stderr
    lines = [line for line in piped.stderr.splitlines() if " examples  " in line]
    assert len(lines) > 2 and all("  loss " in line and "  hits: " in line for line in lines)

    leader, follower = pty.openpty()
    shown = subprocess.Popen(
        [*words, "--store", "b"], stderr=follower, stdout=subprocess.DEVNULL, env=environment
    )
    os.close(follower)
    said = b""
    try:
        while piece := os.read(leader, 4096):
            said += piece
    except OSError:  # the terminal has gone with the command
        pass
    os.close(leader)
    assert shown.wait() == 0
    text = said.decode()
    assert "100.0 %" in text and "loss" in text
    assert "━" * 12 in text  # the whole bar in one colour: of a share that is not known it has many
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0
