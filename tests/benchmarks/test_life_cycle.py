"""The benchmark of a row's life: its settings, what pairs of runs say, what it holds them to.

Above it: pytest. Below it: benchmarks/life_cycle/.
"""

from dataclasses import replace

import pytest

import hps
from benchmarks.life_cycle.days import Days, Shape, train_days, write_log
from benchmarks.life_cycle.life_cycle_bench import chosen, rows_of
from benchmarks.life_cycle.settings import BASELINE, SETTINGS, Setting

SHAPE = Shape(periods=3, examples=150, keys=300, drift=0.3, batch_size=50)


def test_every_setting_is_a_table_of_its_own_name() -> None:
    tables = [
        (hps.TableConfig(name="ads", dim=4, **setting.table), dict(setting.options))
        for setting in (BASELINE, *SETTINGS)
    ]
    assert tables[0] == (hps.TableConfig(name="ads", dim=4), {})
    assert all(table != tables[0] for table in tables[1:])
    assert BASELINE.described() == "{}" and all(one.described() != "{}" for one in SETTINGS)
    names = [setting.name for setting in (BASELINE, *SETTINGS)]
    assert len(set(names)) == len(names)
    assert [setting.name for setting in chosen(["statistics"])] == ["statistics"]
    with pytest.raises(SystemExit, match=r"no setting .*'none'.*there are: .*statistics"):
        chosen(["none"])


def test_a_run_has_the_settings_table_and_a_period_for_each_day(tmp_path) -> None:
    best = write_log(tmp_path, SHAPE, 3)
    assert len(best) == 3 and all(0.7 < auc < 0.95 for auc in best)
    plain = train_days(tmp_path, SHAPE, BASELINE, 3)
    counted = train_days(tmp_path, SHAPE, chosen(["statistics"])[0], 3)
    assert plain.loss_digest == counted.loss_digest and plain.aucs == counted.aucs
    assert len(plain.aucs) == 3 and plain.rows == counted.rows
    assert counted.disk_bytes > plain.disk_bytes
    # Another table is another run: the arguments reach it.
    small = Setting(name="small", table={"initializer": hps.Normal(std=0.5)})
    assert train_days(tmp_path, SHAPE, small, 3).loss_digest != plain.loss_digest
    apart = train_days(tmp_path, SHAPE, chosen(["two-level 0.5"])[0], 3)
    # A row of a weight for each key, and one of a vector for some.
    assert plain.rows < apart.rows < 2 * plain.rows and apart.loss_digest != plain.loss_digest


def test_rows_are_pairs_of_seeds_and_bits_are_held_to() -> None:
    base = [
        Days(aucs=[0.5, 0.70, 0.72], rows=100, disk_bytes=900, cpu_seconds=2.0, loss_digest="a"),
        Days(aucs=[0.5, 0.60, 0.62], rows=120, disk_bytes=950, cpu_seconds=2.0, loss_digest="b"),
    ]
    own = [
        replace(days, aucs=[0.1, *(auc + 0.01 for auc in days.aucs[1:])], rows=days.rows // 2)
        for days in base
    ]
    rows = {row["unit"]: row for row in rows_of(Setting(name="half"), own, base)}
    assert rows["AUC"]["value"] == pytest.approx(0.67)
    assert rows["AUC"]["baseline_value"] == pytest.approx(0.66)
    assert rows["AUC"]["difference"] == pytest.approx(0.01)
    assert rows["AUC"]["notes"]["auc of each day"] == pytest.approx([0.1, 0.66, 0.68])
    assert rows["rows"]["ratio"] == 2.0 and rows["bytes on disk"]["ratio"] == 1.0
    own[1] = replace(own[1], loss_digest="c")
    with pytest.raises(AssertionError, match=r"'half' has learned something else .* seed 1"):
        rows_of(Setting(name="half", keeps_bits=True), own, base)


def test_a_result_can_be_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.life_cycle.plot import best, plot, points

    base = [
        Days(aucs=[0.5, 0.70, 0.72], rows=100, disk_bytes=900, cpu_seconds=2.0, loss_digest="a"),
        Days(aucs=[0.5, 0.60, 0.62], rows=120, disk_bytes=950, cpu_seconds=2.0, loss_digest="b"),
    ]
    rows = []
    for name, gain, part in (("half", 0.01, 2), ("worse", -0.01, 1), ("tiny", -0.02, 9)):
        own = [
            replace(
                days,
                aucs=[0.1, *(auc + gain for auc in days.aucs[1:])],
                disk_bytes=days.disk_bytes // part,
            )
            for days in base
        ]
        rows += rows_of(Setting(name=name), own, base)
    axes = {"periods": 3, "examples": 10, "seeds": 2}
    result = {"rows": rows, "commit": "c", "axes": axes}
    found = points(result)
    assert found["half"].bytes == pytest.approx(0.5, abs=0.01)
    assert found["half"].difference == pytest.approx(0.01)
    assert best(found) == ["tiny", "half"]
    plot(result, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000
