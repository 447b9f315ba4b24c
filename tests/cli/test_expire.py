"""`hps expire --dry-run`: what would die, why, and by which rules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main

STORED = hps.Expiry(unseen=3, min_score=0.8, decay=0.5, nonclick=0.1, click=1.0)
# shows, clicks and last period of each key; the store is at period 4
ROWS = {1: (1, 0, 4), 2: (1, 1, 4), 3: (4, 4, 2), 4: (64, 64, 1), 5: (9, 0, 1)}


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Path:
    tables = [
        hps.TableConfig(name="ads", dim=4, expiry=hps.Expiry(unseen=100)),
        hps.TableConfig(name="plain", dim=4),
    ]
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        server.advance_period(to=4)
        counts = np.array(list(ROWS.values()))
        given = {
            "show": counts[:, 0].astype(np.float32),
            "click": counts[:, 1].astype(np.float32),
            "last_period": counts[:, 2],
        }
        keys = np.array(list(ROWS), np.uint64)
        server.assign("ads", keys, np.ones((5, 4), np.float32), statistics=given)
    return tmp_path / "store"


def expire(store: Path, *flags: str) -> Any:
    out = store.parent / "expire.json"
    assert main(["expire", str(store), "--dry-run", *flags, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def flags_of(expiry: hps.Expiry) -> list[str]:
    numbers = expiry.described().items()
    return [text for name, value in numbers for text in (f"--{name.replace('_', '-')}", f"{value}")]


def test_it_tells_what_would_die_and_why(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = expire(store, *flags_of(STORED))
    assert found["period"] == 4
    ads = found["tables"]["ads"]
    assert list(found["tables"]) == ["ads"]
    # In period 5: key 1 has 0.05, key 2 0.5, key 3 0.5, key 4 lives on by its 4.0 but was unseen
    # for four periods, and key 5 has 0.05625 and was, too.
    assert ads["by_reason"] == {"score": 3, "unseen": 1, "both": 1}
    row_bytes = 32 + 4 * 4 * 2  # a header with statistics, weights, Adagrad's state
    assert (ads["rows"], ads["dying"], ads["bytes"]) == (5, 5, 5 * row_bytes)
    assert dict(zip(ads["ages"]["from"], ads["ages"]["rows"], strict=True))[4] == 2
    assert dict(zip(ads["scores"]["from"], ads["scores"]["rows"], strict=True))[0.5] == 2
    text = capsys.readouterr().out
    assert "5 of 5 rows (100.0%)" in text
    with hps.open(store) as reader:
        assert reader.num_rows("ads") == 5


def test_what_it_tells_is_what_happens(store: Path) -> None:
    rules = hps.Expiry(unseen=3, min_score=0.3, decay=0.5, nonclick=0.1, click=1.0)
    dying = expire(store, *flags_of(rules))["tables"]["ads"]["dying"]
    tables = [hps.TableConfig(name="ads", dim=4, expiry=rules)]
    with hps.ParameterServer(hps.Config(path=store, tables=tables)) as server:
        server.advance_period()
        assert server.num_rows("ads") == 5 - dying == 2


def test_rules_that_are_not_given_are_the_stored_ones(store: Path) -> None:
    assert expire(store)["tables"]["ads"]["rules"]["unseen"] == 100
    assert expire(store)["tables"]["ads"]["dying"] == 0
    found = expire(store, "--table", "ads", "--min-score", "0.8")["tables"]["ads"]
    assert found["rules"] == {**hps.Expiry(unseen=100, min_score=0.8).described()}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--table", "plain"], "rows without statistics do not die"),
        (["--table", "none"], "the store has the tables"),
        (["--unseen", "65535"], "65534"),
        (["--decay", "2"], "Expiry.decay"),
    ],
)
def test_what_cannot_be_is_refused(
    store: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["expire", str(store), "--dry-run", *flags])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_it_only_looks(store: Path) -> None:
    with pytest.raises(SystemExit):
        main(["expire", str(store)])
