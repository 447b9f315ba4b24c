"""Man pages: one a command, each with every flag of it, that man takes without a word.

Above it: pytest. Below it: tools/shell_pages.py.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from hps.cli.main import COMMANDS
from hps.cli.output import pages_root
from hps.cli.whole_command import parsers_of, whole_parser
from tools.shell_pages import write_pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder)
    return folder


def test_each_command_has_a_page_with_its_flags(folder: Path) -> None:
    names = {path.name for path in (folder / "man").iterdir()}
    assert names == {"hps.1", *(f"hps-{command}.1" for command in COMMANDS)}
    parsers = {one.prog: one for one in parsers_of(whole_parser())}
    for command in COMMANDS:
        page = (folder / "man" / f"hps-{command}.1").read_text()
        text = page.replace(r"\-", "-")
        assert f"hps-{command} - {COMMANDS[command][1]}" in text
        for parser in parsers_of(parsers[f"hps {command}"]):
            for action in parser._actions:
                is_shown = action.help is not argparse.SUPPRESS
                if is_shown and not isinstance(action, argparse._HelpAction):
                    missing = [flag for flag in action.option_strings if flag not in text]
                    assert not missing, command


def test_no_page_names_a_folder_of_the_machine_that_made_it(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert str(pages_root()) not in path.read_text(), path
            assert str(Path.home()) not in path.read_text(), path


def test_man_shows_them_without_a_warning(folder: Path) -> None:
    man = shutil.which("groff")
    if man is None:
        pytest.skip("no groff: apt-get install groff")
    for page in sorted((folder / "man").iterdir()):
        words = [man, "-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=100n", str(page)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, (page.name, done.stderr)
        assert "NAME" in done.stdout and "hps" in done.stdout


def test_pages_are_the_same_whenever_they_are_made(folder: Path, tmp_path: Path) -> None:
    write_pages(tmp_path)
    for path in (folder / "man").iterdir():
        assert path.read_bytes() == (tmp_path / "man" / path.name).read_bytes()
