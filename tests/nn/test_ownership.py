"""A gradient is kept without a copy where nobody else refers to it, and only there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

from hps.nn import ownership
from hps.nn.ownership import count_references, is_unshared

Case = Callable[[torch.Tensor, list[Any]], None]  # output of a look-up [4, 6], what is kept of it

FACTORS = torch.rand(4, 6)


class LookUp(torch.autograd.Function):
    """Notes of each gradient whether it was nobody else's."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, found: list[bool]) -> torch.Tensor:
        ctx.found = found
        return torch.ones(4, 6)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:
        references = count_references(grad)
        ctx.found.append(is_unshared(grad, references))
        return None, None


@pytest.fixture(autouse=True)
def counted_anew() -> None:
    """Whatever the first backward of this process was."""
    ownership._unshared.cache_clear()
    ownership.prepare()


def judged(case: Case) -> bool:
    """What the look-up's backward says of its gradient."""
    found: list[bool] = []
    kept: list[Any] = []
    case(LookUp.apply(torch.empty(0, requires_grad=True), found), kept)
    (answer,) = found
    return answer


def _times(output: torch.Tensor, kept: list[Any]) -> None:
    (output * FACTORS).sum().backward()


def _linear(output: torch.Tensor, kept: list[Any]) -> None:
    torch.nn.Linear(6, 3)(output).sum().backward()


def _view(output: torch.Tensor, kept: list[Any]) -> None:
    (output.view(4, 2, 3) * FACTORS.view(4, 2, 3)).sum().backward()


def _two_uses(output: torch.Tensor, kept: list[Any]) -> None:
    vectors, first = torch.split_with_sizes(output.view(4, 2, 3), [2, 1], dim=2)
    (vectors.square().sum() + first.sum()).backward()


def _retained(output: torch.Tensor, kept: list[Any]) -> None:
    output.retain_grad()  # torch's own copy
    _times(output, kept)


@pytest.mark.parametrize("case", [_times, _linear, _view, _two_uses, _retained])
def test_a_gradient_that_nobody_keeps_is_not_copied(case: Case) -> None:
    assert judged(case)


def _hooked(keep: Callable[[torch.Tensor], Any], shape: tuple[int, ...] = (4, 6)) -> Case:
    def case(output: torch.Tensor, kept: list[Any]) -> None:
        viewed = output if shape == (4, 6) else output.view(shape)
        viewed.register_hook(lambda grad: kept.append(keep(grad)))
        (viewed * FACTORS.view(shape)).sum().backward()

    return case


def _given(output: torch.Tensor, kept: list[Any]) -> None:
    kept.append(torch.rand(4, 6))
    output.backward(kept[0])


def _given_to_a_sum(output: torch.Tensor, kept: list[Any]) -> None:
    kept.append(torch.rand(4, 6))
    (output + torch.rand(4, 6, requires_grad=True)).backward(kept[0])


def _spread(output: torch.Tensor, kept: list[Any]) -> None:
    output.sum().backward()


def _part_of_another(output: torch.Tensor, kept: list[Any]) -> None:
    beside = torch.rand(2, 6, requires_grad=True)
    (torch.cat([output, beside]) * torch.rand(6, 6)).sum().backward()


@pytest.mark.parametrize(
    "case",
    [
        _hooked(lambda grad: grad),
        _hooked(lambda grad: grad.view(-1)),
        _hooked(lambda grad: grad.detach()),
        _hooked(lambda grad: grad.data),
        _hooked(lambda grad: grad.numpy()),
        _hooked(lambda grad: grad, (4, 2, 3)),
        _hooked(lambda grad: grad.detach(), (4, 2, 3)),
        _given,
        _given_to_a_sum,
        _spread,
        _part_of_another,
    ],
)
def test_a_gradient_that_somebody_may_change_is_copied(case: Case) -> None:
    assert not judged(case)


def test_a_gradient_that_two_look_ups_get_is_copied_for_one_of_them() -> None:
    found: list[bool] = []
    anchor = torch.empty(0, requires_grad=True)
    outputs = [LookUp.apply(anchor, found) for _ in range(2)]
    ((outputs[0] + outputs[1]) * FACTORS).sum().backward()
    assert found.count(True) <= 1


def test_a_torch_that_counts_no_references_has_all_copied(monkeypatch: Any) -> None:
    monkeypatch.setattr(ownership, "_storage_use_count", None)
    assert not judged(_times)


def test_a_gradient_that_stands_for_its_negatives_is_copied() -> None:
    """What lies in its memory is not what it says."""
    grad = torch.ones(2, 4)
    for references in ownership._unshared():
        assert is_unshared(grad, references)
        assert not is_unshared(torch._neg_view(grad), references)
