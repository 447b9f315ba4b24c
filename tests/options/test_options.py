"""Options of `hps train`: flags, fields and page say the same, and each field holds its limits.

Above it: pytest. Below it: hps/options/, hps/cli/option_flags.py.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import make_parser
from hps.options.declare import Option, options_of
from hps.options.page import page
from hps.train import TrainOptions

ROOT = Path(__file__).resolve().parents[2]
DECLARED: dict[str, tuple[Any, Option]] = {
    name: (default, option) for name, default, option in options_of(TrainOptions)
}
WRONG: dict[str, list[Any]] = {
    "a whole number": [-1, 2**70, 1.5, True, "3", None, float("nan")],
    "a number": [-1e9, "0.5", True, None, float("nan"), float("inf")],
    "True or False": [1, "yes", None],
    "one of": ["x", "", 3, None],
    "the path": ["", 3, "a\0b"],
    "a text": ["", 3],
    "a list": ["x", [0], 5],
    "a size": [0, -1, "1XB", True],
    "cuda": ["gpu", 0, ""],
    "the tag": ["", 1.5, -1],
}


def options(**given: Any) -> TrainOptions:
    return TrainOptions(**{"data": ["log"], "store": "store", **given})


def test_every_field_is_declared() -> None:
    own = [one.name for one in fields(TrainOptions) if one.name not in DECLARED]
    assert own == ["remote", "held_out", "followed"]


def test_flags_that_are_not_given_are_the_fields_defaults() -> None:
    parsed = vars(make_parser("train").parse_args(["train", "log"]))
    for name, (default, option) in DECLARED.items():
        if name == "data":
            continue
        assert parsed[name] == (list(default) if option.many == "+" and default == () else default)


@pytest.mark.parametrize("name", DECLARED)
def test_a_default_is_within_its_limits(name: str) -> None:
    default, option = DECLARED[name]
    if default is not None:
        option.check(name, default)


@pytest.mark.parametrize("name", DECLARED)
def test_a_value_outside_of_the_limits_is_refused_by_the_fields_name(name: str) -> None:
    default, option = DECLARED[name]
    kinds = [values for start, values in WRONG.items() if option.kind.wanted.startswith(start)]
    assert len(kinds) == 1, option.kind.wanted
    seen = 0
    for value in kinds[0]:
        given = [value] if option.many else value
        if value is None and (default is None or option.many):
            continue  # not given
        with pytest.raises(hps.ConfigError, match=rf"^{name}\b.* must be ") as raised:
            options(**{name: given})
        assert repr(value) in str(raised.value)
        seen += 1
    assert seen >= 2


@pytest.mark.parametrize("name", [name for name, (_, one) in DECLARED.items() if one.many])
@pytest.mark.parametrize("value", ["log.tsv", Path("log.tsv"), 3])
def test_one_value_is_no_list(name: str, value: Any) -> None:
    with pytest.raises(hps.ConfigError, match=rf"^{name}=.* must be a list, each of it "):
        options(**{name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    made = options(seed=np.uint64(2**64 - 1), lr=np.float32(0.5), batch_size=np.int32(7))
    assert (made.seed, made.lr, made.batch_size) == (2**64 - 1, 0.5, 7)


def test_the_page_is_that_of_the_declarations() -> None:
    found = (ROOT / "docs/options.md").read_text()
    assert found == page(), "run: python -m hps.options.page > docs/options.md"
    for name in DECLARED:
        assert f"| `{name}` |" in found
