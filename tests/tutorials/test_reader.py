"""What the reader of tutorials takes for the same output, and what it does not.

Above it: pytest. Below it: reader.py.
"""

from pathlib import Path

import pytest

from tests.tutorials.reader import Shell, difference, is_like, run_command

LIKE = [
    ("rows   4,762", "rows                4,762"),
    ("auc ~0.831 logloss ~0.304", "auc 0.82999  logloss 0.30343"),
    ("1e-05 ~-1.5e-05 (a)", "1e-05 -1.45e-05 (a)"),
    ("~117,322 a second; ...", "117,000 a second; deepfm"),
    ("it took ... seconds", "it took 3.2 seconds"),
    ("what?", "what?"),
]
UNLIKE = [
    ("rows 4,762", "rows 4,763"),
    ("auc ~0.831", "auc 0.780"),
    ("auc ~0.831", "auc high"),
    ("auc 0.831", "auc 0.8311"),
    ("it took ... seconds", "it took 3.2 minutes"),
]


@pytest.mark.parametrize(("shown", "printed"), LIKE)
def test_a_line_is_as_shown(shown: str, printed: str) -> None:
    assert is_like(shown, printed)


@pytest.mark.parametrize(("shown", "printed"), UNLIKE)
def test_a_line_is_not_as_shown(shown: str, printed: str) -> None:
    assert not is_like(shown, printed)


@pytest.mark.parametrize(
    ("shown", "is_same"),
    [("a\nb\nc\n", True), ("a\n...\n", True), ("...\nc\n", True), ("a\n...\nc\n", True),
     ("a\nc\n", False), ("a\nb\n", False), ("b\nc\n", False), ("a\nb\nc\nd\n", False),
     ("...\nb\n", False), ("", False)],
)  # fmt: skip
def test_lines_are_left_out_only_where_it_says_so(shown: str, is_same: bool) -> None:
    assert (difference(shown, "a\nb\nc\n") is None) == is_same


def test_a_shell_keeps_its_jobs_and_a_wrong_status_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    shell = Shell(folder)
    try:
        run_command("sleep 600 &", shell)
        assert run_command("jobs -r | wc -l", shell).strip() == "1"
        run_command("kill -9 %1; wait %1  # fails: it was killed", shell)
        assert run_command("echo a; echo b >&2", shell) == "a\nb\n"
        with pytest.raises(AssertionError, match="ended with 1"):
            run_command("false", shell)
        with pytest.raises(AssertionError, match="ended with 0"):
            run_command("true  # fails", shell)
    finally:
        shell.close()


def test_progress_which_slow_machines_tell_more_of_is_passed_over() -> None:
    assert difference("a\nb\n", "a\nepoch 1/3  9.5 %  1,024 examples\nb\n") is None
