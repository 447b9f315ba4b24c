"""hps train --expire-...: rows die as the rules say, the model keeps them, a resumed run may change
them.

Above it: pytest. Below it: the days of test_training_periods.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError
from hps.service.client.options import ClientConfig
from hps.train import train
from tests.service.client.client_lab import service
from tests.train.test_training_periods import days, options_of

__all__ = ["days"]  # a fixture


def rules_of(store: Path) -> dict[str, Any]:
    with hps.open(store) as reader:
        (table,) = reader.tables.values()
        assert table.statistics
        return {} if table.expiry is None else table.expiry.described()


def test_rows_of_past_days_die(days: list[Path], tmp_path: Path) -> None:
    """The keys of a day are 20 further than those of the day before."""
    kept = train(options_of(days, tmp_path / "kept", advance_every="file", statistics=True))
    figures = train(options_of(days, tmp_path / "store", advance_every="file", expire_unseen=1))
    assert (kept["expired_rows"], figures["period"]) == (0, 3)
    assert figures["expired_rows"] > 0
    # Some keys died and came again.
    assert kept["rows"] - figures["expired_rows"] <= figures["rows"] < kept["rows"]
    assert rules_of(tmp_path / "store") == hps.Expiry(unseen=1).described()
    with hps.open(tmp_path / "store") as reader:
        for _, _, _, _, last in reader.items(*reader.tables, statistics=True):
            assert (last >= 2).all()


def test_a_resumed_run_keeps_the_rules_or_changes_them(days: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    train(options_of(days[:1], store, expire_unseen=1, expire_below=0.2, expire_click=3.0))
    first = hps.Expiry(unseen=1, min_score=0.2, click=3.0).described()
    assert rules_of(store) == first
    again: dict[str, Any] = {"resume": True, "new_data": True, "advance": True}
    train(options_of(days[1:2], store, **again))
    assert rules_of(store) == first
    figures = train(options_of(days[2:3], store, **again, expire_unseen=9))
    assert rules_of(store) == hps.Expiry(unseen=9, min_score=0.2, click=3.0).described()
    assert figures["period"] == 2


def test_a_bound_is_kept_and_may_change(days: list[Path], tmp_path: Path) -> None:
    def bounds() -> tuple[Any, Any]:
        with hps.open(tmp_path / "store") as reader:
            (table,) = reader.tables.values()
            return table.max_rows, table.max_bytes

    train(options_of(days[:1], tmp_path / "store", expire_unseen=9, max_rows=30, max_bytes="1MiB"))
    assert bounds() == (30, 2**20)
    again: dict[str, Any] = {"resume": True, "new_data": True, "advance": True}
    figures = train(options_of(days[1:2], tmp_path / "store", **again))
    # All rows of the first day die in one period, and a table is not emptied at once.
    assert (bounds(), figures["expired_rows"]) == ((30, 2**20), 0)
    figures = train(options_of(days[2:3], tmp_path / "store", **again, max_rows=1000))
    assert (bounds(), figures["expired_rows"]) == ((1000, 2**20), 0)
    fourth = shutil.copy(days[0], tmp_path / "fourth.tsv")
    figures = train(options_of([fourth], tmp_path / "store", **again, max_rows=30))
    assert bounds() == (30, 2**20)
    assert figures["expired_rows"] > 0  # those of the first two days


def test_a_bound_on_a_stored_model_whose_rows_live_is_refused(
    days: list[Path], tmp_path: Path
) -> None:
    train(options_of(days[:1], tmp_path / "store", statistics=True))
    again: dict[str, Any] = {"resume": True, "new_data": True, "max_rows": 30}
    with pytest.raises(ConfigError, match="give --expire-unseen, --expire-below or both"):
        train(options_of(days[1:2], tmp_path / "store", **again))


@pytest.mark.parametrize(
    ("name", "value"),
    [("expire_unseen", 3), ("expire_below", 2.0), ("max_rows", 9), ("admit_count", 2)],
)
def test_rules_of_rows_that_do_not_count_are_refused_in_the_words_of_the_run(
    days: list[Path], tmp_path: Path, name: str, value: float
) -> None:
    train(options_of(days[:1], tmp_path / "store", statistics=None))
    again: dict[str, Any] = {"resume": True, "new_data": True, "statistics": None, name: value}
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"^{flag}: .*made without --statistics") as raised:
        train(options_of(days[1:2], tmp_path / "store", **again))
    assert not hasattr(raised.value, "__notes__")  # of other columns, which would not help


def test_the_flags_say_the_same(
    days: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--format",
        "slots",
        "--model",
        "lr",
        "--batch-size",
        "16",
        "--expire-unseen",
        "3",
        "--expire-below",
        "0.1",
    ]
    flags += ["--expire-decay", "0.5", "--expire-nonclick", "0.2", "--expire-click", "2"]
    flags += ["--max-rows", "1000", "--max-bytes", "1MiB"]
    out = tmp_path / "figures.json"
    store = tmp_path / "store"
    assert main(["train", str(days[0]), "--store", str(store), *flags, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["expired_rows"] == 0
    expected = hps.Expiry(unseen=3, min_score=0.1, decay=0.5, nonclick=0.2, click=2.0)
    assert rules_of(store) == expected.described()
    with hps.open(store) as reader:
        (table,) = reader.tables.values()
        assert (table.max_rows, table.max_bytes) == (1000, 2**20)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"statistics": False, "expire_unseen": 3}, "--no-statistics and --expire"),
        ({"expire_decay": 0.5}, "give --expire-unseen, --expire-below or both"),
        ({"expire_unseen": -1}, "expire_unseen"),
        ({"max_rows": 3}, "--max-rows and --max-bytes have rows die early.*give --expire-unseen"),
        ({"expire_unseen": 3, "max_bytes": "lots"}, "max_bytes"),
        ({"expire_below": 0.0}, "expire_below"),
        ({"expire_unseen": 3, "expire_decay": 1.5}, "expire_decay"),
    ],
)
def test_numbers_that_are_no_rules_are_refused(
    days: list[Path], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(days, tmp_path / "store", **given)
    assert not (tmp_path / "store").exists()


RULES: dict[str, Any] = {
    "expire_unseen": 1,
    "max_rows": 10_000,
    "admit_count": 2,
    "row_dtype": "bfloat16",
}


def test_a_run_has_the_same_rows_in_both_engines_and_on_servers(
    days: list[Path], tmp_path: Path
) -> None:
    """With rules, and narrow rows; a run that is resumed needs no flag for them."""
    again: dict[str, Any] = {"resume": True, "new_data": True, "advance_every": "file"}

    def trained(store: Any, **place: Any) -> dict[str, Any]:
        train(options_of(days[:2], store, advance_every="file", **RULES, **place))
        figures = train(options_of(days[2:], store, **again, **place))
        return {name: figures[name] for name in ("period", "rows", "loss_digest")}

    def seen(server: Any) -> Any:
        (table,) = server.tables.values()
        return table, server.num_rows(table.name), server.digest(table.name)

    expected = trained(tmp_path / "store")
    with hps.open(tmp_path / "store") as reader:
        table, *rows = seen(reader)
    assert (table.expiry, table.admission) == (hps.Expiry(unseen=1), hps.Admission(count=2))
    assert (table.max_rows, table.dtype) == (10_000, "bfloat16")
    pytest.importorskip("rocksdict")
    assert trained(tmp_path / "rocksdb", engine="rocksdb") == expected
    with hps.open(tmp_path / "rocksdb") as reader:
        assert seen(reader) == (table, *rows)
    with service(tmp_path, 2, tables=()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        assert trained(None, remote=remote) == expected
        with servers.client() as client:
            assert seen(client) == (table, *rows)
