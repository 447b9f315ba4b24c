"""Python's share of a step: what a step over few keys takes, less what native code takes of it.

One example with one key a table, all rows in DRAM, so that the native core has next to nothing to
do. Above it: many_tables_bench.py. Below it: hps's public interface; the names of hps._C, for the
clock.

How it is measured. A step is a forward, a backward with a given gradient and RowOptimizer.step().
In one round of steps nothing but the whole step is timed. In the next round every method and
function of hps._C is wrapped in a clock, and what they take is summed up; of calls within calls the
outer one counts. A round's figure is the median step. The difference is Python's share: hps's
Python, and the machinery of torch for an autograd function and an optimizer, which is measured by
itself as a step that does nothing. Reading a native property counts as Python's.
"""

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import hps
from benchmarks.common.jagged import JaggedTensor
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples, StepTimer
from benchmarks.parameter_server.many_tables.hps_tables import full_server
from benchmarks.parameter_server.many_tables.workload import (
    EQUAL_DIM,
    equal_shape,
    make_workload,
)
from hps import _C

MOST_MICROSECONDS = 60.0
ALLOWED = "60 us"
NOTHING = "torch: an autograd function and an optimizer that do nothing"
UNIT = "us of Python a step"
_ROWS = 1000
_NATIVE_METHODS = ("nb_method", "nb_func")


class NativeClock:
    """Seconds inside calls of hps._C while it is installed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_calls = 0
        self._depth = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Puts the clock round every native function and method, and takes it off again."""
        before: list[tuple[Any, str, Any]] = []
        owners = [_C, *(one for one in vars(_C).values() if isinstance(one, type))]
        for owner in owners:
            for name, value in list(vars(owner).items()):
                if type(value).__name__ in _NATIVE_METHODS and not name.startswith("__"):
                    before.append((owner, name, value))
        try:
            for owner, name, value in before:
                setattr(owner, name, self._timed(value))
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **named: Any) -> Any:
            if self._depth:
                return call(*args, **named)
            self._depth = 1
            start = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                self.seconds += time.perf_counter() - start
                self.num_calls += 1
                self._depth = 0

        return timed


class TinyStep:
    """Steps over one example of so many tables: a KeyedJaggedTensor if `is_joint`, else a Batch."""

    def __init__(self, server: Any, tables: int, is_joint: bool, num_steps: int) -> None:
        work = make_workload(equal_shape(1, tables=tables, rows=_ROWS), num_batches=16)
        names, features = work.shape.names, dict.fromkeys(work.shape.names, 1)
        self._inputs: list[Any] = [one.batch for one in work.batches]
        if is_joint:  # its features have the names of their tables
            features = {name: name for name in names}
            self._inputs = [JaggedTensor(names, one.keys, one.offsets) for one in work.batches]
        self._grads = work.grads
        self._embeddings = hps.SparseEmbeddings(server, features)
        self._optimizer = hps.RowOptimizer(server)
        self._timer = StepTimer(self._step, len(self._inputs), num_steps)
        self._num_steps = num_steps
        self.whole: list[float] = []  # microseconds, a round each
        self.native: list[float] = []
        self.native_calls = 0

    def _step(self, idx: int) -> None:
        self._embeddings(self._inputs[idx]).backward(self._grads)
        self._optimizer.step()

    def share(self) -> float:
        """One repetition: Python's microseconds a step."""
        self.whole.append(1e6 * self._timer.median_seconds())
        clock = NativeClock()
        inside = []
        with clock.installed():
            for idx in range(self._num_steps):
                clock.seconds, clock.num_calls = 0.0, 0
                self._step(idx % len(self._inputs))
                inside.append(clock.seconds)
        assert clock.num_calls, "no native call was seen; the clock is at the wrong place"
        self.native.append(1e6 * statistics.median(inside))
        self.native_calls = clock.num_calls
        return self.whole[-1] - self.native[-1]

    @property
    def notes(self) -> dict[str, float]:
        """What the share was made from: medians over the repetitions."""
        return {
            "whole_step_us": statistics.median(self.whole),
            "native_us": statistics.median(self.native),
            "native_calls": self.native_calls,
        }


class _Nothing(torch.autograd.Function):
    """Forward makes an output, backward takes its gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, width: int) -> torch.Tensor:
        return torch.empty(1, width)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:
        return None, None


class _NoOptimizer(torch.optim.Optimizer):
    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.empty(0))], defaults={})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


class _NoModule(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self._anchor = torch.empty(0, requires_grad=True)
        self._width = width

    def forward(self, ids: None) -> torch.Tensor:
        output: torch.Tensor = _Nothing.apply(self._anchor, self._width)
        return output


class StepOfNothing:
    """A module, an autograd function and an optimizer without any work in them."""

    def __init__(self, width: int, num_steps: int) -> None:
        self._module, self._optimizer = _NoModule(width), _NoOptimizer()
        self._grads = torch.zeros(1, width)
        self._timer = StepTimer(self._step, 1, num_steps)

    def _step(self, idx: int) -> None:
        self._module(None).backward(self._grads)
        self._optimizer.step()

    def microseconds(self) -> float:
        """The median step of one repetition."""
        return 1e6 * self._timer.median_seconds()


def python_rows(options: dict[str, Any]) -> list[Row]:
    """Python's share for each number of tables, of an hps.Batch and of a KeyedJaggedTensor: beside
    what is allowed, a step of nothing, and the share for the fewest tables."""
    num_steps, counts = options["tiny_steps"], options["python_tables"]
    with contextlib.ExitStack() as lifetime:
        steps: dict[tuple[str, int], TinyStep] = {}
        for tables in counts:
            shape = equal_shape(1, tables=tables, rows=_ROWS)
            server = full_server(shape, options["threads"], lifetime)
            for is_joint, kind in ((False, "Batch"), (True, "KeyedJaggedTensor")):
                steps[kind, tables] = TinyStep(server, tables, is_joint, num_steps)
        nothing = StepOfNothing(EQUAL_DIM * max(counts, default=1), num_steps)
        shares: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
        empty = []
        for _ in range(options["repetitions"]):
            empty.append(nothing.microseconds())
            for key, step in steps.items():
                shares[key].append(step.share())
    rows: list[Row] = []
    allowed = Samples((MOST_MICROSECONDS,) * options["repetitions"])
    for (kind, tables), step in steps.items():
        value = Samples(tuple(shares[kind, tables]))
        baselines = {ALLOWED: allowed, NOTHING: Samples(tuple(empty))}
        if tables != counts[0]:
            name = f"hps, {counts[0]} table" + "s" * (counts[0] > 1)
            baselines[name] = Samples(tuple(shares[kind, counts[0]]))
        axes = {"tables": tables, "kind": f"one example, {kind}", "dim": EQUAL_DIM}
        axes |= {"rows": tables * _ROWS, "examples": 1, "bag": 1}
        for name, one in baselines.items():
            floor = 1.0 if name == ALLOWED else None
            row = comparison_row(axes, UNIT, value, (name, one), floor=floor, lower_is_better=True)
            rows.append(row | {"notes": step.notes})
    return rows
