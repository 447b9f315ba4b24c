"""Look-ahead: rows that batches to come will use stay in DRAM while others can go; no bit changes.

Above it: pytest. Below it: hps.Pipeline(lookahead=), ParameterServer.want, csrc/table/probe.h.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from benchmarks.pipeline.policies import lru_hits, optimal_hits
from tests.front import one_feature_batch, open_server, wait_until
from tests.lab import Lab, keys_of, table, top_stats
from tests.pipeline.scenario import Scenario, run


@pytest.mark.parametrize("kind", ["twins", "three_twins", "native", "gpu"])
def test_a_wanted_row_leaves_after_all_others(tmp_path: Path, kind: str) -> None:
    lab = Lab(kind, tmp_path)
    with lab.server(table()) as server:
        capacity = top_stats(server)["capacity_rows"]
        for key in range(capacity):
            server.push("ads", keys_of(key), np.ones((1, 4), np.float32))
        oldest = np.arange(capacity // 2, dtype=np.uint64)
        oldest = oldest[server.parts.tables.stack("ads").cache.contains(oldest) != 0]
        assert len(oldest) > capacity // 3
        server.want("ads", oldest)
        for key in range(1000, 1000 + capacity // 4):
            server.push("ads", keys_of(key), np.ones((1, 4), np.float32))
        misses = top_stats(server)["misses"]
        server.pull("ads", oldest)
        assert top_stats(server)["misses"] == misses
        server.pull("ads", np.arange(capacity, dtype=np.uint64))
        assert top_stats(server)["misses"] > misses  # premise: something had left


def test_rows_are_marked_in_every_cache_that_holds_them(tmp_path: Path) -> None:
    with Lab("gpu", tmp_path).server(table()) as server:
        caches = server.parts.tables.tiers["ads"].caches
        wanted: dict[str, list[int]] = {}
        for name, tier in caches.items():
            tier.want = lambda keys, name=name: wanted.setdefault(name, keys.tolist())
        server.want("ads", keys_of(3, 4, 3))
        assert wanted == {"gpu_cache": [3, 4, 3], "dram_cache": [3, 4, 3]}


@pytest.mark.parametrize("kind", ["native", "gpu"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_look_ahead_changes_no_bit(tmp_path: Path, kind: str, scale: float) -> None:
    scenario = Scenario(seed=5, num_batches=40, num_keys=4000)
    sound = run(scenario, tmp_path / "in turn", 0, scale=20.0)
    ahead = run(replace(scenario, lookahead=8), tmp_path / "ahead", 2, scale=scale, kind=kind)
    assert ahead == sound and ahead.evictions > 100


def _hits(folder: Path, kind: str, scale: float, lookahead: int) -> dict[str, Any]:
    """Two groups of rows in turn, more than fit: by age alone each batch puts out the next ones."""

    def log() -> Iterator[hps.Batch]:
        generator = np.random.default_rng(3)
        for _ in range(60):
            yield one_feature_batch(generator.choice(900, 150, replace=False).tolist())

    with Lab(kind, folder).server(table(), scale=scale) as server:
        with hps.Pipeline(log(), server, 1, lookahead=lookahead) as batches:
            for _ in batches:
                pass
        return top_stats(server)


@pytest.mark.parametrize(("kind", "scale"), [("native", 3.4), ("gpu", 2.0)])
def test_a_look_ahead_saves_misses_and_counts_what_it_spared(
    tmp_path: Path, kind: str, scale: float
) -> None:
    plain, ahead = (_hits(tmp_path / str(n), kind, scale, n) for n in (0, 8))
    assert plain["spared"] == 0 and plain["capacity_rows"] < 900
    assert ahead["spared"] > 100
    assert ahead["misses"] < 0.97 * plain["misses"]


def test_a_look_ahead_has_limits_and_needs_a_depth(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        for wrong in (-1, 65, 1.5):
            with pytest.raises(hps.ConfigError, match=f"lookahead={wrong}"):
                hps.Pipeline([], server, lookahead=wrong)  # type: ignore[arg-type]
        with pytest.raises(hps.ConfigError, match="depth above 0"):
            hps.Pipeline([], server, depth=0, lookahead=2)


def test_as_many_batches_are_read_ahead_as_asked_for(tmp_path: Path) -> None:
    read: list[int] = []

    def log() -> Iterator[hps.Batch]:
        for number in range(40):
            read.append(number)
            yield one_feature_batch([number])

    with open_server(tmp_path) as server, hps.Pipeline(log(), server, 1, lookahead=8) as batches:
        next(batches)
        wait_until(
            lambda: len(read) == 1 + 1 + 1 + 8
        )  # handed out, let in, about to be, the window
        time.sleep(0.05)
        assert len(read) == 11


def test_the_rules_it_is_compared_with_are_what_they_say() -> None:
    batches = [np.array(keys) for keys in ([1, 2], [3], [1], [4], [2], [1], [3])]
    assert lru_hits(batches, 3) == [0, 0, 1, 0, 0, 1, 0]
    assert lru_hits(batches, 3, window=2) == [0, 0, 1, 0, 1, 1, 0]
    assert optimal_hits(batches, 3) == [0, 0, 1, 0, 1, 1, 0]
    generator = np.random.default_rng(1)
    many = [np.unique((generator.random(30) ** 2 * 200).astype(np.int64)) for _ in range(80)]
    plain, window, best = (
        sum(hits) for hits in (lru_hits(many, 60), lru_hits(many, 60, 4), optimal_hits(many, 60))
    )
    assert plain < window < best
