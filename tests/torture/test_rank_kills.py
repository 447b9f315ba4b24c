"""Recipe K1 of a cluster, the short form: ranks are killed, and it ends with the same bits."""

import random
from pathlib import Path

from tests.cluster.rank_nursery import Nursery
from tests.torture.rank_counts import PLANT as COUNTS_PLANT
from tests.torture.rank_counts import run_rank_counts
from tests.torture.rank_kills import PLANT, RankKillReport, run_rank_kills

_MOST = 5  # runs, until one is killed after a checkpoint and resumes


def _fresh_seed() -> int:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed


def test_killed_ranks_go_on_to_the_same_bits(tmp_path: Path, ranks: Nursery) -> None:
    report = RankKillReport()
    for attempt in range(_MOST):
        (tmp_path / str(attempt)).mkdir()
        report.add(run_rank_kills(ranks, tmp_path / str(attempt), _fresh_seed(), 3))
        if report.violations or not report.missing():
            break
    assert not report.missing(), f"the run proves nothing; {report}"
    assert report.violations == []


def test_a_planted_bug_is_found_by_killed_ranks(tmp_path: Path, ranks: Nursery) -> None:
    for attempt in range(_MOST):
        (tmp_path / str(attempt)).mkdir()
        report = run_rank_kills(ranks, tmp_path / str(attempt), _fresh_seed(), 2, PLANT)
        if report.violations:
            break
    assert report.violations


def test_killed_ranks_go_on_as_another_number_with_the_rows_of_the_checkpoint(
    tmp_path: Path, ranks: Nursery
) -> None:
    report = run_rank_counts(ranks, tmp_path, _fresh_seed(), 1)
    assert not report.missing(), f"the run proves nothing; {report}"
    assert report.violations == []


def test_a_planted_bug_is_found_by_other_numbers_of_ranks(tmp_path: Path, ranks: Nursery) -> None:
    assert run_rank_counts(ranks, tmp_path, _fresh_seed(), 1, COUNTS_PLANT).violations
