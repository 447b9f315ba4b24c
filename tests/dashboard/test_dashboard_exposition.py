"""Prometheus' text taken apart, and what lies between two answers.

Above it: pytest. Below it: hps/dashboard/exposition.py, against prometheus_client, which writes
what `hps serve` serves, and numpy.
"""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hps.dashboard.exposition import MOST_SAMPLES, Between, Exposition, parse
from hps.dashboard.figures import now_figures, rate_figures
from hps.errors import DataError


def answer(registry: CollectorRegistry, time: float = 0.0) -> Exposition:
    return parse(generate_latest(registry).decode(), time)


def test_what_prometheus_writes_is_read_again_whatever_labels_hold() -> None:
    registry = CollectorRegistry()
    names = ['a "b" \\ c', "line\nbreak", "ü,{}=", ""]
    gauge = Gauge("hps_rows", "Rows", ["table", "other"], registry=registry)
    for idx, name in enumerate(names):
        gauge.labels(name, "x").set(idx + 0.5)
        gauge.labels(name, "y").set(idx)
    found = answer(registry)
    assert found.by_label("hps_rows", "table") == {
        name: 2 * idx + 0.5 for idx, name in enumerate(names)
    }
    assert found.by_label("hps_rows", "none") == {} and found.value("hps_rows") is None
    assert found.labels_of("hps_rows") == {"table": names[0], "other": "x"}


@pytest.mark.parametrize(
    "text", ["<html>not found</html>", "hps_rows{", 'hps_rows{a="b} 1', "hps_rows one", "hps_rows"]
)
def test_what_is_not_prometheus_text_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(DataError, match="not Prometheus' text"):
        parse(text + "\n", 0.0)


def test_more_samples_than_any_server_has_are_refused() -> None:
    text = "".join(f'hps_rows{{table="{idx}"}} 1\n' for idx in range(MOST_SAMPLES + 1))
    with pytest.raises(DataError, match="more than 20,000 samples"):
        parse(text, 0.0)


def test_counters_grow_and_begin_anew_with_their_server() -> None:
    before = parse('hps_x_total{m="a"} 10\nhps_x_total{m="b"} 7\nhps_y_total 5\n', 10.0)
    after = parse(
        'hps_x_total{m="a"} 14\nhps_x_total{m="b"} 2\nhps_x_total{m="c"} 1\nhps_y_total 3\n', 12.0
    )
    between = Between(before, after)
    assert between.growth("hps_x_total", "m") == {"a": 4.0, "b": 2.0, "c": 1.0}
    assert between.growth_of("hps_y_total") == 3.0 and between.growth_of("hps_z_total") is None


def test_quantiles_are_those_of_the_values_between_as_far_as_buckets_tell() -> None:
    registry = CollectorRegistry()
    ends = tuple(np.linspace(0.01, 1.0, 100).tolist())
    histogram = Histogram("hps_call_seconds", "s", ["method"], registry=registry, buckets=ends)
    counter = Counter("hps_calls", "c", ["method", "status"], registry=registry)
    generator = np.random.default_rng(0)
    for value in generator.uniform(0.8, 1.0, 1000):  # of before: must not count
        histogram.labels("Pull").observe(value)
    histogram.labels("Push").observe(0.3)
    before = answer(registry, 100.0)
    values = generator.beta(2, 8, 5000)
    for value in values:
        histogram.labels("Pull").observe(value)
    counter.labels("Pull", "OK").inc(5000)
    counter.labels("Pull", "ABORTED").inc(10)
    between = Between(before, answer(registry, 110.0))
    ((method, (middle, high)),) = between.quantiles("hps_call_seconds", "method", (0.5, 0.99))
    assert method == "Pull"
    assert middle == pytest.approx(np.quantile(values, 0.5), abs=0.01)
    assert high == pytest.approx(np.quantile(values, 0.99), abs=0.02)
    figures = dict(rate_figures(between))
    assert figures["latency/Pull p50"] == middle and figures["latency/Pull p99"] == high
    assert figures["calls/Pull"] == 501.0 and figures["refused"] == 1.0


def test_quantiles_after_a_restart_are_those_of_the_new_server() -> None:
    old = 'h_bucket{le="1.0"} 50\nh_bucket{le="2.0"} 90\nh_bucket{le="+Inf"} 90\n'
    new = 'h_bucket{le="1.0"} 0\nh_bucket{le="2.0"} 4\nh_bucket{le="+Inf"} 4\n'
    between = Between(parse(old, 0.0), parse(new, 5.0))
    assert list(between.quantiles("h", "", (0.5,))) == [("", (1.5,))]


def test_hit_rates_births_and_shares_are_of_the_time_between() -> None:
    names = ("hits", "misses")
    text = [
        "\n".join(
            [
                *(
                    f'hps_tier_{name}_total{{tier="dram_cache"}} {value}'
                    for name, value in zip(names, counts, strict=True)
                ),
                f'hps_table_rows{{table="ads"}} {rows}',
                f'hps_table_expired_rows_total{{table="ads"}} {dead}',
                f'hps_stage_busy_seconds_total{{stage="fetch"}} {busy}',
                f'hps_stage_wait_seconds_total{{stage="fetch",side="input"}} {waits}',
                "",
            ]
        )
        for counts, rows, dead, busy, waits in (
            ((900, 100), 50, 5, 1.0, 2.0),
            ((903, 101), 60, 9, 2.0, 2.5),
        )
    ]
    figures = dict(rate_figures(Between(parse(text[0], 0.0), parse(text[1], 2.0))))
    assert figures["hit_rate/dram_cache"] == 0.75
    assert figures["born/ads"] == 7.0 and figures["dying/ads"] == 2.0
    assert figures["stage_busy/fetch"] == 0.5 and figures["stage_input/fetch"] == 0.25


def test_ages_are_counted_from_the_answer() -> None:
    found = parse("hps_checkpoint_created_seconds 90\nhps_model_created_seconds 40\n", 100.0)
    figures = dict(now_figures(found))
    assert figures["checkpoint_age"] == 10.0 and figures["version_age"] == 60.0


def test_two_answers_of_one_moment_tell_no_rate() -> None:
    found = parse("hps_train_examples_total 5\n", 1.0)
    assert list(rate_figures(Between(found, found))) == []
