"""Training on record batches: the bits of the parquet file with the same rows, also taken up.

Above it: pytest. Below it: `hps.train`, whose `data` may be what gives record batches.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.reader import ReaderConfig
from hps.train import TrainOptions, evaluate_store, train
from hps.train.checkpoints import newest_with_model
from hps.train.predict import predict_log
from tests.train.killed_run import killed_after

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SMALL: dict[str, Any] = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB"}


def clicks() -> Iterator[pa.RecordBatch]:
    for day in range(3):
        users = [(7 * row + day) % 50 for row in range(300)]
        labels = [int(user % 3 == 0) for user in users]
        yield pa.record_batch({"label": labels, "user": users, "x": [user / 50 for user in users]})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(pa.Table.from_batches(list(clicks())), path)
    return path


def run(data: Any, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": data, "store": store, **SMALL, **changes}))


def bits(figures: dict[str, Any]) -> tuple[Any, ...]:
    names = ("digests", "loss_digest", "examples", "test_logloss", "evaluations", "columns")
    evaluations = [
        {name: one[name] for name in ("examples", "auc", "logloss")}
        for one in figures["evaluations"]
    ]
    return *(figures[name] for name in names if name != "evaluations"), evaluations


WAYS: dict[str, Callable[[], Any]] = {
    "a callable": lambda: clicks,
    "a callable in a list": lambda: [clicks],
    "a list": lambda: list(clicks()),
    "a table": lambda: pa.Table.from_batches(list(clicks())),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_on_record_batches_has_the_bits_of_one_on_parquet(
    tmp_path: Path, log: Path, way: str
) -> None:
    how: dict[str, Any] = {"epochs": 2, "shuffle_buffer": 128, "eval_every": 5, "depth": 2}
    plain = run([log], tmp_path / "plain", test=[log], valid=[log], **how)
    data = WAYS[way]()
    own = run(data, tmp_path / "own", test=data, valid=data, **how)
    assert bits(own) == bits(plain)
    measured = evaluate_store(data, tmp_path / "own")
    assert measured["logloss"] == evaluate_store([log], tmp_path / "plain")["logloss"]
    with hps.open(tmp_path / "own", read_only=True) as server:
        found = newest_with_model(server)
    assert found is not None and found.model["options"]["data"][0].startswith("record batches of ")


@pytest.mark.parametrize("way", ["a callable", "a list"])
def test_a_killed_run_goes_on_in_the_batches_where_it_was(
    tmp_path: Path, log: Path, way: str
) -> None:
    how: dict[str, Any] = {"epochs": 3, "checkpoint_every": 4}
    whole = run([log], tmp_path / "whole", **how)
    with killed_after(2):
        run(WAYS[way](), tmp_path / "own", **how)
    rest = run(WAYS[way](), tmp_path / "own", resume=True, **how)
    assert 0 < rest["examples"] < whole["examples"] == 2700
    assert rest["digests"] == whole["digests"] and rest["loss_digest"] == whole["loss_digest"]


def test_a_share_and_the_last_sources_are_held_out(tmp_path: Path, log: Path) -> None:
    plain = run([log], tmp_path / "plain", valid_share=0.2)
    own = run(clicks, tmp_path / "own", valid_share=0.2)
    assert bits(own) == bits(plain) and own["evaluations"]
    days = [pa.Table.from_batches([batch]) for batch in clicks()]
    by_day = run(
        [lambda: [days[0]], lambda: [days[1]], lambda: [days[2]]],
        tmp_path / "days",
        valid_share=0.3,
        valid_by="files",
    )
    assert by_day["examples"] == 600 and by_day["evaluations"]


def test_what_can_be_read_once_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    def refused() -> Iterator[pa.RecordBatch]:
        raise AssertionError("it was read")
        yield

    reader = pa.RecordBatchReader.from_batches(next(clicks()).schema, clicks())
    for once in (clicks(), reader, [reader]):
        with pytest.raises(hps.ConfigError, match=r"data is looked at before .* pass a callable"):
            run(once, tmp_path / "store")
    with pytest.raises(hps.ConfigError, match=r"test is looked at before"):
        run(refused, tmp_path / "store", test=reader)
    with pytest.raises(hps.ConfigError, match=r"must be a list, each of it the path of a file"):
        run("log.parquet", tmp_path / "store")
    with pytest.raises(hps.ConfigError, match=r"data: each=7 must be the path of a file"):
        run([7], tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_model_of_record_batches_scores_and_goes_on_with_new_data(
    tmp_path: Path, log: Path
) -> None:
    run(clicks, tmp_path / "store")
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        assert model.open_reader([log]).config.format == ReaderConfig(format="parquet").format
        assert predict_log(model, [log], tmp_path / "a.npy")["examples"] == 900
    more = run([log], tmp_path / "store", resume=True, new_data=True)
    assert more["total_examples"] == 1800
