"""RowOptimizer.step as torch wraps every optimizer's: hooks of the optimizer and of all optimizers,
the range in a profile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import hps


@pytest.fixture
def optimizer(tmp_path: Path) -> Iterator[hps.RowOptimizer]:
    tables = [hps.TableConfig(name="ads", dim=2, optimizer=hps.SGD(lr=0.5))]
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        yield hps.RowOptimizer(server)


@contextmanager
def removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def test_hooks_of_the_optimizer_see_each_step_while_they_are_registered(
    optimizer: hps.RowOptimizer,
) -> None:
    seen: list[str] = []

    def closure() -> float:
        seen.append("step")
        return 2.0

    optimizer.step()
    with removed(optimizer.register_step_pre_hook(lambda *_: seen.append("before"))):
        optimizer.step()
        with removed(optimizer.register_step_post_hook(lambda *_: seen.append("after"))):
            optimizer.step(closure)
    optimizer.step()
    assert seen == ["before", "before", "step", "after"]


def test_hooks_of_all_optimizers_see_the_step(optimizer: hps.RowOptimizer) -> None:
    seen: list[object] = []
    with removed(register_optimizer_step_pre_hook(lambda one, *_: seen.append(one))):
        optimizer.step()
    with removed(register_optimizer_step_post_hook(lambda one, *_: seen.append(one))):
        optimizer.step()
    optimizer.step()
    assert seen == [optimizer, optimizer]


def test_a_profile_has_the_range_of_the_step(optimizer: hps.RowOptimizer) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    names = [event.key for event in profile.key_averages()]
    assert "Optimizer.step#RowOptimizer.step" in names


def test_without_a_profile_no_range_is_opened(
    optimizer: hps.RowOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str) -> None:
        raise AssertionError(f"a range {name!r} was opened")

    monkeypatch.setattr(torch.autograd.profiler, "record_function", opened)
    optimizer.step()
    assert optimizer.step(lambda: 1.5) == 1.5
