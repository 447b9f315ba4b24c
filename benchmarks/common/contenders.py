"""Who takes part in a benchmark of training steps over bags: checked against each other, then timed
in turn.

Above it: pooled_step, many_tables. Below it: timing.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

from benchmarks.common.timing import Samples, StepTimer, interleave


class Contender(Protocol):
    """Tables that can do a pooled training step."""

    def step(self, idx: int) -> None:
        """Forward, backward and optimizer on batch `idx`."""

    def read(self, idx: int) -> torch.Tensor:
        """float32 [examples, features * dim]: what batch `idx` reads now."""

    def check(self) -> None:
        """Asserts what the figure rests on, after the run."""


class FusedContender:
    """A peer whose backward updates its tables, so that forward and backward are its step.

    Args:
        forward: of the number of a batch what it reads, float32 [examples, features * dim].
        grads: the gradient of that, of each batch.
    """

    def __init__(self, forward: Callable[[int], torch.Tensor], grads: torch.Tensor) -> None:
        self._forward = forward
        self._grads = grads

    def step(self, idx: int) -> None:
        self._forward(idx).backward(self._grads)

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(idx)

    def check(self) -> None:
        pass


def same_answers(contenders: Mapping[str, Contender], apart: Iterable[str] = ()) -> None:
    """Steps everyone once on batch 0 and compares what each then reads.

    Adagrad's first step is the sign of a sum, which another order of additions turns round where it
    is nearly 0: a few sums of bags may differ.

    Args:
        contenders: by name.
        apart: names of those that step, but by another rule, so that they read something else.
    """
    for contender in contenders.values():
        contender.step(0)
    alike = {name: one for name, one in contenders.items() if name not in apart}
    (first, reference), *others = ((name, one.read(0)) for name, one in alike.items())
    for name, sums in others:
        are_close = torch.isclose(reference, sums, rtol=1e-3, atol=1e-4)
        part = float(are_close.float().mean())
        assert part > 0.99, f"{name} differs from {first} in {1 - part:.2%} of the sums"


def rates(
    contenders: Mapping[str, Contender],
    amount: float,
    num_batches: int,
    steps: int,
    repeat: int,
    bounds: Mapping[str, Callable[[], float]] | None = None,
) -> dict[str, Samples]:
    """Interleaved repetitions of so many steps each, in `amount` a second.

    Args:
        bounds: what is timed beside them, by name: each returns the seconds of a step.
    """
    measures: dict[str, Callable[[], float]] = {
        name: lambda seconds=seconds: amount / seconds()  # type: ignore[misc]
        for name, seconds in (bounds or {}).items()
    }
    for name, contender in contenders.items():
        timer = StepTimer(contender.step, num_batches, steps)
        timer.median_seconds()
        measures[name] = lambda timer=timer: amount / timer.median_seconds()  # type: ignore[misc]
    return interleave(measures, repeat)
