"""What a shell completes: asked of bash and zsh themselves, with the text that the command prints.

Above it: pytest. Below it: hps/cli/completion.py. Without a shell its tests skip.
"""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hps.cli.completion import SHELLS, completion_text
from hps.cli.main import COMMANDS, main
from hps.cli.whole_command import parsers_of, whole_parser
from hps.models import MODELS
from hps.options.page import page


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completions")
    for shell in SHELLS:
        (folder / shell).write_text(completion_text(shell))
    return {shell: folder / shell for shell in SHELLS}


def completed(texts: dict[str, Path], *words: str, folder: Path | None = None) -> list[str]:
    """What bash offers for the last of the words of a command line."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
source '{texts["bash"]}'
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE={quoted!r}; COMP_POINT=${{#COMP_LINE}}
name=$(complete -p hps | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$name" hps '{words[-1]}' '{words[-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def test_bash_completes_commands(texts: dict[str, Path]) -> None:
    assert set(completed(texts, "hps", "")) >= set(COMMANDS)
    assert completed(texts, "hps", "serve-") == ["serve-model"]


def test_bash_completes_flags_of_the_command_and_names_of_a_flag(texts: dict[str, Path]) -> None:
    assert "--batch-size" in completed(texts, "hps", "train", "--batch")
    assert "--batch-size" not in completed(texts, "hps", "serve", "--b")
    assert completed(texts, "hps", "train", "log.tsv", "--format", "c") == ["criteo", "csv"]
    assert "pull" in completed(texts, "hps", "client", "")


def test_bash_completes_files_and_folders(texts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "store-of-ads").mkdir()
    (tmp_path / "store.log").touch()
    assert "store-of-ads" in completed(texts, "hps", "stats", "store", folder=tmp_path)
    files = completed(texts, "hps", "evaluate", "--json", "store", folder=tmp_path)
    assert "store.log" in files


def test_the_text_for_zsh_says_of_each_command_what_it_does(texts: dict[str, Path]) -> None:
    text = texts["zsh"].read_text()
    assert text.startswith("#compdef hps")
    for name, (_, what) in COMMANDS.items():
        shown = what.replace("'", "'\"'\"'")
        assert f"    {name}:'{shown}'\n" in text


@pytest.mark.parametrize(
    ("typed", "shown"), [("hps resh", "hps reshard"), ("hps train --look", "--lookahead")]
)
def test_zsh_completes(typed: str, shown: str, texts: dict[str, Path], tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh: apt-get install zsh")
    (tmp_path / "_hps").write_text(texts["zsh"].read_text())
    start = f"fpath=('{tmp_path}' $fpath); autoload -U compinit; compinit -u -D; PS1='re''ady>'\n"
    child, terminal = pty.fork()
    if child == 0:
        os.execve(zsh, [zsh, "-f", "-i"], {"TERM": "dumb", "PATH": "/usr/bin:/bin"})
    try:
        os.write(terminal, start.encode())
        _read_until(terminal, "ready>")
        os.write(terminal, f"{typed}\t".encode())
        _read_until(terminal, shown)
    finally:
        os.close(terminal)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read_until(terminal: int, wanted: str) -> None:
    said = ""
    while wanted not in said:
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, said
        said += os.read(terminal, 4096).decode(errors="replace")


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == completion_text("bash")


def test_without_shtab_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "zsh"]) == 1
    assert "pip install 'hps-ctr[terminal]'" in capsys.readouterr().err


def test_the_whole_parser_has_every_command_and_every_option() -> None:
    named = {one.prog: one for one in parsers_of(whole_parser())}
    assert {f"hps {name}" for name in COMMANDS} < set(named)
    flags = set(named["hps train"]._option_string_actions)
    assert set(re.findall(r"^\| `(--[\w-]+)`", page(), re.MULTILINE)) <= flags
    assert MODELS  # which the flag of a model is checked by
