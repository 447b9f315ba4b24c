"""Recipe X1, the short form: exchanged, copied and older parts are refused by name or right."""

import random
from pathlib import Path

from tests.torture.exchanged_parts import PLANTS, run_exchanged_ranks, run_exchanged_shards

_MOST = 5  # runs, until all has happened that should


def _fresh_seed() -> int:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed


def test_folders_of_ranks_are_refused_by_name_or_right(tmp_path: Path) -> None:
    for number in range(_MOST):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = run_exchanged_ranks(folder, _fresh_seed(), 20)
        if report.violations or not report.missing(()):
            break
    assert not report.missing(()), f"the run proves nothing; {report}"
    assert report.violations == []


def test_stores_of_shards_are_refused_by_name_or_right(tmp_path: Path) -> None:
    report = run_exchanged_shards(tmp_path, _fresh_seed(), 10)
    assert report.refused, f"the run proves nothing; {report}"
    assert report.violations == []


def test_planted_bugs_are_found_by_exchanges(tmp_path: Path) -> None:
    for name, run, rounds in zip(
        PLANTS, (run_exchanged_ranks, run_exchanged_shards), (16, 8), strict=True
    ):
        (tmp_path / name).mkdir()
        assert run(tmp_path / name, 1, rounds, name).violations, name
