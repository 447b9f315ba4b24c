"""Lines of libsvm, libffm and slots that do not begin with a label.

Above it: pytest. Below it: hps/reader/, csrc/reader/token_parser.cc.
"""

from pathlib import Path
from typing import Any

import pytest
from reader_twin import (
    LIBFFM_LINES,
    LIBSVM_LINES,
    NAMED_SLOT_LINES,
    SLOT_LINES,
    Example,
    assert_same,
    examples_of,
    open_log,
    parse_twin,
)

import hps

LOGS = {
    "libsvm": ("libsvm", LIBSVM_LINES, {}),
    "libffm": ("libffm", LIBFFM_LINES, {}),
    "slots": ("slots", SLOT_LINES, {"slot_layout": "key:slot"}),
    "named slots": ("slots", NAMED_SLOT_LINES, {"slot_layout": "slot:key"}),
    "named slots, by their numbers": ("slots", NAMED_SLOT_LINES, {}),
}


def without_label(line: str) -> str:
    return line.split(maxsplit=1)[1]


def read(path: Path, kind: str, *lines: str, **options: Any) -> list[Example]:
    path.write_text("".join(f"{line}\n" for line in lines))
    reader = open_log(path, kind, needs_labels=False, **options)
    return examples_of(reader, reader.features)


@pytest.mark.parametrize("log", LOGS)
def test_a_line_without_its_label_is_the_same_example_of_label_zero(
    tmp_path: Path, log: str
) -> None:
    kind, lines, options = LOGS[log]
    some = [line for line in lines if len(line.split("#")[0].split()) > 1]
    expected = [parse_twin(kind, line) for line in some]
    assert_same(read(tmp_path / "log", kind, *some, **options), expected)  # labels are read
    mixed = [line if row % 2 else without_label(line) for row, line in enumerate(some)]
    for row, example in enumerate(expected):
        example.label = example.label if row % 2 else 0.0
    assert_same(read(tmp_path / "log", kind, *mixed, **options), expected)
    spaced = [f"  {without_label(line)}\t" for line in some]
    for example in expected:
        example.label = 0.0
    assert_same(read(tmp_path / "log", kind, *spaced, **options), expected)


@pytest.mark.parametrize("log", LOGS)
def test_where_labels_are_needed_such_a_line_is_named(tmp_path: Path, log: str) -> None:
    kind, lines, options = LOGS[log]
    path = tmp_path / "log"
    path.write_text(f"{lines[0]}\n\n{without_label(lines[0])}\n")
    with pytest.raises(hps.DataError, match=r"log, line 3: the line begins with .*expected .*0"):
        list(open_log(path, kind, dense=2 if "named" in log else None, **options))


@pytest.mark.parametrize(
    ("kind", "line", "why"),
    [
        ("libsvm", "2 3:1", "label '2' is not 0, 1 or -1"),
        ("libsvm", "x", "label 'x' is not"),
        ("libsvm", "# 3:1", "label '#' is not"),
        ("libsvm", "#3:1 4:1", "label '#3:1' is not"),
        ("libffm", "3:1 4:5:1", "token '3:1' is not field:index:value"),
        ("slots", "click:2 3:4", "the line begins with 'click:2'"),
        ("slots", "label: 3:4", "the line begins with 'label:'"),
        ("slots", "3", "the line begins with '3'"),
        ("slots", "3:4 5:6", r"the line has no label, .* \(slot_layout says it\)"),
    ],
)
def test_what_is_neither_a_label_nor_a_token_is_named(
    tmp_path: Path, kind: str, line: str, why: str
) -> None:
    good = {"libsvm": "1 3:1", "libffm": "1 3:1:1", "slots": "0:1 3:4"}[kind]
    with pytest.raises(hps.DataError, match=f"log, line 2: {why}"):
        read(tmp_path / "log", kind, good, line)


@pytest.mark.parametrize("log", ["libsvm", "libffm", "slots", "named slots"])
def test_a_sample_keeps_an_example_with_its_label_or_without(tmp_path: Path, log: str) -> None:
    kind = log.split()[-1]
    lines = {
        "libsvm": [f"1 {row}:1 7:2" for row in range(300)],
        "libffm": [f"1 5:{row}:1 6:7:2" for row in range(300)],
        "slots": [f"0:1 {row}:5 7:6" for row in range(2, 300)],
        "named slots": [f"click:0 5:{row} 6:7" for row in range(300)],
    }[log]
    options = LOGS[log][2]
    kept = read(tmp_path / "log", kind, *lines, hash_range=(0, 0.3), **options)
    assert 40 < len(kept) < 150
    for example in kept:
        example.label = 0.0
    bare = [without_label(line) for line in lines]
    assert_same(read(tmp_path / "log", kind, *bare, hash_range=(0, 0.3), **options), kept)
