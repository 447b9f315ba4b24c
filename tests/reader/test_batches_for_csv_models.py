"""Record batches for a model that was trained on csv: read by the rules of csv.

Above it: pytest. Below it: `hps.Model.open_reader`, hps/reader/batch_files.py.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

import hps
from tests.reader.reader_twin import assert_same_batches
from tests.reader.test_record_batches import without_files


def test_a_model_of_csv_is_measured_on_batches(tmp_path: Path) -> None:
    """By its rules: what is empty has no key."""
    lines = [f"{idx % 2},{idx % 5},{'' if idx % 3 else 'Oslo'},{idx / 8}" for idx in range(1, 200)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["label,user,city,price", *lines]) + "\n")
    small: dict[str, Any] = {"dim": 3, "hidden": (8,), "batch_size": 32, "dram": "8MiB"}
    small |= {"torch_threads": 1, "threads": 1, "depth": 0}
    hps.train.train(hps.train.TrainOptions(data=[log], store=tmp_path / "store", **small))
    rows = [line.split(",") for line in lines]
    table = pa.table(
        {
            "label": [int(row[0]) for row in rows],
            "user": [int(row[1]) for row in rows],
            "city": [row[2] for row in rows],
            "price": [float(row[3]) for row in rows],
        }
    )
    with hps.Model.load(tmp_path / "store") as model:
        expected = without_files(list(model.open_reader([log])))
        found = without_files(list(model.open_reader(lambda: iter(table.to_batches(17)))))
    assert_same_batches(found, expected)
