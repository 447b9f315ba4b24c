"""[fields] of a features file: what may be said, where a fault is, and what a dense field becomes.

Above it: pytest. Below it: hps/features/.
"""

from pathlib import Path

import pytest
import torch

import hps
from hps.config import TableConfig
from hps.features import Column, Scale
from hps.features.open import open_with_features
from hps.features.transform import FeatureTransform
from hps.reader import Reader, ReaderConfig

TEXT = """
[fields]
user = "0-942"
item = ["943-2624", 18446744073709551615]
"d \u00e9" = 5000
other = "*"
"""


def read(log: Path, text: str, kind: str = "libsvm", **config: object) -> Reader:
    return open_with_features(
        log,
        tables=[TableConfig(name="features", dim=2)],
        config=ReaderConfig(**{"format": kind, **config}),  # type: ignore[arg-type]
        features=hps.Features.from_toml(text, "my.toml"),
    )


def test_what_is_written_is_read_as_it_was() -> None:
    wide = TEXT.replace("18446744073709551615", '"18446744073709551615"')
    described = hps.Features.from_toml(wide)
    assert described.fields == {
        "user": "0-942",
        "item": ["943-2624", "18446744073709551615"],
        "d \u00e9": "5000",
        "other": "*",
    }
    assert hps.Features.from_toml(described.to_toml()) == described
    assert hps.Features.from_dict(described.to_dict()) == described
    same = hps.Features(fields={**described.fields, "user": ["500-942", "0-499"]})
    assert not same.is_same(described)  # ranges are kept as they were written, but in order
    assert same.fields["user"] == ["0-499", "500-942"]
    turned = hps.Features(fields=dict(reversed(list(described.fields.items()))))
    assert turned == described and not turned.is_same(described)
    assert "fields" not in hps.Features().to_dict()  # transforms keep the names they had


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("fields = 3", 1, "fields: 3 is no table; write NAME = "),
        ("[fields]\na = 1\nb = '5-3'", 3, "fields.b: '5-3' must be an index"),
        ("[fields]\na = '0-5'\n'\u00e9' = [7, 3]", 3, "fields.\u00e9: 3 is in field 'a', too"),
        ("[fields]\n'' = 1", 2, "is not a text of at least one letter"),
        ("[fields.a]\nb = 1", 1, "fields.a: {'b': 1} must be an index"),
    ],
)
def test_a_fault_is_named_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(hps.ConfigError) as refused:
        hps.Features.from_toml(text, "my.toml")
    assert str(refused.value).startswith(f"my.toml, line {line}: ")
    assert words in str(refused.value)


def test_an_index_that_toml_cannot_hold_is_text() -> None:
    with pytest.raises(hps.ConfigError, match="must be an index"):
        hps.Features(fields={"a": 2**64})
    assert hps.Features(fields={"a": 2**64 - 1}).fields == {"a": "18446744073709551615"}


def test_what_is_said_of_a_dense_field_is_said_of_each_of_its_indices(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1 10:2 11:30 3:1\n0 10:4 12:-50\n")
    text = """
        [fields]
        x = "10-12"
        user = "*"
        [columns.x]
        kind = "dense"
        clip = [-9, 9]
        normalise = true
        [columns."x 11"]
        kind = "dense"
        normalise = {mean = 10, std = 10}
    """
    reader = read(log, text)
    assert [use.name for use in reader.columns if use.kind == "dense"] == ["x 10", "x 11", "x 12"]
    torch.testing.assert_close(
        next(reader).dense, torch.tensor([[-1.0, 2.0, 1.0], [1.0, -1.0, -1.0]])
    )
    before = reader.transform
    assert isinstance(before, FeatureTransform)
    assert before.measured.column("x 10") == Column(
        name="x 10", kind="dense", clip=[-9, 9], normalise=Scale(3.0, 1.0)
    )
    log.write_text("1 10:7 11:30 3:1\n0 10:7 12:-50\n")
    again = open_with_features(
        log,
        tables=[TableConfig(name="features", dim=2)],
        config=ReaderConfig(format="libsvm"),
        features=hps.Features.from_toml(text),
        before=before,
    )
    assert next(again).dense[:, 0].tolist() == [4.0, 4.0]  # by what was measured before


@pytest.mark.parametrize(
    ("text", "kind", "config", "why"),
    [
        (TEXT, "libffm", {}, "fields: they are of the indices of libsvm, and the log is read as"),
        ("[fields]\na = '*'", "libsvm", {"fields": {"b": "*"}}, "leave one of the two out"),
        ("[columns.a]\nkind = 'dense'", "libsvm", {}, "the log has no column 'a'"),
        ("[columns.index]\nkind = 'dense'", "libsvm", {}, "but in a log of libsvm it is a feature"),
        (
            "[fields]\na = '*'\n[columns.b]\nkind = 'categorical'",
            "libsvm",
            {},
            "the log has no column 'b'",
        ),
        ("[fields]\na = '*'\n[columns.a]\nkind = 'dense'", "libsvm", {}, "the rest of the indices"),
        (
            "[fields]\na = 1\nb = '*'\n[columns.a]\nkind = 'dense'\nmissing = 3",
            "libsvm",
            {},
            "columns.a.missing: in libsvm no number is missing",
        ),
        (
            "[fields]\na = 1\nb = '*'\n[columns.a]\nkind = 'categorical'",
            "libsvm",
            {"fields": {"a": 1, "b": "*"}, "dense_columns": ["a"]},
            "it is said to be dense",
        ),
        ("[fields]\na = 3\n[columns.a]\nkind = 'dense'", "libsvm", {}, "no feature"),
    ],
)
def test_what_does_not_fit_the_log_is_refused(
    tmp_path: Path, text: str, kind: str, config: dict[str, object], why: str
) -> None:
    (tmp_path / "log").write_text("1 3:1\n" if kind == "libsvm" else "1 1:3:1\n")
    with pytest.raises(hps.ConfigError, match=why):
        next(read(tmp_path / "log", text, kind, **config))


def test_a_field_that_is_ignored_is_no_feature_and_its_indices_no_fault(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 3:1 7:1\n0 4:1\n")
    text = "[fields]\na = '0-5'\nb = 7\n[columns.b]\nkind = 'ignored'"
    reader = read(tmp_path / "log", text)
    assert reader.features == {"features": ("a",)}
    assert next(reader).features["features"].keys_L.tolist() == [3, 4]
