"""The demonstration's closing table: it refuses a model that has not learnt, and rows that fit."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "demo_report.py"


@pytest.fixture(scope="module")
def report() -> Any:
    spec = importlib.util.spec_from_file_location("demo_report", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(auc: float | None, stored: int) -> dict[str, Any]:
    tier = {"hits": 3, "misses": 1}
    return {
        "test_auc": auc,
        "test_logloss": 0.44,
        "examples_per_second": 1000.0,
        "peak_rss_bytes": 2**30,
        "tiers": {
            "dram_cache": {**tier, "rows": 250},
            "ssd_store": {**tier, "rows": stored},
        },
    }


PLANTED = {"best_auc": 0.82, "best_logloss": 0.42}


def test_table_shows_the_gap(report: Any) -> None:
    text = report.table(PLANTED, figures(0.81, 1000))
    assert "short of it by 0.0100" in text and "750 of 1,000 rows" in text


@pytest.mark.parametrize(
    ("auc", "stored", "reason"),
    [
        (0.79, 1000, "below the planted"),
        (float("nan"), 1000, "below the planted"),
        (0.81, 400, "outgrow"),
    ],
)
def test_a_demonstration_that_shows_nothing_fails(
    report: Any, auc: float, stored: int, reason: str
) -> None:
    with pytest.raises(SystemExit, match=reason):
        report.table(PLANTED, figures(auc, stored))
