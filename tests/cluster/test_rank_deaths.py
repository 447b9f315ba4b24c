"""What the ranks that live say of one that has died, whichever of their threads notices it first.

Above it: pytest. Below it: rank_nursery.py, which runs the real command as processes over gloo.
"""

import re
from pathlib import Path

from tests.cluster.rank_nursery import Job, Nursery
from tests.logs import write_criteo


def test_a_death_that_the_network_stage_notices_first_is_told_in_its_words(
    tmp_path: Path, ranks: Nursery
) -> None:
    """Not as if the rank that tells it had left by itself."""
    log = write_criteo(tmp_path / "log.tsv", 1250)
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--dim", "4", "--hidden", "8"]
    words += ["--batch-size", "100", "--dram", "2MiB", "--depth", "2", "--progress-seconds", "0"]
    ended = ranks.run(Job(words, 3, dies_at={1: 5}, plant="keys-noticed-first"))
    assert ended.statuses[1] == -9 and 0 not in ended.statuses
    lines = "".join(ended.err).splitlines()
    (told,) = [line for line in lines if line.startswith("hps: error: ")]
    assert told.startswith("hps: error: rank ") and "noticed in the keys channel" in told
    assert len(re.findall(r"rank \d", told)) == 1, told
