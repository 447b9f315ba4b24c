"""Csv logs: what is read of them, by which rules, from any place on, and what is refused."""

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.reader import ReaderConfig, csv_lines, open_reader
from hps.reader import csv_files as under_test
from tests.reader.ends import Processes, processes

TABLE = hps.TableConfig(name="ads", dim=2)
HEADER = "label,app,os,price,age\n"


def read(log: Path | list[Path], tables: Any = (TABLE,), **config: Any) -> list[hps.Batch]:
    reader = open_reader(log, tables=tables, config=ReaderConfig(**config))
    return list(reader)


def keys_by_row(batch: hps.Batch, table: str = "ads") -> list[list[list[int]]]:
    """Of each feature the keys of each example."""
    ids = batch.features[table]
    keys, offsets = ids.keys_L.numpy().view(np.uint64).tolist(), ids.offsets.tolist()
    bags = [keys[first:end] for first, end in pairwise(offsets)]
    return [bags[place : place + len(batch)] for place in range(0, len(bags), len(batch))]


def write(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


def test_columns_become_what_their_values_are(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log.csv",
        HEADER + '1,7,"a,""b",0.5,30\n0,007,,-1e3,\n-1, x ,é,,31\n',
    )
    reader = open_reader([log], tables=[TABLE], config=ReaderConfig())
    assert reader.format == "csv"
    assert {use.name: use.kind for use in reader.columns} == {
        "label": "label",
        "app": "feature",
        "os": "feature",
        "price": "dense",
        "age": "feature",
    }
    (batch,) = list(reader)
    assert batch.labels.tolist() == [1, 0, 0]
    assert batch.dense.tolist() == [[0.5], [-1000.0], [0.0]]
    of = hps.key_of
    assert keys_by_row(batch) == [
        [[of("app", "7")], [of("app", "007")], [of("app", " x ")]],
        [[of("os", 'a,"b')], [], [of("os", "é")]],
        [[of("age", 30)], [], [of("age", "31")]],
    ]


def test_columns_can_be_named_dense_ignored_or_of_tables(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", HEADER.replace("label", "click") + "1,7,a,0.5,30\n0,8,b,2,\n")
    options = {"label": "click", "dense_columns": ["age", "price"], "ignore": ["os"]}
    (batch,) = read([log], **options, dense_transform="signed_log1p")
    expected = np.log1p(np.array([[30, 0.5], [0, 2]])).astype(np.float32)
    expected[1, 0] = -0.5  # what is missing
    assert np.array_equal(batch.dense.numpy(), expected)
    assert keys_by_row(batch) == [[[hps.key_of("app", 7)], [hps.key_of("app", 8)]]]
    tables = [
        hps.TableConfig(name="apps", dim=2, features=["app"], shared_vocabulary=True),
        hps.TableConfig(name="rest", dim=2, features=["os"]),
    ]
    (batch,) = read([log], tables, label="click", ignore=["age"])
    assert keys_by_row(batch, "apps") == [[[hps.key_of(None, 7)], [hps.key_of(None, 8)]]]
    assert keys_by_row(batch, "rest") == [[[hps.key_of("os", "a")], [hps.key_of("os", "b")]]]


def test_keys_are_those_of_text_whatever_it_looks_like(tmp_path: Path) -> None:
    """Also in a log that has others in the column; 64 bits without a sign; what stands for null."""
    with pytest.raises(hps.ConfigError, match=r"--raw-keys.*csv are text"):
        ReaderConfig(format="csv", hash_keys=False)
    log = write(tmp_path / "log.csv", f"label,id,region,b\n1,{2**64 - 1},NA,1.5\n0,7,nan,NA\n")
    (batch,) = read([log])
    assert batch.dense.tolist() == [[1.5], [0.0]]
    of = hps.key_of
    assert keys_by_row(batch) == [
        [[of("id", 2**64 - 1)], [of("id", 7)]],
        [[of("region", "NA")], [of("region", "nan")]],
    ]
    named = [hps.TableConfig(name="ads", dim=2, features=["id", "region"])]
    other = write(tmp_path / "other.csv", "label,region,id,b\n1,1e5,3.0,2\n0,1.5,null,3.5\n")
    (batch,) = read([other], named)
    assert keys_by_row(batch) == [
        [[of("id", "3.0")], [of("id", "null")]],
        [[of("region", "1e5")], [of("region", "1.5")]],
    ]


def test_a_quote_that_is_never_closed_is_found(tmp_path: Path) -> None:
    text = 'label,b,c\n1,0.5,x\n0,0.5,"yy\n1,0.3,z\n1,0.3,w\n'
    for name, content in (("a.csv", text), ("b.csv", text[:-1])):
        with pytest.raises(
            hps.DataError, match=rf"{name}, line 3: a quote is opened and never closed"
        ):
            read([write(tmp_path / name, content)])
        with pytest.raises(hps.DataError, match="a quote is opened and never closed"):
            read([tmp_path / name], ignore=["c"])
    (batch,) = read([write(tmp_path / "c.csv", 'label,b,c\n1,0.5,x\n0,0.5,"y\n"\n')])
    assert keys_by_row(batch)[0][1] == [hps.key_of("c", "y\n")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("value", ["\n", "\r\n", "\n\n", '"\n', '\n"'])
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_last_value_of_line_ends_and_quotes_is_closed(
    tmp_path: Path, end: str, value: str, is_ended: bool
) -> None:
    quoted = value.replace('"', '""')
    text = f'label,c{end}1,x{end}0,"{quoted}"' + end * is_ended
    (tmp_path / "log.csv").write_bytes(text.encode())
    (batch,) = read([tmp_path / "log.csv"])
    assert keys_by_row(batch)[0] == [[hps.key_of("c", "x")], [hps.key_of("c", value)]]
    (tmp_path / "open.csv").write_bytes(f'label,c{end}1,x{end}0,"{quoted}y{end}'.encode())
    with pytest.raises(hps.DataError, match="a quote is opened and never closed"):
        read([tmp_path / "open.csv"])


def test_quotes_within_values_hide_no_open_one_and_open_none(tmp_path: Path) -> None:
    """A quote that does not begin a value is text, however many there are."""
    odd = 'label,a,b\n1,5" disk,x\n0,q,"x\n1,c,d\n0,e,f\n'
    for content in (odd, odd[:-1], odd.replace("\n", "\r\n"), odd[:-1] + '""'):
        with pytest.raises(hps.DataError, match=r"log.csv, line 3: a quote is opened and never"):
            read([write(tmp_path / "log.csv", content)])
    good = 'label,a,b\n1,5" disk,"x\ny"\n'
    for content in (good, good[:-1], good + "\n", good.replace("\n", "\r\n")):
        (batch,) = read([write(tmp_path / "log.csv", content)])
        assert keys_by_row(batch)[0] == [[hps.key_of("a", '5" disk')]]


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize(
    "row", ['1,"x,0.5,z', '"1,x,0.5,z', '1,"x""y,0.5,z', '1,"x"y,"0.5,z', '1,"x,0.5,z\n1,y"",2,w']
)
def test_a_quote_that_is_never_closed_takes_no_rows_away_in_silence(
    tmp_path: Path, row: str, on_error: str
) -> None:
    """Nor where the row that it makes of all others is a bad one, which may be skipped."""
    rows = "".join(f"{number % 2},a,{number}.5,b\n" for number in range(30))
    text = f"label,b,c,d\n{rows}{row}\n{rows}"
    for content in (text, text[:-1]):
        log = write(tmp_path / "log.csv", content)
        with pytest.raises(
            hps.DataError, match=r"log.csv, line 32 \(row 31\): a quote is opened and never"
        ):
            read([log], on_error=on_error, batch_size=7)


def test_a_bad_row_whose_quotes_are_closed_is_skipped(tmp_path: Path) -> None:
    rows = ['1,"x\ny",0.5', '1,x"y', '1,x,"', '1,"x"",",0.5,"z\n"']
    text = "label,b,c,d\n" + "".join(f"0,a,0.5,b\n{row}\n" for row in rows[:2])
    log = write(tmp_path / "log.csv", f"{text}{rows[3]},4\n0,a,0.5,b\n")
    reader = open_reader([log], tables=[TABLE], config=ReaderConfig(on_error="skip"))
    (batch,) = reader
    assert len(batch) == 3 and reader.counts.skipped == 3


def test_without_labels_no_row_is_passed_over(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "id,a,b\n1,x,y\n2,,\n3,z,w\n")
    with pytest.raises(hps.DataError, match=r"log.csv, line 3 \(row 2\): nothing is in it"):
        read([log], ignore=["id"], needs_labels=False)
    (batch,) = read([log], needs_labels=False)
    assert keys_by_row(batch)[1] == [[hps.key_of("a", "x")], [], [hps.key_of("a", "z")]]


TWO_LINES = '1,"x\ny",0.5\n'


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,y", "line 62 \\(row 31\\): 2 columns"),
        ("2,y,1", "line 62 \\(row 31\\): label 2.0 in column 'label'"),
        ("1,y,z", "line 62 \\(row 31\\): column 'c' holds 'z'"),
        ('1,"y,1', "line 62 \\(row 31\\): a quote is opened and never closed"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_error_names_the_line_of_the_file(
    tmp_path: Path, row: str, words: str, end: str
) -> None:
    """Rows above it take two lines each."""
    text = ("label,b,c\n" + TWO_LINES * 30 + row + "\n").replace("\n", end)
    log = write(tmp_path / "log.csv", text)
    with pytest.raises(hps.DataError, match=words):
        read([log], dense_columns=["c"])


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1 << 20])
def test_lines_are_counted_over_pieces_that_end_anywhere(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_lines, "_READ_BYTES", piece_bytes)
    rows = ['"a""\r\n""b",c\r\n', "\r\n", 'a"\r\n', '"\r\n"x"\n', "last,one"]
    log = write(tmp_path / "log.csv", "h,i\r\n" + "".join(rows))
    lines = [csv_lines.line_of_row(log, row, ",") for row in (0, 1, 2, 3, 4, 5, None)]
    assert lines == [1, 2, 4, 5, 6, 8, 8]


SWALLOWED = '1,"u",0.5,v\n0,"w,0.25,x\n1,y,2.5,z\n0,y",1.5,z\n1,a,0.5,b\n'


@pytest.mark.parametrize("ignored", [[], ["b"]])
def test_quotes_that_make_one_value_of_the_lines_between_are_warned_of(
    tmp_path: Path, ignored: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = write(tmp_path / "log.csv", "label,b,c,d\n" + SWALLOWED)
    (batch,) = read([log], ignore=ignored)
    assert len(batch) == 3
    (record,) = caplog.records
    assert "log.csv, line 3 (row 2): one value is a quoted text of 3 lines" in record.getMessage()


@pytest.mark.parametrize(
    "text",
    [
        'label,b,c\n1,"a, b\nc, d\ne, f",g\n',  # no labels in the places of labels
        'label,b,c\n1,"one\ntwo\nthree",g\n',
        'label,b,c\n1,g,"a\nb,c,d"\n',
        'label,b\n1,"a\nb, c"\n',
    ],
)
def test_a_text_of_several_lines_is_not_warned_of(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (batch,) = read([write(tmp_path / "log.csv", text)])
    assert len(batch) == 1 and not caplog.records


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("ends")) as found:
        yield found


def test_a_reader_that_is_left_leaves_no_thread_that_ends_the_process(
    tmp_path: Path, forked: Processes
) -> None:
    log = many(tmp_path / "log.csv", 60_000)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    for path in (log, packed):
        script = (
            "import hps; from hps.reader import ReaderConfig, open_reader; "
            f"reader = open_reader([{str(path)!r}], tables=[hps.TableConfig(name='a', dim=2)], "
            "config=ReaderConfig(batch_size=8)); next(iter(reader))"
        )
        for _ in range(2):
            done = forked.run(script)
            assert done.status == 0, done.err


def test_a_thread_reads_on_while_the_interpreter_ends(tmp_path: Path, forked: Processes) -> None:
    """Where Python starts no more work in threads of its own, blocks are parsed where they are
    asked for."""
    log = many(tmp_path / "log.csv", 60_000)
    script = f"""
import threading, hps
from hps.reader import ReaderConfig, open_reader
tables = [hps.TableConfig(name="a", dim=2)]
reader = open_reader([{str(log)!r}], tables=tables, config=ReaderConfig(threads=2))
count = len(next(reader))
def work():
    threading.main_thread().join()
    print(count + sum(map(len, reader)))
threading.Thread(target=work).start()
"""
    done = forked.run(script)
    assert (done.status, done.out) == (0, "60000\n"), done.err


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_delimiter_is_told_by_the_header(tmp_path: Path, delimiter: str, end: str) -> None:
    lines = ["label,a,b", "1,x,0.5", "0,y,1.5"]
    text = end.join(lines).replace(",", delimiter)
    log = write(tmp_path / "log.csv", "\ufeff" + text)  # no end of the last line
    (batch,) = read([log])
    assert batch.dense.flatten().tolist() == [0.5, 1.5] and batch.labels.tolist() == [1, 0]
    (same,) = read([log], format="csv", delimiter=delimiter)
    assert torch.equal(same.features["ads"].keys_L, batch.features["ads"].keys_L)


def many(path: Path, num_rows: int = 500, seed: int = 0, bad: bool = False) -> Path:
    """Rows of all lengths, quoted line ends and blank lines among them."""
    generator = np.random.default_rng(seed)
    lines = ["label,a,b,c"]
    for row in range(num_rows):
        if row % 41 == 3:
            lines.append("")
        if bad and row % 29 in (0, 1, 5):
            lines.append(["1,2", "7,x,1,1", "1,x,1,y,z,0.5"][row % 3])
        text = (
            '"' + "n\n" * int(generator.integers(0, 4)) + '"' if row % 7 == 0 else "w" * (row % 9)
        )
        lines.append(f"{row % 2},{text},{generator.integers(0, 50)},{row / 8}")
    if bad:
        lines += ["1,2", "0,x,3,abc"]
    return write(path, "\n".join(lines) + "\n")


def same(batch: hps.Batch, other: hps.Batch) -> bool:
    mine, others = batch.features["ads"], other.features["ads"]
    return (
        torch.equal(mine.keys_L, others.keys_L)
        and torch.equal(mine.offsets, others.offsets)
        and torch.equal(batch.dense, other.dense)
        and torch.equal(batch.labels, other.labels)
        and batch.weights is batch.groups is other.weights is other.groups is None
    )


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("block", [512, 1 << 20])
def test_a_reader_goes_on_from_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, bad: bool
) -> None:
    monkeypatch.setattr(under_test, "BLOCK_BYTES", block)
    logs = [many(tmp_path / "0.csv", bad=bad), many(tmp_path / "1.csv", 70, 1, bad)]
    on_error = "skip" if bad else "raise"
    config = ReaderConfig(batch_size=64, epochs=2, on_error=on_error, dense_columns=["c"])
    reader = open_reader(logs, tables=[TABLE], config=config)
    batches = list(reader)
    assert sum(map(len, batches)) == 2 * 570
    assert np.array_equal(torch.cat([b.dense for b in batches])[:500, 0], np.arange(500) / 8)
    num_bad = 2 * sum(sum(row % 29 in (0, 1, 5) for row in range(n)) + 2 for n in (500, 70))
    assert reader.counts.skipped == (num_bad if bad else 0)
    for place in range(0, len(batches), 3):
        again = open_reader(logs, tables=[TABLE], config=config)
        again.load_state_dict(batches[place].position)
        rest = list(again)
        assert len(rest) == len(batches) - place - 1
        assert all(map(same, rest, batches[place + 1 :]))
        assert [one.position for one in rest] == [one.position for one in batches[place + 1 :]]
        assert again.counts == reader.counts


def test_csv_is_read_as_the_same_columns_of_parquet(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    columns = {
        "label": generator.integers(0, 2, 200),
        "app": generator.integers(0, 30, 200),
        "os": generator.choice(["ios", "android", "é"], 200),
        "price": generator.random(200),
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "log.parquet")
    from pyarrow import csv

    csv.write_csv(table, tmp_path / "log.csv")
    packed = tmp_path / "log.csv.gz"
    text = (tmp_path / "log.csv").read_bytes()
    packed.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]))
    for name in ("log.csv", "log.csv.gz"):
        for mine, others in zip(
            read([tmp_path / name], batch_size=33),
            read([tmp_path / "log.parquet"], batch_size=33),
            strict=True,
        ):
            assert same(mine, others)
    part = [read([tmp_path / "log.csv"], batch_size=64, part=(rank, 2)) for rank in (0, 1)]
    whole = read([tmp_path / "log.csv"], batch_size=64)
    for first, second, both in zip(*part, whole, strict=True):
        assert torch.equal(torch.cat([first.dense, second.dense]), both.dense)
        assert first.position == second.position == both.position


REFUSALS = [
    ("", {}, "has no header line"),
    ("label,,a\n1,2,3\n", {}, "column 2 has no name"),
    ("label,a,\n1,2,\n", {}, "column 3 has no name"),
    ("label,a,a\n1,2,3\n", {}, r"columns \['a'\] appear twice"),
    ("click,a\n1,2\n", {}, "no column 'label' for the label"),
    ("label,a\n1,2\n", {"ignore": ["b"]}, r"no columns \['b'\]"),
    (
        "label,a,b\n1,2,0.5\n1,2,x\n",
        {"dense_columns": ["b"]},
        r"line 3 \(row 2\): column 'b' holds 'x'",
    ),
    ("label,a\n1,2\n", {"dense_columns": ["b"]}, r"no columns of numbers \['b'\]"),
    ("label,a,b\n1,2,0.5\n1,2\n", {}, r"line 3 \(row 2\): 2 columns, and the header has 3: '1,2'"),
    (
        "label,a,b\n1,2,0.5\n2,2,1\n",
        {},
        r"line 3 \(row 2\): label 2.0 in column 'label' is not 0, 1 or -1",
    ),
    ("label,a\n1,2\n,3\n", {}, r"line 3 \(row 2\): the label in column 'label' is missing"),
]


@pytest.mark.parametrize(("text", "options", "words"), REFUSALS)
def test_what_cannot_be_read_is_refused_by_file_row_and_column(
    tmp_path: Path, text: str, options: dict[str, Any], words: str
) -> None:
    log = write(tmp_path / "log.csv", text)
    with pytest.raises((hps.ConfigError, hps.DataError), match=words) as caught:
        read([log], **options)
    assert "log.csv" in str(caught.value)


def test_a_number_that_is_none_further_on_is_named(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row},{row / 4}" for row in range(200_000)]
    lines[150_000] = "1,7,abc"
    log = write(tmp_path / "log.csv", "label,a,b\n" + "\n".join(lines) + "\n")
    with pytest.raises(
        hps.DataError,
        match=r"line 150002 \(row 150001\): column 'b' holds 'abc', which is no number",
    ):
        read([log])
    reader = open_reader([log], tables=[TABLE], config=ReaderConfig(on_error="skip"))
    assert sum(map(len, reader)) == 199_999 and reader.counts.skipped == 1


def test_a_later_file_must_have_the_columns(tmp_path: Path) -> None:
    logs = [
        write(tmp_path / "0.csv", "label,a,b\n1,x,0.5\n"),
        write(tmp_path / "1.csv", "b;label;more;a\n7;0;9;y\n"),
        write(tmp_path / "2.csv", "label,b\n1,0.5\n"),
    ]
    batches = read(logs[:2], batch_size=8)
    assert batches[0].dense.flatten().tolist() == [0.5, 7.0]
    assert keys_by_row(batches[0]) == [[[hps.key_of("a", "x")], [hps.key_of("a", "y")]]]
    with pytest.raises(hps.DataError, match=r"2.csv has no columns \['a'\]"):
        read(logs)


def test_files_that_are_not_what_their_name_says_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes("label,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(hps.DataError, match="header is not UTF-8"):
        read([latin])
    packed = tmp_path / "cut.csv.gz"
    packed.write_bytes(gzip.compress(many(tmp_path / "log.csv", 20_000).read_bytes())[:-1000])
    with pytest.raises(hps.DataError, match=r"cut\.csv\.gz"):
        read([packed])
    with pytest.raises(hps.StoreError, match="cannot read"):
        read([tmp_path / "nothing.csv"])
    quoted = write(tmp_path / "quoted.csv", 'label;"a,b,c";d\n1;2;3\n')
    assert open_reader([quoted], tables=[TABLE], config=ReaderConfig()).features["ads"] == (
        "a,b,c",
        "d",
    )


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "é", 1])
def test_delimiters_that_cannot_be_are_refused(delimiter: Any) -> None:
    with pytest.raises(hps.ConfigError, match="delimiter"):
        ReaderConfig(format="csv", delimiter=delimiter)
    with pytest.raises(hps.ConfigError, match="is for csv"):
        ReaderConfig(format="criteo", delimiter=",")


def test_a_model_is_trained_evaluated_and_asked_on_csv(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row % 3}{row % 2},k{row % 5},{row % 7},{row / 9}" for row in range(400)]
    log = write(
        tmp_path / "log.csv", "click;app;os;age;price\n" + "\n".join(lines).replace(",", ";")
    )
    store, out = tmp_path / "store", tmp_path / "figures"
    words = ["--store", str(store), "--dram", "8MiB"]
    model = ["--dim", "2", "--hidden", "4", "--batch-size", "64", "--torch-threads", "1"]
    reading = ["--label", "click", "--dense-columns", "price", "age", "--ignore", "os"]
    assert main(["train", str(log), *words, *model, *reading, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["examples"] == 400
    assert main(["evaluate", str(log), *words, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["examples"] == 400
    assert main(["train", str(log), *words, *model, "--resume", "--new-data"]) == 0
    scores = tmp_path / "scores.npy"
    assert main(["predict", str(log), *words, "--out", str(scores)]) == 0
    with hps.Model.load(store, dram="8MiB") as loaded:
        raw = {"app": ["00", ""], "age": [0, 1], "price": [0.0, 1 / 9]}
        missing = {**raw, "app": ["00", None]}
        assert torch.equal(loaded.predict(raw), loaded.predict(missing))
        with pytest.raises(hps.ConfigError, match=r"\['app'\] are booleans"):
            loaded.predict({**raw, "app": [True, False]})
        raw["app"] = ["00", "11"]
        assert loaded.features == {"features": ["app"]}
        np.testing.assert_allclose(loaded.predict(raw).numpy(), np.load(scores)[:2], rtol=1e-5)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("words", [("True", "False"), ("true", "false"), ("TRUE", "FALSE")])
def test_true_and_false_are_labels(tmp_path: Path, words: tuple[str, str], on_error: str) -> None:
    """As pandas writes them; 0 and 1 further on, too."""
    clicks = [0, 1, 1, 0, 1]
    lines = [f"{words[1 - click]},{row}" for row, click in enumerate(clicks)]
    log = write(tmp_path / "log.csv", "\n".join(["label,a", *lines, "1,9", '"0",8']) + "\n")
    (batch,) = read([log], on_error=on_error)
    assert batch.labels.tolist() == [*clicks, 1, 0]
    other = write(tmp_path / "other.csv", "\n".join(["label,a", *lines, "yes,9"]) + "\n")
    if on_error == "raise":
        with pytest.raises(hps.DataError, match=r"line 7 \(row 6\): column 'label' holds 'yes'"):
            read([other], on_error=on_error)
    else:
        (batch,) = read([other], on_error=on_error)
        assert batch.labels.tolist() == clicks


def test_words_that_are_no_labels_are_told_what_labels_are(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "label,a\nyes,1\nno,2\n")
    with pytest.raises(hps.DataError, match=r"holds 'yes', which is no label: 0, 1 or -1, or True"):
        read([log])


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1,2,2\n0,3,4\n", r"appear twice.*own; the first line of csv names.*such as '1'"),
        ("1,shoes\n0,coats\n", r"no column 'label'.*; the first line of csv names the columns"),
        ("label\ta;b\n", "no column 'label'.*another character"),
        ("click,shoes\n0,coats\n", r"--label\)$"),
    ],
)
def test_a_first_line_that_names_no_columns_is_told(tmp_path: Path, text: str, advice: str) -> None:
    log = write(tmp_path / "log.csv", text)
    with pytest.raises((hps.DataError, hps.ConfigError), match=advice):
        read([log], delimiter=",")
