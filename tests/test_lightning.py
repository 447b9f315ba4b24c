"""The example of Lightning's Trainer trains as a plain loop does, and goes on from its checkpoints.

Above it: pytest. Below it: examples/lightning_loop.py. It is left out where lightning is not
installed, which the development environment does not have: `pip install --no-deps lightning
lightning-utilities torchmetrics pytorch-lightning tqdm`.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import hps

pytest.importorskip("lightning", reason="lightning is not installed")
from examples import lightning_loop as example

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("lightning") / "log.tsv"
    example.write_log(log)
    return log


@pytest.fixture(scope="module")
def whole(log: Path) -> tuple[Any, str]:
    """The module of a run that was not stopped, and the digest of its rows."""
    return example.fit(log.parent / "whole", log)


def is_same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def test_the_trainer_does_what_a_plain_loop_does(whole: tuple[Any, str], log: Path) -> None:
    config = hps.Config(path=log.parent / "plain", tables=example.TABLES)
    with hps.ParameterServer(config) as server:
        batches = example.Batches(log, server)
        torch.manual_seed(0)
        features, num_dense = batches.reader.features["ads"], batches.reader.num_dense
        module = example.Clicks(server, len(features), num_dense)
        optimizer = module.configure_optimizers()
        for number, batch in enumerate(batches, 1):
            (module.training_step(batch, number) / example.BATCHES_A_STEP).backward()
            if number % example.BATCHES_A_STEP == 0:
                module.row_optimizer.step()
                optimizer.step()
                optimizer.zero_grad()
        assert server.digest("ads") == whole[1]
    assert module.losses == whole[0].losses and len(module.losses) == example.BATCHES
    assert is_same(module.tower, whole[0].tower)
    assert sum(module.losses[-10:]) < sum(module.losses[:10]) - 0.3


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    whole: tuple[Any, str], log: Path
) -> None:
    folder = log.parent / "parts"
    _, digest = example.fit(folder, log, steps=13)
    assert digest != whole[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*resum.*")  # of a loader that cannot
        resumed, digest = example.fit(folder, log, resume=True)
    assert digest == whole[1]
    assert resumed.losses == whole[0].losses[20:]
    assert is_same(resumed.tower, whole[0].tower)


def test_a_step_that_is_refused_changes_neither_rows_nor_the_dense_part(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def bad_step(module: Any, batch: hps.Batch, number: int) -> torch.Tensor:
        loss = plain_step(module, batch, number)
        if number == 7:
            server = module.embedding.server
            dense = [parameter.detach().clone() for parameter in module.tower.parameters()]
            seen.extend([module, dense, server, server.digest("ads")])
            return loss * float("inf")
        return loss

    plain_step = example.Clicks.training_step
    monkeypatch.setattr(example.Clicks, "training_step", bad_step)
    monkeypatch.setattr(hps.ParameterServer, "__exit__", lambda *_: None)  # to look at it
    with pytest.raises(hps.NonFiniteError, match="ads"):
        example.fit(log.parent / "refused", log)
    module, dense, server, digest = seen
    assert server.digest("ads") == digest
    assert all(torch.equal(*pair) for pair in zip(module.tower.parameters(), dense, strict=True))
    server.close()
