"""The sizing page says what the code does: its example is printed again, constants are looked up.

Above it: pytest. Below it: docs/cluster_sizing.md, hps/plan/.
"""

import shlex
from fractions import Fraction
from pathlib import Path

import pytest

from hps import _C
from hps.cli.main import main
from hps.common.sharding import NUM_VIRTUAL
from hps.config import SsdStoreConfig
from hps.plan.keys import _HEAD_RANKS
from hps.plan.sizes import PINNED_LOAD, largest_share

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster_sizing.md"


def test_the_worked_example_prints_what_the_page_shows(capsys):
    text = PAGE.read_text()
    command = text.split("```sh\nhps ")[1].split("```")[0]
    shown = text.split("```text\n")[1].split("```")[0]
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    assert capsys.readouterr().out == shown
    assert "10.1 TB in all" in shown


def test_the_example_without_a_limit_of_computing_needs_seven_ranks(capsys):
    command = PAGE.read_text().split("```sh\nhps ")[1].split("```")[0].replace("\\\n", " ")
    words = shlex.split(command)
    place = words.index("--rank-examples-per-second")
    assert main(words[:place] + words[place + 2 :]) == 0
    assert (
        "\n7 ranks on 1 host of up to 8 ranks (one fewer is short of SSD)"
        in capsys.readouterr().out
    )


def test_constants_on_the_page_are_those_of_the_code():
    text = PAGE.read_text()
    space = _C.space_of(144)
    extra = {name: Fraction(space[f"{name}_slot_bytes"] - 144) for name in ("dram", "gpu")}
    assert extra["dram"] == 4 + Fraction(1, 64) and "R + 4 1/64" in text
    assert float(extra["gpu"]) == pytest.approx(4 + 9 / 64, abs=1e-3) and "R + 4 9/64" in text
    assert space["ssd_row_bytes"] == 144 + 12 and "| SSD | R + 12 |" in text
    assert f"{space['index_bytes_most']:.1f} at most" in text
    assert f"/ {PINNED_LOAD} * slot" in text
    assert space["spare_segments"] == 4 and "4 segments of 256 MiB" in text
    config = SsdStoreConfig()
    assert (config.segment_bytes, config.compaction_threshold) == (256 << 20, 0.5)
    assert config.keep_last == 2 and "Each of the two checkpoints" in text
    assert f"first {_HEAD_RANKS} ranks" in text and f"of {NUM_VIRTUAL} virtual shards" in text
    assert largest_share(40) * 40 == pytest.approx(1.006, abs=1e-3)
    assert largest_share(1000) * 1000 == pytest.approx(1.22, abs=1e-2)
