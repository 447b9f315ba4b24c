"""Ranks with a shuffle buffer: each has its slice of the batches that one process would train on.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo.
"""

from pathlib import Path

from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.test_rank_training import largest_difference, words
from tests.logs import write_criteo


def test_ranks_share_shuffled_batches_and_go_on_within_a_block(
    tmp_path: Path, ranks: Nursery
) -> None:
    log = write_criteo(tmp_path / "log.tsv", 1250)
    flags = ["--optimizer", "sgd", "--shuffle-buffer", "600"]
    for name, size in (("alone", 1), ("step", 3)):
        ranks.figures(Job(words(log, tmp_path / name, *flags, "--limit", "100"), size))
    assert largest_difference(tmp_path / "alone", tmp_path / "step") <= 1e-6
    whole = ranks.figures(Job(words(log, tmp_path / "whole", *flags), 2))
    ranks.figures(Job(words(log, tmp_path / "part", *flags, "--limit", "800"), 2))
    rest = ranks.figures(Job(words(log, tmp_path / "part", *flags, "--resume"), 2))
    assert rest["total_examples"] == 1250 and rest["digests"] == whole["digests"]
    in_order = ranks.figures(Job(words(log, tmp_path / "in-order", "--optimizer", "sgd"), 2))
    assert in_order["digests"] != whole["digests"]
