"""A sample whose share is a matter of luck is warned of.

Above it: pytest. Below it: hps/train/sample_advice.py, the training run.
"""

import csv
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hps.train import TrainOptions, train
from hps.train.progress import Progress

pytestmark = pytest.mark.usefixtures("one_torch_thread")

COUNT = 3000


def columns(values: int) -> dict[str, Any]:
    """Examples of so many values of `a`, in two bags or one, each with an id of its own."""
    random = np.random.default_rng(values)
    of_a = random.integers(0, values, COUNT)
    return {
        "label": random.integers(0, 2, COUNT),
        "a": of_a,
        "bag": [[int(value), 7] if value % 2 else [] for value in of_a],
        "x": of_a.astype(np.float32) / 2,
        "id": np.arange(COUNT),
    }


def warnings_of(log: Path, store: Path, **changes: Any) -> list[str]:
    said = StringIO()
    options = TrainOptions(
        data=[log], store=store, dim=2, hidden=(4,), dram="8MiB", depth=0, limit=32, **changes
    )
    train(options, Progress(0, said))
    return re.findall(r"warning: (--[a-z-]+): the share that is [a-z ]+ may be .*", said.getvalue())


@pytest.mark.parametrize(
    ("values", "changes", "wanted"),
    [
        (20, {"negative_rate": 0.1}, ["--negative-rate"]),
        (20, {"valid_share": 0.2}, ["--valid-share"]),
        (20, {"valid_share": 0.2, "negative_rate": 0.5}, ["--valid-share", "--negative-rate"]),
        (20, {}, []),
        (COUNT, {"negative_rate": 0.1}, []),  # one or two of each
        (20, {"negative_rate": 0.1, "ignore": []}, []),  # its id is read
        (200, {"valid_share": 0.5, "negative_rate": 0.9}, []),  # off by less than a tenth
    ],
)
def test_contents_that_come_again_are_warned_of(
    tmp_path: Path, values: int, changes: dict[str, Any], wanted: list[str]
) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns(values)), log)
    assert warnings_of(log, tmp_path / "store", **{"ignore": ["id"], **changes}) == wanted


@pytest.mark.parametrize(
    ("share", "named"), [(0.3, r"held out may be .* of 0\.3:"), (0.7, "trained on may .* of 0.3:")]
)
def test_the_smaller_share_is_named_for_what_it_is(
    tmp_path: Path, share: float, named: str
) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns(20)), log)
    said = StringIO()
    options = TrainOptions(
        data=[log], store=tmp_path / "store", dim=2, hidden=(4,), dram="8MiB", depth=0, limit=32,
        ignore=["id"], valid_share=share,
    )  # fmt: skip
    train(options, Progress(0, said))
    assert re.search(f"--valid-share: the share that is {named}", said.getvalue()), said.getvalue()


def test_a_store_that_goes_on_is_not_told_again_and_csv_is_as_parquet(tmp_path: Path) -> None:
    table = columns(20)
    del table["bag"]
    log = tmp_path / "log.csv"
    with log.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    how: dict[str, Any] = {"ignore": ["id"], "negative_rate": 0.1}
    assert warnings_of(log, tmp_path / "store", **how) == ["--negative-rate"]
    assert warnings_of(log, tmp_path / "store", resume=True, new_data=True) == []


@pytest.mark.parametrize(("ids", "wanted"), [(COUNT, []), (9, ["--negative-rate"])])
def test_lines_of_text_are_content(tmp_path: Path, ids: int, wanted: list[str]) -> None:
    log = tmp_path / "log.tsv"
    dense = "\t".join(["1"] * 13)
    lines = [f"{row % 2}\t{dense}\tid{row % ids}" + "\tcafe" * 25 for row in range(COUNT)]
    log.write_text("\n".join(lines) + "\n")
    assert warnings_of(log, tmp_path / "store", negative_rate=0.1, format="criteo") == wanted
