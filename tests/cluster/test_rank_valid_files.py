"""`--valid-by files` over ranks: all hold out the same last files.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo.
"""

from pathlib import Path

import pytest

from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.test_rank_training import words
from tests.logs import write_criteo


def test_ranks_hold_out_the_same_last_files_and_measure_them_as_one_process(
    tmp_path: Path, ranks: Nursery
) -> None:
    for day in range(4):
        write_criteo(tmp_path / f"day-{day}.tsv", 300 + day, seed=day)
    flags = ["--valid-share", "0.5", "--valid-by", "files", "--eval-every", "3"]
    flags += ["--shuffle-files", "--epochs", "2"]
    pattern = tmp_path / "day-*.tsv"
    held_out = {
        size: ranks.figures(Job(words(pattern, tmp_path / f"held-{size}", *flags), size))
        for size in (1, 2)
    }
    alone, both = held_out[1], held_out[2]
    # Two ranks that are told the files by name have the same bits.
    data = words(tmp_path / "day-0.tsv", tmp_path / "named", "--shuffle-files", "--epochs", "2")
    data.insert(2, str(tmp_path / "day-1.tsv"))
    valid = ["--valid", *(str(tmp_path / f"day-{day}.tsv") for day in (2, 3)), "--eval-every", "3"]
    named = ranks.figures(Job([*data, *valid], 2))
    for name in ("digests", "loss_digest", "evaluations", "examples"):
        assert both[name] == named[name], name
    assert both["examples"] == alone["examples"] == 2 * (300 + 301)
    assert len(both["evaluations"]) == len(alone["evaluations"]) > 2
    for two, one in zip(both["evaluations"], alone["evaluations"], strict=True):
        assert two["batches"] == one["batches"] and two["examples"] == one["examples"]
        assert two["valid_examples"] == one["valid_examples"] == 302 + 303
        assert two["positives"] == one["positives"]
        assert two["logloss"] == pytest.approx(one["logloss"], abs=1e-3)
        assert two["auc"] == pytest.approx(one["auc"], abs=1e-2)
