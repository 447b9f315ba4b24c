"""A run that goes on has the seed of its model, whether it is given again or not.

Above it: pytest. Below it: hps/train/reading.py, `hps train` over a store, servers and ranks.
"""

from pathlib import Path
from typing import Any

import pytest

import hps
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, train
from tests.cluster.rank_nursery import Job, Nursery
from tests.logs import write_criteo
from tests.parity.test_resume import same_bits
from tests.service.client.client_lab import service

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL = {"dim": 2, "hidden": (8,), "batch_size": 64, "depth": 0, "dropout": 0.3}
SHUFFLED = {"shuffle_files": True, "shuffle_buffer": 200}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [write_criteo(folder / f"{day}.tsv", 300, seed=day) for day in range(4)]


def run(days: list[Path], store: Path, **changes: Any) -> dict[str, Any]:
    values = {"data": days, "store": store, "dram": "4MiB", **SMALL, **SHUFFLED, **changes}
    return train(TrainOptions(**values))


def seed_of(store: Path) -> Any:
    with hps.open(store) as server:
        return server.checkpoint_state("final")[0]["options"]["seed"]


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
@pytest.mark.parametrize("new_data", [False, True])
def test_a_seed_that_is_not_given_again_is_the_stored_one(
    days: list[Path], tmp_path: Path, engine: str, new_data: bool
) -> None:
    """Rows, shuffles and dropout have the bits of a run that has it given."""
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    ends = []
    for name, again in (("given", {"seed": 5}), ("left out", {})):
        run(days, tmp_path / name, seed=5, limit=640, engine=engine)
        more = {"resume": True, "new_data": new_data, "engine": engine, **again}
        ends.append(same_bits(run(days, tmp_path / name, **more)))
        assert seed_of(tmp_path / name) == 5
    assert ends[0] == ends[1]


def test_a_new_model_has_seed_0(days: list[Path], tmp_path: Path) -> None:
    assert TrainOptions(data=days, store="s").seed is None
    ends = []
    for name, given in (("zero", {"seed": 0}), ("none", {}), ("if any", {"resume_if_any": True})):
        ends.append(same_bits(run(days, tmp_path / name, **given)))
        assert seed_of(tmp_path / name) == 0
    assert ends[0] == ends[1] == ends[2]
    assert ends[0] != same_bits(run(days, tmp_path / "one", seed=1))


@pytest.mark.parametrize("seed", [0, 6, 2**64 - 1])
def test_another_seed_is_refused_with_both(days: list[Path], tmp_path: Path, seed: int) -> None:
    """Also where it is that of a new model; the store is as it was."""
    before = run(days, tmp_path / "store", seed=5)["digests"]
    said = rf"store '.*store' was trained with seed=5, this run asks for {seed} \(--seed\)"
    for more in ({"new_data": True}, {"resume_from": "final"}, {"resume_if_any": True}):
        with pytest.raises(hps.ConfigError, match=said):
            run(days, tmp_path / "store", seed=seed, resume=True, **more)
    with hps.open(tmp_path / "store") as server:
        assert {name: server.digest(name) for name in server.tables} == before


def test_a_seed_that_is_none_is_refused_in_words(tmp_path: Path) -> None:
    for wrong in (-1, 2**64, 1.5, "5", True):
        with pytest.raises(hps.ConfigError, match=r"seed=.* must be a whole number from 0"):
            TrainOptions(store=tmp_path, seed=wrong)  # type: ignore[arg-type]


def test_servers_keep_the_seed_of_the_run(days: list[Path], tmp_path: Path) -> None:
    """Theirs is that of the rows; shuffles and dropout go on from that of the trainer."""
    with service(tmp_path, 1, tables=()) as servers:

        def on_servers(**changes: Any) -> dict[str, Any]:
            remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
            values = {"data": days, "remote": remote, **SMALL, **SHUFFLED, **changes}
            return train(TrainOptions(**values))

        on_servers(seed=5, limit=640)
        said = r"seed=5, this run asks for 0 \(--seed\)"
        with pytest.raises(hps.ConfigError, match=said):
            on_servers(resume=True, seed=0)
        # A position of shuffled files, which another seed does not fit.
        assert on_servers(resume=True)["total_examples"] == 1200
        assert on_servers(resume=True, new_data=True)["total_examples"] == 2400


def test_ranks_take_the_seed_of_their_folder(
    days: list[Path], tmp_path: Path, ranks: Nursery
) -> None:
    words = ["train", *map(str, days), "--dim", "2", "--hidden", "8", "--batch-size", "64"]
    words += ["--dram", "4MiB", "--shuffle-files", "--dropout", "0.3", "--depth", "0"]
    ends = []
    for name, again in (("given", ["--seed", "5"]), ("left-out", [])):
        here = [*words, "--store", str(tmp_path / name)]
        ranks.figures(Job([*here, "--seed", "5"], size=2))
        more = [*here, "--resume", "--new-data", *again]
        ends.append(same_bits(ranks.figures(Job(more, size=2))))
    assert ends[0] == ends[1]
    refused = ranks.run(Job([*here, "--resume", "--new-data", "--seed", "4"], size=2))
    assert set(refused.statuses) == {1}
    assert "trained with seed=5, this run asks for 4 (--seed)" in "".join(refused.err)
