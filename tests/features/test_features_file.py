"""A features file: read, written, and refused with the line and what is allowed there.

Above it: pytest. Below it: hps/features/features.py, column.py, rules.py, toml_text.py.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hps
from hps.features import KINDS, Column, Cross, Scale, Table

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_ASCENDING = st.lists(_NUMBERS, max_size=4, unique=True).map(sorted)


def _with(kind: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind)}, optional=keys)


_FOLDED = {"hash_buckets": st.integers(1, 2**62), "missing": st.sampled_from(["drop", "key"])}
_DENSE = {
    "log": st.booleans(),
    "clip": st.lists(_NUMBERS, min_size=2, max_size=2, unique=True).map(sorted),
    "missing": _NUMBERS,
    "normalise": st.one_of(
        st.booleans(), st.builds(Scale, _NUMBERS, st.floats(1e-300, 1e300, exclude_min=True))
    ),
}
_BUCKETS = st.one_of(st.integers(2, 1000), _ASCENDING)
_SAID = st.one_of(
    *(_with(kind) for kind in ("ignored",)),
    _with("categorical", **_FOLDED),
    _with("sequence", **_FOLDED, max_length=st.integers(1, 2**20)),
    _with("dense", **_DENSE),
    _with("dense", buckets=_BUCKETS, missing=_NUMBERS),
    _with("dense", **_DENSE).map(lambda said: {**said, "buckets": [1.0], "keep": True}),
)


@st.composite
def features(draw: st.DrawFn) -> hps.Features:
    said = draw(st.dictionaries(_NAMES, _SAID, max_size=5))
    crossed = [
        name
        for name, of_column in said.items()
        if of_column["kind"] in ("categorical", "sequence") or "buckets" in of_column
    ]
    names = draw(st.lists(_NAMES.filter(lambda name: name not in said), max_size=2, unique=True))
    parts = [*crossed, "other", "another"]
    crosses = [
        Cross(
            name=name,
            columns=draw(st.lists(st.sampled_from(parts), min_size=2, max_size=3, unique=True)),
            hash_buckets=draw(st.none() | st.integers(1, 2**62)),
            max_length=draw(st.none() | st.integers(1, 2**16)),
        )
        for name in names
        if not {"other", "another"} & {*said, name}
    ]
    columns = [Column(name=name, **of_column) for name, of_column in said.items()]
    return hps.Features(columns=columns, crosses=crosses)


@given(features())
def test_what_is_written_is_read_as_it_was(described: hps.Features) -> None:
    text = described.to_toml()
    again = hps.Features.from_toml(text)
    assert again == described and again.to_toml() == text
    assert hps.Features.from_dict(described.to_dict()) == described
    assert {"columns": {}, "crosses": {}, **tomllib.loads(text)} == described.to_dict()


def test_a_file_as_people_write_it() -> None:
    described = hps.Features.from_toml(
        """
        version = 1                      # of this layout
        columns.label = {kind = "label"}
        [columns.I1]
        kind = "dense"
        log = true
        clip = [
            -1,
            1e3,
        ]
        normalise = {mean = 1, std = 2.5}
        [columns."I 2"]
        kind = "dense"
        buckets = 4
        [columns.'C"é']
        kind = "sequence"
        max_length = 20
        keep = "last"
        [crosses.place]
        columns = ["C1", 'C"é', "I 2"]
        """
    )
    assert [column.name for column in described.columns] == ["label", "I1", "I 2", 'C"é']
    assert described.columns[1].clip == (-1.0, 1000.0)
    assert described.columns[1].normalise == Scale(1.0, 2.5)
    assert described.crosses[0].columns == ("C1", 'C"é', "I 2")
    assert hps.Features.from_toml("") == hps.Features()


COLUMN = "[columns.C1]\n"
# (text, line that is named, words of the message)
REFUSED = [
    ("x", 0, "it is not TOML"),
    ("\n\n[columns.C1\n", 0, "not TOML.*line 3"),
    ("version = 2", 1, "version: 2 must be 1"),
    ("version = true", 1, "version: True must be 1"),
    ("[colums.C1]\nkind = 'dense'", 1, "no such key; there are version, columns, crosses, tables"),
    ("columns = 3", 1, r"columns: 3 is no table; write \[columns.NAME\]"),
    ("[columns]\nC1 = 'dense'", 2, r"columns.C1: 'dense' is no table"),
    (COLUMN, 1, "columns.C1.kind: there is no kind; it must be one of categorical, sequence"),
    (f"{COLUMN}kind = 'text'", 2, "kind = 'text'; it must be one of categorical"),
    (f"{COLUMN}kind = ['dense']", 2, r"kind = \['dense'\]; it must be one of"),
    (f"{COLUMN}\nkind = 'dense'\n\nlog = 1", 5, "columns.C1.log: 1 must be true or false"),
    (f"{COLUMN}kind = 'dense'\nclip = [\n2,\n1]", 3, r"\[2, 1\] must be \[low, high\]"),
    (f"{COLUMN}kind = 'dense'\nclip = [1]", 3, r"must be \[low, high\]"),
    (f"{COLUMN}kind = 'dense'\nclip = [0, inf]", 3, r"must be \[low, high\], two finite"),
    (f"{COLUMN}kind = 'dense'\nmissing = nan", 3, "nan must be a finite number"),
    (f"{COLUMN}kind = 'dense'\nmissing = 'key'", 3, "'key' must be a finite number"),
    (f"{COLUMN}kind = 'dense'\nmissing = true", 3, "True must be a finite number"),
    (f"{COLUMN}kind = 'dense'\nbuckets = 1", 3, "1 must be a whole number from 2 to 1000"),
    (f"{COLUMN}kind = 'dense'\nbuckets = [1, 1]", 3, "ascending order, none twice"),
    (f"{COLUMN}kind = 'dense'\nbuckets = true", 3, "True must be a whole number"),
    (f"{COLUMN}kind = 'dense'\nnormalise = {{mean = 1}}", 3, r"must be true \(to be measured\)"),
    (f"{COLUMN}kind = 'dense'\nnormalise = {{mean = 1, std = 0}}", 3, "S above 0"),
    (f"{COLUMN}kind = 'dense'\nkeep = true", 3, "give buckets, too"),
    (f"{COLUMN}kind = 'dense'\nbuckets = 3\nlog = true", 4, "give keep = true"),
    (f"{COLUMN}kind = 'dense'\nhash_buckets = 3", 3, "belongs to kind categorical and sequence"),
    (f"{COLUMN}kind = 'label'\nlog = true", 3, "it takes no other key; it belongs to kind dense"),
    (
        f"{COLUMN}kind = 'group'\ntable = 'a'",
        3,
        'no other key; the groups are a feature, too: write kind = "categorical".*--group C1',
    ),
    (f"{COLUMN}kind = 'group'\nhash_buckets = 9", 3, 'write kind = "categorical" here'),
    ("columns.C1.kind = 'text'", 1, "kind = 'text'; it must be"),
    (
        "[columns]\na = {kind = 'label'}\nC1 = {kind = 'dense', log = 1}",
        3,
        "columns.C1.log: 1 must",
    ),
    (f"{COLUMN}kind = 'group'\nlog = true", 3, "it takes no other key; it belongs to kind dense"),
    (
        "[columns.C1]\nkind = 'categorical'\nvocabulary = '\u2028'\ntable = 1",
        4,
        "1 must be the name of a table",
    ),
    (f"{COLUMN}kind = 'categorical'\nhash_buckets = 0", 3, r"0 must be .* from 1 to 2\^62"),
    (f"{COLUMN}kind = 'categorical'\nhash_buckets = 1.0", 3, r"1.0 must be a whole number"),
    (f"{COLUMN}kind = 'categorical'\nmissing = 0", 3, r'0 must be "drop" \(no key\) or "key"'),
    (f"{COLUMN}kind = 'categorical'\nmax_length = 3", 3, "it belongs to kind sequence"),
    (f"{COLUMN}kind = 'sequence'\nkeep = 'last'", 3, "give max_length, too"),
    (f"{COLUMN}kind = 'sequence'\nmax_length = 2\nkeep = true", 4, '"first" or "last"'),
    (f"{COLUMN}kind = 'sequence'\npooling = 'max'", 3, '\'max\' must be "sum" .* or "mean"'),
    (f"{COLUMN}kind = 'sequence'\npooling = ['mean']", 3, r"\['mean'\] must be \"sum\""),
    (f"{COLUMN}kind = 'categorical'\npooling = 'mean'", 3, "it belongs to kind sequence"),
    (f"{COLUMN}kind = 'categorical'\ntable = 'é'", 3, "'é' must be the name of a table: 1 to 64"),
    (f"{COLUMN}kind = 'categorical'\ntable = ''", 3, "'' must be the name of a table"),
    (f"{COLUMN}kind = 'categorical'\ntable = 1", 3, "1 must be the name of a table"),
    (f"{COLUMN}kind = 'categorical'\ntable = '{'a' * 65}'", 3, "must be the name of a table"),
    (f"{COLUMN}kind = 'label'\ntable = 'a'", 3, "it belongs to kind categorical and sequence and"),
    (f"{COLUMN}kind = 'dense'\ntable = 'a'", 3, "it is for the rows of buckets; give buckets"),
    (f"{COLUMN}kind = 'dense'\ndim = 4", 3, "it is for the rows of buckets; give buckets"),
    (f"{COLUMN}kind = 'categorical'\ndim = 0", 3, "0 must be a whole number from 1 to 4096"),
    (f"{COLUMN}kind = 'categorical'\ndim = 4097", 3, "4097 must be a whole number from 1 to 4096"),
    (f"{COLUMN}kind = 'categorical'\ndim = 8.0", 3, r"8\.0 must be a whole number"),
    (f"{COLUMN}kind = 'categorical'\ndim = true", 3, "True must be a whole number"),
    (f"{COLUMN}kind = 'categorical'\ntable = 'a'\ndim = 8", 4, r"that of table 'a'; write it ther"),
    ("[columns.'last items']\nkind = 'sequence'\ndim = 8", 3, "give it a table instead"),
    (f"{COLUMN}kind = 'categorical'\ndim = 8\n[tables.C1]", 3, r"\[tables.C1\] speaks of that"),
    (
        f"{COLUMN}kind = 'categorical'\ndim = 8\n[columns.b]\nkind = 'sequence'\ntable = 'C1'",
        3,
        r"columns\.C1\.dim: .* and columns\.b speaks of that table",
    ),
    (
        f"{COLUMN}kind = 'categorical'\ntable = 'x'\n[crosses.x]\ncolumns = ['a', 'b']\ndim = 8",
        6,
        r"crosses\.x\.dim: .* and columns\.C1 speaks of that table",
    ),
    ("[tables.'a b']", 1, "the name 'a b' must be 1 to 64 letters of ASCII"),
    ("[tables]\na = 8", 2, r"tables.a: 8 is no table of keys; write \[tables.a\]"),
    ("tables = 8", 1, r"tables: 8 is no table; write \[tables.NAME\] for each"),
    ("[tables.a]\ndim = -1", 2, "tables.a.dim: -1 must be a whole number from 1 to 4096"),
    ("[tables.a]\nlr = 0.1", 2, "tables.a.lr: a table has no such key: it takes dim"),
    ("[columns.a]\nkind='label'\n[columns.b]\nkind='label'", 4, "are all label; one may be"),
    ("[columns.a]\nkind='group'\n[columns.b]\nkind='group'", 4, "are all group; one may be"),
    ("[crosses.x]", 1, "crosses.x: there are no columns; it must have a list of 2 to 8 names"),
    ("[crosses.x]\ncolumns = ['a']", 2, "a list of 2 to 8 names"),
    ("[crosses.x]\ncolumns = ['a', 'a']", 2, "none twice"),
    ("[crosses.x]\ncolumns = ['a', 'b']\nkeep = 'last'", 3, "a cross has no such key"),
    ("[crosses.x]\ncolumns = ['a', 'b']\nmax_length = 0", 3, "from 1 to 65536"),
    (f"[crosses.C1]\ncolumns = ['a', 'b']\n{COLUMN}kind = 'categorical'", 1, "has this name"),
    (f"[crosses.x]\ncolumns = ['a', 'C1']\n{COLUMN}kind = 'dense'", 2, "'C1' is dense; give it"),
    (f"[crosses.x]\ncolumns = ['a', 'C1']\n{COLUMN}kind = 'ignored'", 2, "of kind 'ignored'"),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSED)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, words: str) -> None:
    where = f"my.toml, line {line}: " if line else "my.toml: "
    with pytest.raises(hps.ConfigError, match=words) as refused:
        hps.Features.from_toml(text, "my.toml")
    assert str(refused.value).startswith(where)


def test_tables_dims_and_poolings_are_read_and_written() -> None:
    described = hps.Features.from_toml(
        """
        [tables.items]
        dim = 32
        [tables.rest]
        [columns.item]
        kind = "categorical"
        table = "items"
        [columns.tags]
        kind = "sequence"
        table = "items"
        pooling = "mean"
        [columns.user]
        kind = "categorical"
        dim = 8
        [columns.age]
        kind = "dense"
        buckets = 4
        table = "rest"
        [crosses.both]
        columns = ["item", "age"]
        dim = 2
        pooling = "sum"
        """
    )
    tables = {name: described.table_of(name, "all") for name in ("item", "tags", "user", "age")}
    assert tables == {"item": "items", "tags": "items", "user": "user", "age": "rest"}
    assert described.table_of("both", "all") == "both" and described.table_of("x", "all") == "all"
    dims = [described.dim_of(name) for name in ("items", "rest", "user", "both", "all", "item")]
    assert dims == [32, None, 8, 2, None, None]
    assert [described.is_mean(name) for name in ("tags", "item", "both")] == [True, False, False]
    assert hps.Features.from_toml(described.to_toml()) == described
    assert hps.Features.from_dict(described.to_dict()).is_same(described)
    other = replace(described, tables=[Table(name="items", dim=31), *described.tables[1:]])
    assert not other.is_same(described)
    assert replace(described, tables=described.tables[::-1]).is_same(described)
    with pytest.raises(hps.ConfigError, match=r"tables: \['items'\] are described twice"):
        replace(described, tables=[Table(name="items"), Table(name="items")])
    with pytest.raises(hps.ConfigError, match=r"tables\.items\.dim: 0 must be"):
        Table(name="items", dim=0)


def test_without_tables_a_description_is_what_it_was() -> None:
    """The name of a transform, which positions keep, is made of it."""
    described = hps.Features.from_toml("columns.C1 = {kind = 'categorical'}")
    assert described.to_dict() == {
        "version": 1,
        "columns": {"C1": {"kind": "categorical"}},
        "crosses": {},
    }


def test_the_example_of_the_page_is_a_features_file() -> None:
    page = Path(__file__).parents[2] / "docs" / "features.md"
    text = page.read_text().split("```toml\n")[1].split("```")[0]
    kinds = {column.kind for column in hps.Features.from_toml(text).columns}
    assert kinds == {"label", "dense", "categorical", "sequence", "ignored"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "features.toml"
    with pytest.raises(hps.StoreError, match=r"cannot read .*No such file"):
        hps.Features.load(file)
    file.write_bytes(b"\xff")
    with pytest.raises(hps.ConfigError, match="it is not UTF-8"):
        hps.Features.load(file)
    file.write_bytes(b"\xef\xbb\xbf[columns.C1]\r\nkind = 'ignored'\r\n")  # as Windows writes it
    assert hps.Features.load(file).of_kind("ignored") == ["C1"]
    file.write_text("[columns.C1]\nkind = 'x'")
    with pytest.raises(hps.ConfigError, match=r"features.toml, line 2: columns.C1.kind"):
        hps.Features.load(file)


def test_descriptions_of_python_are_checked_likewise() -> None:
    with pytest.raises(hps.ConfigError, match=r"columns.C1.clip: .* must be"):
        Column(name="C1", kind="dense", clip=[3, 2])
    with pytest.raises(hps.ConfigError, match="not a text of at least one letter"):
        Column(name="", kind="dense")
    with pytest.raises(hps.ConfigError, match=r"crosses\.x\.columns"):
        Cross(name="x", columns="ab")
    twice = [Column(name="C1", kind="ignored")] * 2
    with pytest.raises(hps.ConfigError, match=r"\['C1'\] are described twice"):
        hps.Features(columns=twice)
    with pytest.raises(hps.ConfigError, match="is not UTF-8, which TOML is"):
        hps.Features(columns=[Column(name="\udcff", kind="ignored")]).to_toml()
    with pytest.raises(hps.ConfigError, match="is no description of features"):
        hps.Features.from_dict([])  # type: ignore[arg-type]
    assert len(KINDS) == 7


def test_the_order_of_columns_says_nothing_and_that_of_crosses_does() -> None:
    columns = [Column(name=name, kind="ignored") for name in ("a", "b")]
    assert hps.Features(columns=columns).is_same(hps.Features(columns=columns[::-1]))
    crosses = [Cross(name=name, columns=["c", "d"]) for name in ("x", "y")]
    assert not hps.Features(crosses=crosses).is_same(hps.Features(crosses=crosses[::-1]))
