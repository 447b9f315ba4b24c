"""The frame of the benchmarks: ratios, interleaving, the report, absent peers, key streams.

Above it: pytest. Below it: benchmarks/run.py, benchmarks/common/.
"""

import json
import time

import numpy as np
import pytest

from benchmarks import run
from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.common.machine import machine
from benchmarks.common.peers import absent_peers
from benchmarks.common.report import check_result, comparison_row, table
from benchmarks.common.timing import Samples, StepTimer, interleave

FAST = Samples((8.0, 10.0, 12.0))
SLOW = Samples((4.0, 5.0, 4.0))


def result_of(rows):
    return {"name": "x", "commit": "c", "machine": {}, "versions": {}, "axes": {}, "rows": rows}


def test_ratio_above_one_means_hps_is_better():
    rate = comparison_row({}, "keys/s", FAST, ("peer", SLOW))
    cost = comparison_row({}, "bytes", SLOW, ("peer", FAST), lower_is_better=True)
    assert rate["ratio"] == cost["ratio"] == 2.5
    assert rate["spread"]["ratio"] == [2.0, 3.0]
    assert cost["spread"]["ratio"] == [2.0, 3.0]


def test_contenders_take_turns():
    order = []
    contenders = {name: lambda n=name: float(len(order.append(n) or order)) for name in "ab"}
    samples = interleave(contenders, 3)
    assert order == list("ababab")
    assert samples["b"].values == (2.0, 4.0, 6.0)


def test_step_timer_goes_round_the_batches(monkeypatch):
    monkeypatch.setattr(StepTimer, "WARM_UP_SECONDS", 0.0)
    seen = []
    timer = StepTimer(seen.append, num_batches=4, steps=3)
    timer.median_seconds()
    timer.median_seconds()
    assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert timer.total_steps == 6


def test_step_timer_waits_until_the_machine_is_its_own(monkeypatch):
    monkeypatch.setattr(StepTimer, "WARM_UP_SECONDS", 0.02)
    times = []
    timer = StepTimer(lambda _: times.append(time.perf_counter()), num_batches=4, steps=3)
    start = time.perf_counter()
    timer.median_seconds()
    assert timer.total_steps == 3
    assert times[-3] - start >= 0.02


def test_result_without_a_baseline_is_refused():
    row = comparison_row({"dim": 16}, "keys/s", FAST, ("peer", SLOW))
    check_result(result_of([row]))
    del row["baseline"]
    with pytest.raises(ValueError, match=r"row 0 of 'x' lacks \['baseline'\]"):
        check_result(result_of([row]))
    with pytest.raises(ValueError, match="commit"):
        check_result({"name": "x", "rows": []})


def test_table_shows_every_axis_and_whether_the_floor_is_met():
    met = comparison_row({"dim": 16}, "keys/s", FAST, ("peer", SLOW), floor=2.0)
    missed = comparison_row({"keys": "hashed"}, "keys/s", SLOW, ("peer", FAST), floor=1.0)
    text = table([met, missed]).splitlines()
    assert text[0].split()[:2] == ["dim", "keys"]
    assert text[1].endswith("2 met") and text[2].endswith("1 BELOW")


def test_absent_peer_is_named():
    absent = absent_peers("json", "no_such_peer")
    assert list(absent) == ["no_such_peer"] and "ModuleNotFoundError" in absent["no_such_peer"]


def test_machine_is_described_without_the_name_of_a_host():
    assert {"cpu", "cores", "memory_gib", "kernel"} <= machine().keys()
    assert "host" not in json.dumps(list(machine()))


def test_hashed_keys_stay_distinct_and_use_the_top_bit():
    keys = hashed_keys(np.arange(10_000))
    assert len(np.unique(keys)) == 10_000
    assert 4000 < (keys >> np.uint64(63)).sum() < 6000


def test_zipf_ids_repeat_with_the_seed_and_favour_few():
    first, again = (ZipfIds(1000, seed=3).batch(5000) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.bincount(first).max() > 20 * 5000 / 1000
    assert np.bincount(ZipfIds(1000, seed=3, ranked=True).batch(5000)).argmax() == 0


def test_unknown_benchmark_lists_those_there_are():
    with pytest.raises(SystemExit, match=r"there are: .*sparse_step.*all"):
        run.load("nothing")


def test_all_writes_one_file_or_one_a_benchmark(tmp_path):
    parts = [result_of([]) | {"name": name} for name in ("a", "b")]
    whole = result_of([]) | {"name": "all", "results": parts}
    run.write(whole, tmp_path / "all.json")
    assert json.loads((tmp_path / "all.json").read_text())["name"] == "all"
    (tmp_path / "each").mkdir()
    run.write(whole, tmp_path / "each")
    assert sorted(path.name for path in (tmp_path / "each").iterdir()) == ["a.json", "b.json"]
