"""A benchmark's result: rows of a figure, its baseline and their ratio; as JSON and as a table.

Above it: benchmarks/run.py and every benchmark. Below it: timing.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.common.timing import Samples

Row = dict[str, Any]
FIGURES = ("value", "unit", "baseline", "baseline_value", "ratio")
REQUIRED_KEYS = ("name", "commit", "machine", "versions", "axes", "rows")


def comparison_row(
    axes: Mapping[str, Any],
    unit: str,
    value: Samples,
    baseline: tuple[str, Samples],
    *,
    floor: float | None = None,
    lower_is_better: bool = False,
) -> Row:
    """One row of the result.

    Args:
        axes: where the row stands, e.g. {"rows": 1_000_000, "dim": 16}.
        unit: of both figures.
        value: hps's repetitions.
        baseline: what it is compared with, by name, and its repetitions in the same order.
        floor: the ratio that is asked for, if one is.
        lower_is_better: the figures are times or bytes; the ratio is turned round.
    """
    name, samples = baseline
    ratios = samples.over(value) if lower_is_better else value.over(samples)
    medians = (samples.median, value.median) if lower_is_better else (value.median, samples.median)
    return {
        **axes,
        "value": value.median,
        "unit": unit,
        "baseline": name,
        "baseline_value": samples.median,
        "ratio": medians[0] / medians[1],
        "floor": floor,
        "repetitions": len(value.values),
        "spread": {
            "value": value.spread,
            "baseline_value": samples.spread,
            "ratio": ratios.spread,
        },
    }


def check_result(result: Mapping[str, Any]) -> None:
    """Holds a result against the shape that readers of the JSON rely on.

    Raises:
        ValueError: a field is missing; names it and its row.
    """
    missing = [key for key in REQUIRED_KEYS if key not in result]
    if missing:
        raise ValueError(f"result of {result.get('name')!r} lacks {missing}")
    for position, row in enumerate(result["rows"]):
        absent = [key for key in FIGURES if key not in row]
        if absent:
            raise ValueError(f"row {position} of {result['name']!r} lacks {absent}")


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def _cells(row: Row, axes: list[str]) -> list[str]:
    spread = row.get("spread") or {}
    low_high = spread.get("ratio")
    floor = row.get("floor")
    verdict = "" if floor is None else ("met" if row["ratio"] >= floor else "BELOW")
    return [
        *(_text(row.get(axis, "")) for axis in axes),
        *(_text(row[key]) for key in FIGURES),
        "" if low_high is None else f"{_text(low_high[0])} to {_text(low_high[1])}",
        "" if floor is None else f"{_text(floor)} {verdict}",
    ]


def table(rows: Iterable[Row]) -> str:
    """A plain-text table: axes, figures, spread of the ratio, floor."""
    rows = list(rows)
    hidden = {*FIGURES, "floor", "spread", "repetitions", "stages", "notes"}
    axes = list(dict.fromkeys(key for row in rows for key in row if key not in hidden))
    header = [*axes, *FIGURES, "ratio spread", "floor"]
    lines = [header, *(_cells(row, axes) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
