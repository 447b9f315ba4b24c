"""The same log and seed give the same rows and losses whatever the budget, the tiers, threads or
instructions.

Every run asserts its premise: that rows were evicted where the budget is small, and none where it
is not.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.common.byte_sizes import parse_bytes
from hps.train import TrainOptions, train
from tests.logs import write_criteo

NUM_EXAMPLES = 3000
SLOT_BYTES = 103  # a row of 96 bytes (Adagrad, 9 columns) and its part of the table's own


@pytest.fixture(scope="module", autouse=True)
def _one_torch_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_criteo(tmp_path_factory.mktemp("log") / "log.txt", NUM_EXAMPLES, num_keys=3000)


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data": [log],
        "store": store,
        "dim": 8,
        "batch_size": 64,
        "hidden": (16,),
        "dropout": 0.3,
        "dram": "64MiB",
        "threads": 1,
        "scheduler": "cosine",
        "scheduler_steps": 100,
        "seed": 5,
    }
    return train(TrainOptions(**{**values, **changes}))


@pytest.fixture(scope="module")
def in_memory(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    figures = run(log, tmp_path_factory.mktemp("memory") / "store")
    assert evictions(figures) == 0
    assert figures["rows"] > 20_000
    return figures


@pytest.fixture(params=["dram", "gpu"])
def top(request: pytest.FixtureRequest) -> str:
    """The tier that a run's small budget is of."""
    return str(request.param)


def budgets(top: str, num_bytes: int | str) -> dict[str, Any]:
    """A small dram_cache, or a small gpu_cache on the host over a smaller dram_cache."""
    if top == "dram":
        return {"dram": num_bytes}
    num_bytes = parse_bytes(num_bytes)
    return {"gpu": num_bytes + 8192, "device": "cpu", "dram": max(num_bytes // 2, 40_000)}


def evictions(figures: dict[str, Any]) -> int:
    """Of the top tier."""
    tiers = figures["tiers"]
    return int(tiers.get("gpu_cache", tiers["dram_cache"])["evictions"])


def assert_equal(figures: dict[str, Any], other: dict[str, Any]) -> None:
    assert figures["digests"] == other["digests"]
    assert figures["loss_digest"] == other["loss_digest"]
    assert figures["train_logloss"] == other["train_logloss"]
    assert figures["rows"] == other["rows"]


@pytest.mark.parametrize("part", [2, 10])
def test_a_part_of_the_rows_in_memory(
    log: Path, tmp_path: Path, in_memory: dict[str, Any], part: int, top: str
) -> None:
    budget = in_memory["rows"] * SLOT_BYTES // part
    figures = run(log, tmp_path / "store", **budgets(top, budget))
    assert ("gpu_cache" in figures["tiers"]) == (top == "gpu")
    assert evictions(figures) > 1000
    assert figures["tiers"]["ssd_store"]["hits"] > 1000
    assert_equal(figures, in_memory)


def test_smallest_budget_that_holds_a_batch(
    log: Path, tmp_path: Path, in_memory: dict[str, Any], top: str
) -> None:
    smallest = None
    for kibibytes in range(216, 0, -8):
        try:
            small = budgets(top, f"{kibibytes}KiB")
            smallest = run(log, tmp_path / f"store-{kibibytes}", **small)
        except hps.CapacityError:
            break
    assert smallest is not None and kibibytes > 8
    tier = smallest["tiers"][f"{top}_cache"]
    assert tier["capacity_rows"] < 2100  # a batch has up to 1,513
    assert evictions(smallest) > 50_000
    assert_equal(smallest, in_memory)


def test_a_hundredth_of_the_rows_in_memory(tmp_path: Path) -> None:
    """Needs so many rows that a hundredth of them still holds a batch of 64 x 26 keys."""
    log = write_criteo(tmp_path / "log.txt", 14_000, num_keys=400_000)
    whole = run(log, tmp_path / "whole")
    budget = whole["rows"] * SLOT_BYTES // 100
    figures = run(log, tmp_path / "store", dram=budget)
    assert whole["rows"] > 170_000
    assert evictions(whole) == 0 and evictions(figures) > 170_000
    assert figures["tiers"]["ssd_store"]["hits"] > 10_000
    assert_equal(figures, whole)


def test_another_engine_below(log: Path, tmp_path: Path, in_memory: dict[str, Any]) -> None:
    pytest.importorskip("rocksdict")
    figures = run(log, tmp_path / "store", engine="rocksdb", dram="512KiB")
    assert evictions(figures) > 1000 and figures["tiers"]["ssd_store"]["hits"] > 1000
    assert_equal(figures, in_memory)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("budget", ["64MiB", "512KiB"])
def test_any_number_of_threads(
    log: Path, tmp_path: Path, in_memory: dict[str, Any], threads: int, budget: str, top: str
) -> None:
    figures = run(log, tmp_path / "store", threads=threads, **budgets(top, budget))
    assert (evictions(figures) > 0) == (budget == "512KiB")
    assert_equal(figures, in_memory)


@pytest.mark.parametrize("instruction_set", ["plain", "avx2", "avx512"])
def test_any_instruction_set(
    log: Path, tmp_path: Path, in_memory: dict[str, Any], instruction_set: str
) -> None:
    try:
        figures = run(log, tmp_path / "store", instruction_set=instruction_set, dram="512KiB")
    except hps.ConfigError as error:
        pytest.skip(f"this processor: {error}")
    assert evictions(figures) > 0
    assert_equal(figures, in_memory)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam", "ftrl"])
def test_any_optimizer(log: Path, tmp_path: Path, optimizer: str) -> None:
    whole = run(log, tmp_path / "whole", optimizer=optimizer)
    assert evictions(whole) == 0
    for top in ("dram", "gpu"):
        small = budgets(top, "512KiB")
        figures = run(log, tmp_path / top, optimizer=optimizer, **small)
        assert evictions(figures) > 0
        assert_equal(figures, whole)
