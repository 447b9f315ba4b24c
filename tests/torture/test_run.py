"""The summary of `make torture`: a violation, a bug that was missed and a skip are never silent."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.identity import PLANTS as IDENTITY_PLANTED
from tests.torture.life_planted import PLANTED as LIFE_PLANTED
from tests.torture.odd_machines import PLANTS as MACHINE_PLANTED
from tests.torture.planted import PLANTED
from tests.torture.publishing_planted import PLANTED as PUBLISHING_PLANTED
from tests.torture.run import Result, native, parse_native, run
from tests.torture.service_planted import PLANTED as SERVICE_PLANTED
from tests.torture.service_slow import PLANTS as SLOW_PLANTED


def _recipe(*results: Result) -> Iterator[Result]:
    return iter(results)


def test_a_run_without_problems_says_what_held(capsys: pytest.CaptureFixture[str]) -> None:
    code = run([lambda _: _recipe(Result("K1", "kills", 1000))], seed=7)
    said = capsys.readouterr().out
    assert code == 0
    assert (
        "seed 7" in said and "skipped: 0" in said and "1 of 1 parts hold (K1), 1,000 runs" in said
    )


def test_problems_and_skips_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        Result("B1", "flips", 10, skips={"equal blocks": 3}),
        Result("T1", "cuts", 5, problems=["a tail was accepted"]),
    ]
    assert run([lambda _: _recipe(*results)], seed=1) == 1
    said = capsys.readouterr().out
    assert "skipped: 3\n  B1: 3 equal blocks" in said
    assert "FAILED T1, cuts\n  a tail was accepted" in said
    assert "1 of 2 parts hold" in said


def test_a_run_of_nothing_fails() -> None:
    assert run([], seed=1) == 1


def test_lines_of_the_native_programs_are_understood() -> None:
    held = parse_native("recipe K2 33 0 crashes, one at every call")
    assert held == Result("K2", "crashes, one at every call", 33)
    broken = parse_native("recipe K2 33 2 crashes")
    assert broken is not None and broken.problems == ["2 violations"]
    found = parse_native("planted K2 found a write is dropped: seed 1")
    assert found == Result("K2", "planted bug 'a write is dropped' is found", 0)
    missed = parse_native("planted K2 MISSED a write is dropped: ")
    assert missed is not None and missed.problems == ["the bug was NOT found"]
    assert parse_native("anything else") is None


def test_a_native_program_that_dies_is_a_problem(tmp_path: Path) -> None:
    program = tmp_path / "dies"
    program.write_text(f"#!{sys.executable}\nprint('recipe K2 1 0 fine')\nraise SystemExit(3)\n")
    program.chmod(0o755)
    held, died = native(program)
    assert held.problems == []
    assert died.problems == ["exit code 3"]


def test_the_page_lists_every_bug_that_is_planted_in_a_worker_or_a_server() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reliability.md").read_text()
    planted = [*PLANTED, *SERVICE_PLANTED, *SLOW_PLANTED, *IDENTITY_PLANTED, *MACHINE_PLANTED]
    planted += [*LIFE_PLANTED, *PUBLISHING_PLANTED]
    assert [name for name in planted if f"`{name}`" not in page] == []
