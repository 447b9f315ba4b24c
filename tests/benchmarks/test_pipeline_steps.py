"""Whole steps of a Pipeline are timed and profiled, here over the host build.

Above it: pytest. Below it: benchmarks/gpu_cache/pipeline_steps.py.
"""

import json
from pathlib import Path

from benchmarks.gpu_cache.pipeline_steps import CASES, main


def test_steps_are_timed_by_stage_and_profiled(tmp_path: Path) -> None:
    words = ["--tables", "2", "--rows", "3000", "--dim", "8", "--examples", "64", "--steps", "4"]
    found = main([*words, "--json", str(tmp_path / "s.json"), "--profile", str(tmp_path)])
    assert json.loads((tmp_path / "s.json").read_text()) == found
    assert tuple(one["case"] for one in found) == CASES
    for one in found:
        stages = one["stages"]
        assert one["ms_a_step"] > 0 and one["occurrences"] == 2 * 64 * 2
        assert all(stages[stage]["busy_ms"] > 0 for stage in ("copy", "compute"))
        text = (tmp_path / f"profile_{one['case']}.txt").read_text()
        assert "aten::" in text and (tmp_path / f"profile_{one['case']}.json").exists()
    hits, misses = (one["gpu_cache"] for one in found)
    assert hits["evictions"] == 0 and misses["evictions"] > 0
