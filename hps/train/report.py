"""The figures of a run: what each tier did, peak memory, and the table that a run ends with.

Above it: `hps train`, `hps evaluate`. Below it: `ParameterServer.stats`.
"""

import resource
from collections.abc import Sequence

from hps.common.json_text import Json, JsonView

_MAX_EVALUATIONS = 20  # that are shown of a run
TIERS = ("gpu_cache", "dram_cache", "ssd_store")


def peak_rss_bytes() -> int:
    """Most memory this process has held at once, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tiers_of(stats: JsonView) -> dict[str, Json]:
    """The numbers of each tier that is there: hits, misses, evictions, bytes and more.

    `bytes` is memory for a cache, and for the ssd_store what its files take up.
    """
    tiers = {
        tier: {name: value for name, value in stats[tier].items() if not isinstance(value, dict)}
        for tier in TIERS
        if tier in stats
    }
    if "ssd_store" in tiers:
        tiers["ssd_store"].setdefault("bytes", tiers["ssd_store"].get("files_bytes", 0))
    return tiers


def row_moves(stats: JsonView) -> dict[str, dict[str, int]]:
    """Stage that moves rows -> look-ups of its tier, rows that came up to it, and how many of
    these came again: at most as many as had given way there.

    >>> tiers = {"dram_cache": {"hits": 5, "misses": 9, "evictions": 2}, "ssd_store": {"hits": 4}}
    >>> row_moves(tiers)
    {'fetch': {'lookups': 14, 'rows_moved': 4, 'rows_again': 2}}
    """
    moves = {}
    for stage, tier, below in (
        ("fetch", "dram_cache", "ssd_store"),
        ("copy", "gpu_cache", "dram_cache"),
    ):
        if tier not in stats:
            continue
        numbers, moved = stats[tier], stats.get(below, {}).get("hits", 0)
        moves[stage] = {
            "lookups": numbers.get("hits", 0) + numbers.get("misses", 0),
            "rows_moved": moved,
            "rows_again": min(moved, numbers.get("evictions", 0)),
        }
    return moves


def hit_rates(stats: JsonView) -> dict[str, float]:
    """Tier -> part of its look-ups that found a stored row there; tiers never asked are left out.

    >>> hit_rates({"dram_cache": {"hits": 3, "misses": 1}, "ssd_store": {"hits": 0, "misses": 0}})
    {'dram_cache': 0.75}
    """
    rates = {}
    for tier, numbers in tiers_of(stats).items():
        asked = numbers.get("hits", 0) + numbers.get("misses", 0)
        if asked:
            rates[tier] = numbers["hits"] / asked
    return rates


def format_table(figures: JsonView) -> str:
    """The figures as a table for people: one line a figure, then one a tier."""
    lines = []
    for name, text in _headline(figures):
        lines.append(f"{name:<22}{text:>20}")
    lines.append("")
    lines.append(f"{'tier':<14}{'hits':>14}{'misses':>14}{'hit rate':>10}{'rows':>14}{'MiB':>10}")
    rates = hit_rates(figures["tiers"])
    for tier, numbers in figures["tiers"].items():
        rate = f"{100 * rates[tier]:.2f} %" if tier in rates else "-"
        lines.append(
            f"{tier:<14}{numbers.get('hits', 0):>14,}{numbers.get('misses', 0):>14,}{rate:>10}"
            f"{numbers.get('rows', 0):>14,}{numbers.get('bytes', 0) / 2**20:>10.1f}"
        )
    return "\n".join(lines)


def format_weight(figures: JsonView) -> str | None:
    """Which figures are weighted, of a model that was trained with weights of examples; None of
    another one.

    >>> print(format_weight({"weight": "w"}))
    examples count alike in these figures; the training weighs them by 'w'
    """
    column = figures.get("weight")
    if column is None:
        return None
    if "train_logloss" not in figures:
        return f"examples count alike in these figures; the training weighs them by {column!r}"
    return (
        f"train, run and model logloss are weighted by {column!r}; in figures of --test and "
        "--valid examples count alike"
    )


def format_stages(figures: JsonView) -> str:
    """Where the time of each pipeline stage went, and a line that says what bounds the run."""
    lines = [f"{'stage':<14}{'busy s':>10}{'waits for input s':>20}{'for output s':>16}"]
    for stage, times in figures["stages"].items():
        lines.append(
            f"{stage:<14}{times['busy_seconds']:>10.2f}{times['wait_input_seconds']:>20.2f}"
            f"{times['wait_output_seconds']:>16.2f}"
        )
    lines.append(f"depth {figures['depth']}; {figures['bound']['text']}")
    return "\n".join(lines)


def format_evaluations(evaluations: Sequence[JsonView], best: JsonView) -> str:
    """The validations of a model's life, one line each; of many the first, the best and the last.

    >>> entries = [{"examples": 100 * n, "auc": n / 10, "logloss": 1 / n} for n in (1, 2)]
    >>> print(format_evaluations(entries, entries[1]))
    validated after      auc  logloss
                100  0.10000  1.00000
                200  0.20000  0.50000  best
    """
    lines = [f"{'validated after':>15}{'auc':>9}{'logloss':>9}"]
    last = len(evaluations) - _MAX_EVALUATIONS // 2
    for number, entry in enumerate(evaluations):
        if _MAX_EVALUATIONS // 2 <= number < last and entry != best:
            if number == _MAX_EVALUATIONS // 2:
                lines.append(f"{'...':>15}")
            continue
        mark = "  best" if entry == best else ""
        lines.append(f"{entry['examples']:>15,}{_scores(entry)}{mark}")
    return "\n".join(lines)


def format_progressive(entries: Sequence[JsonView]) -> str:
    """How the model scored each file before it was trained on it, one line each.

    >>> print(format_progressive([{"file": "a.tsv", "examples": 8, "auc": 0.5, "logloss": 0.69}]))
    scored before training    examples      auc  logloss
    a.tsv                            8  0.50000  0.69000
    """
    lines = [f"{'scored before training':<22}{'examples':>12}{'auc':>9}{'logloss':>9}"]
    lines += [f"{entry['file']:<22} {entry['examples']:>11,}{_scores(entry)}" for entry in entries]
    return "\n".join(lines)


def _scores(entry: JsonView) -> str:
    """AUC and logloss in their columns, apart also where a figure is wider than its own.

    >>> _scores({"auc": 0.52946, "logloss": 100.98078})
    '  0.52946  100.98078'
    """
    return f"  {entry['auc']:>7.5f}  {entry['logloss']:>7.5f}"


def _headline(figures: JsonView) -> list[tuple[str, str]]:
    formats = {
        "examples": "{:,.0f}",
        "seconds": "{:.2f}",
        "examples_per_second": "{:,.0f}",
        "train_logloss": "{:.5f}",
        "run_logloss": "{:.5f}",
        "model_examples": "{:,.0f}",
        "model_logloss": "{:.5f}",
        "test_auc": "{:.5f}",
        "test_logloss": "{:.5f}",
        "test_normalized_entropy": "{:.5f}",
        "test_gauc": "{:.5f}",
        "test_groups": "{:,.0f}",
        "test_calibration": "{:.4f}",
        "auc": "{:.5f}",
        "logloss": "{:.5f}",
        "normalized_entropy": "{:.5f}",
        "gauc": "{:.5f}",
        "groups": "{:,.0f}",
        "calibration": "{:.4f}",
    }
    is_one_run = figures.get("model_examples") == figures.get("examples")  # then one mean
    hidden = (
        ("run_logloss", "model_examples", "model_logloss") if is_one_run else ("train_logloss",)
    )
    lines = [
        (name.replace("_", " "), pattern.format(figures[name]))
        for name, pattern in formats.items()
        if figures.get(name) is not None and name not in hidden
    ]
    for name in ("skipped_lines", "test_skipped_lines"):
        if figures.get(name):
            lines.append((name.replace("_", " "), f"{figures[name]:,}"))
    lines.append(("rows", f"{figures['rows']:,}"))
    lines.append(("peak memory, MiB", f"{figures['peak_rss_bytes'] / 2**20:,.0f}"))
    return lines
