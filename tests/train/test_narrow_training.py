"""`hps train` with bfloat16 rows: the same bits at any depth; a run that goes on keeps the dtype.

Above it: pytest. Below it: hps/train, hps/parameter_server/parquet.py.
"""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.train import TrainOptions, train
from hps.train.progress import Progress
from tests.logs import write_criteo

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"dram": "4MiB", "depth": 0, "row_dtype": "bfloat16", **changes}
    options = TrainOptions(data=[log], store=store, dim=4, hidden=(4,), seed=3, **how)
    return train(options, Progress(0, StringIO()))


def digest_of(store: Path) -> str:
    with hps.open(store) as server:
        (table,) = server.tables.values()
        assert table.dtype == "bfloat16" and table.rounding == "stochastic"
        return str(server.digest(table.name))


def test_depth_and_tiers_do_not_show_in_rows_or_losses(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 3000)
    figures = [run(log, tmp_path / "a", dram="64MiB")]
    figures.append(run(log, tmp_path / "b", depth=3, dram="512KiB"))
    figures.append(run(log, tmp_path / "c", depth=2, gpu="1MiB", device="cpu"))
    assert len({digest_of(tmp_path / name) for name in "abc"}) == 1
    assert len({one["loss_digest"] for one in figures}) == 1


def test_a_run_that_goes_on_keeps_the_dtype(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 2000)
    run(log, tmp_path / "whole")
    run(log, tmp_path / "store", limit=1000)
    with pytest.raises(hps.ConfigError, match="--row-dtype"):
        run(log, tmp_path / "store", resume=True, row_dtype="float32")
    run(log, tmp_path / "store", resume=True, row_dtype=None)
    assert digest_of(tmp_path / "store") == digest_of(tmp_path / "whole")


def test_an_export_is_imported_without_loss(tmp_path: Path) -> None:
    table = hps.TableConfig(name="ads", dim=5, optimizer=hps.Adam(), dtype="bfloat16")
    keys = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    with hps.ParameterServer(hps.Config(path=tmp_path / "one", tables=[table])) as server:
        server.push("ads", keys, np.random.default_rng(1).random((4, 5), np.float32))
        digest = server.digest("ads")
    file, other = str(tmp_path / "rows.parquet"), str(tmp_path / "other")
    assert main(["export", str(tmp_path / "one"), file]) == 0
    assert main(["import", file, other]) == 0
    with hps.open(other) as server:
        assert server.tables["ads"] == table and server.digest("ads") == digest
    assert main(["verify", other]) == 0
