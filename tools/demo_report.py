"""What the demonstration needs besides the command line: its budget, and its closing table.

    python tools/demo_report.py budget LOG.json       bytes for a quarter of the log's rows
    python tools/demo_report.py table TEST.json TRAIN.json

Above it: tools/demo.sh. Below it: the JSON files that `hps generate` and `hps train` write.
"""

import json
import sys
from pathlib import Path
from typing import Any

from hps.common.row_layout import RowLayout

DIM = 8
PART_OF_ROWS = 4
# How far below the planted model's AUC the demonstration may end.
LARGEST_GAP = 0.02
# Digests, ages, flags and pins beside each row of the cache.
SLOT_BYTES = 4


def read(path: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(Path(path).read_text())
    return figures


def budget(log: dict[str, Any]) -> int:
    """Bytes of DRAM that hold a quarter of the rows that the log will make."""
    row_bytes = RowLayout("adagrad", DIM + 1).row_bytes  # the last column is first order
    return int(log["distinct_keys"]) // PART_OF_ROWS * (row_bytes + SLOT_BYTES)


def table(test: dict[str, Any], train: dict[str, Any]) -> str:
    """AUC beside the best possible one, speed, and where each tier's rows were found.

    Raises:
        SystemExit: the AUC is too far from the best one, or the rows fitted into the budget.
    """
    best = test["best_auc"]
    if not best - train["test_auc"] <= LARGEST_GAP:
        raise SystemExit(
            f"test AUC {train['test_auc']:.4f} is more than {LARGEST_GAP} below the planted "
            f"model's {best:.4f}"
        )
    lines = [
        f"test AUC                 {train['test_auc']:.4f}   "
        f"best possible {best:.4f}, short of it by {best - train['test_auc']:.4f}",
        f"test logloss             {train['test_logloss']:.4f}   "
        f"best possible {test['best_logloss']:.4f}",
        f"examples a second        {train['examples_per_second']:,.0f}",
        f"peak memory              {train['peak_rss_bytes'] / 2**20:,.0f} MiB",
        "",
        "tier            look-ups   hit rate        rows",
    ]
    for tier, numbers in train["tiers"].items():
        asked = numbers["hits"] + numbers["misses"]
        rate = f"{numbers['hits'] / asked:10.2%}" if asked else f"{'-':>10}"
        lines.append(f"{tier:<12}{asked:>12,} {rate} {numbers['rows']:>11,}")
    stored, cached = (train["tiers"][tier]["rows"] for tier in ("ssd_store", "dram_cache"))
    if stored < 2 * cached:
        raise SystemExit(f"the rows did not outgrow the budget: {stored:,} against {cached:,}")
    lines.append(f"\n{stored - cached:,} of {stored:,} rows were on SSD alone at the end.")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    if words[0] == "budget":
        print(budget(read(words[1])))
    else:
        print(table(read(words[1]), read(words[2])))


if __name__ == "__main__":
    main(sys.argv[1:])
