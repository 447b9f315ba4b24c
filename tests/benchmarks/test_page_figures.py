"""The figures of the README and of docs/benchmarks.md are those of benchmarks/results/.

Above it: pytest. Below it: page_figures.py, which says which figure each number is. A row of which
it does not is named in NOT_HELD: nobody but a reader compares it with the results.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks import page_figures
from tests.benchmarks.page_figures import B, V, rows_of

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d)")


def table_rows(page: str) -> Iterator[list[str]]:
    """The cells of each row of the tables of a page, but of heads."""
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines):
        is_head = line.startswith("| ---") or lines[number + 1 : number + 2] == []
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("|") and not is_head and not below.startswith("| ---"):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def numbers_of(cell: str) -> list[str]:
    return [number.replace(",", "") for number in _NUMBER.findall(cell)]


def is_shown(printed: str, figure: float) -> bool:
    """Whether a number on a page is a figure, rounded as the page has it.

    Two digits of a whole number count, or all that are not zeros at its end.
    """
    digits = printed.lstrip("+-")
    if "." in digits:
        unit = 10.0 ** -len(digits.partition(".")[2])
    else:
        unit = 10.0 ** min(len(digits) - len(digits.rstrip("0")), max(len(digits) - 2, 0))
    return abs(float(printed) - figure) <= unit * 0.5000001


README_ROWS = {row[0]: row for row in table_rows("README.md") if len(row) == 3}
PAGE_ROWS: dict[str, list[str]] = {}
for _row in table_rows("docs/benchmarks.md"):
    PAGE_ROWS.setdefault(_row[0], _row)  # a second row of the same words is not looked at
# Page -> the logs of its table of quality, and the fields of a cell.
QUALITY = {
    "README.md": (
        ["movielens", "movielens_time", "flights", "churn", "lectures"],
        (V, "difference"),
    ),
    "docs/benchmarks.md": (
        ["movielens", "movielens_time", "churn", "flights", "lectures"],
        (V, B, "low", "high"),
    ),
}


def compared(cells: list[str], figures: list[float]) -> None:
    printed = [number for cell in cells for number in numbers_of(cell)]
    assert len(printed) == len(figures), (printed, figures)
    wrong = [
        (number, figure)
        for number, figure in zip(printed, figures, strict=True)
        if not is_shown(number, figure)
    ]
    assert wrong == []


@pytest.mark.parametrize("row", page_figures.README)
def test_the_readme_has_the_figures_of_record(row: str) -> None:
    compared(README_ROWS[row][-1:], page_figures.README[row])


@pytest.mark.parametrize("row", page_figures.BENCHMARKS)
def test_the_page_of_figures_has_those_of_record(row: str) -> None:
    compared(PAGE_ROWS[row][1:], page_figures.BENCHMARKS[row])


def test_every_row_with_figures_is_held_or_is_named_as_not_held() -> None:
    quality = {f"`{row['model']}`" for row in rows_of("quality")}
    quality |= {f"`{row['data']}`" for row in rows_of("defaults")}
    quality |= {"logistic regression, hashed features"}
    readme = [row for row in table_rows("README.md") if len(row) == 3 and "`cuda`" not in row[0]]
    found = {
        "README.md": ([row[0] for row in readme if numbers_of(row[-1])], page_figures.README),
        "docs/benchmarks.md": (
            [
                row[0]
                for row in table_rows("docs/benchmarks.md")
                if any(numbers_of(cell) for cell in row[1:])
            ],
            page_figures.BENCHMARKS,
        ),
    }
    for page, (firsts, held) in found.items():
        rest = [first for first in firsts if first not in held and first not in quality]
        assert rest == page_figures.NOT_HELD[page]


@pytest.mark.parametrize("page", QUALITY)
def test_the_tables_of_quality_have_the_figures_of_record(page: str) -> None:
    logs, fields = QUALITY[page]
    models = {f"`{row['model']}`" for row in rows_of("quality")}
    names = {"logistic regression, hashed features", *models}
    rows = [row for row in table_rows(page) if row[0] in names and len(row) == 6]
    assert {row[0] for row in rows} == names and len(models) == 8
    for row in rows:
        compared(row[1:], page_figures.quality_row(row[0], logs, *fields))


def test_the_table_of_defaults_has_the_figures_of_record() -> None:
    logs = {f"`{row['data']}`" for row in rows_of("defaults")}
    rows = [row for row in table_rows("docs/benchmarks.md") if row[0] in logs and len(row) == 3]
    assert {row[0] for row in rows} == logs and len(logs) == 14
    for row in rows:
        compared(row[1:], page_figures.defaults_row(row[0].strip("`")))


def test_rounding_is_told_from_another_figure() -> None:
    assert is_shown("2.7", 2.669) and not is_shown("2.7", 2.759)
    assert is_shown("180", 179.5) and not is_shown("180", 186.0)
    assert is_shown("129", 128.53) and not is_shown("129", 127.9)
    assert is_shown("-0.003", -0.00345) and not is_shown("0.003", -0.003)
    assert numbers_of("1 / 8: 0.97 (-0.0004 to +5,000 p99 v2)") == [
        "1", "8", "0.97", "-0.0004", "+5000",
    ]  # fmt: skip
