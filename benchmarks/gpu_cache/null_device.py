"""The host's part of a step over a gpu_cache on a device: a device that does nothing, by phase.

Above it: gpu_cache_bench.py, `--null-device`. Below it: hps/gpu_cache, an hps.ParameterServer over
it. Kernels and copies are asked for and not done, so that what is left is hps's own Python; what
the driver and CuPy take for each launch (some microseconds) comes on top, which is why the launches
are in the result. Torch's operators on tensors of the device run on the host here: batches are so
small that this is the time of asking for them. Every row is in the gpu_cache: the device answers
that none is missing. The stages run one after the other in one thread. A step is what a training
loop calls: SparseEmbeddings, backward with a given gradient, RowOptimizer; torch's own part of that
is measured beside it, as a step of an autograd function and an optimizer that do nothing.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch

import hps
from benchmarks.common.report import comparison_row
from benchmarks.common.server import scratch_server
from benchmarks.common.timing import Samples
from benchmarks.gpu_cache.options import LR
from benchmarks.parameter_server.many_tables.python_share import NOTHING, StepOfNothing
from hps import _C
from hps.common.arrays import HostArray
from hps.common.bags import bags_of
from hps.common.row_layout import Keys
from hps.contracts.row_cache import DIRTY, AnyRowCache
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.kernels import KernelArgs
from hps.parameter_server.opening import Tiers

TABLES = (1, 10, 26)
DIM, EXAMPLES, KEYS_A_BAG = 16, 32, 2
UNIT = "us a step"
# Of docs/decisions/0041-a-step-on-a-device.md, for any number of tables.
_AIMS = {"all threads": 150.0, "training thread": 40.0}
_STEPS = 20  # a repetition; their median counts
_TRAINING = ("forward", "backward", "step", "release")
_PHASES = ("warm", "bags", "pin", *_TRAINING)


class NullDevice:
    """Keeps the contract of hps/gpu_cache/device.py and does nothing, but answers.

    Args:
        num_keys: of every batch of a table, all of which are here.
        num_unique: distinct ones.
        num_tables: that are asked together.
    """

    def __init__(self, num_keys: int, num_unique: int, num_tables: int) -> None:
        self.torch_device = torch.device("cpu")
        self.args = KernelArgs()
        launch, copy = _C.idle_driver()
        functions = dict.fromkeys(self.args.lanes, 1)
        self.launcher = _C.Launcher(launch=launch, copy=copy, functions=functions, most_blocks=1)
        numbers = np.zeros(1, self.args.dtype("BatchNumbers"))
        numbers["num_unique"] = numbers["window_size"] = num_unique
        presence = np.full(num_keys, DIRTY, np.uint8)
        # By their bytes: what copies to the host bring, if anything.
        self._answers = {
            tables * len(one): np.tile(one, tables)
            for one in (_bytes(numbers), presence)
            for tables in (1, num_tables)
        }
        assert len(self._answers) == (2 if num_tables == 1 else 4), "two answers of one size"

    def empty(self, num_bytes: int) -> torch.Tensor:
        """See Device."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        """See Device."""
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def stream(self) -> int:
        """See Device."""
        return 0

    def launch(self, kernel: str, args: HostArray, count: int) -> None:
        """See Device."""
        self.launcher.launch(kernel, args.tobytes(), count, 0)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See Device."""
        answer = self._answers.get(target.numel())
        if answer is not None and target.dtype == torch.uint8:
            target.numpy()[:] = answer

    def fill(self, target: torch.Tensor, value: int) -> None:
        """See Device."""

    def prefix_sum(self, target: torch.Tensor) -> None:
        """See Device."""

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        """See Device."""

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """See Device."""
        return True

    def event(self) -> "NullDevice":
        """See Device."""
        return self

    def synchronize(self) -> None:
        """See DeviceEvent."""

    def query(self) -> bool:
        """See DeviceEvent."""
        return True

    def order(self) -> "NullDevice":
        """See Device."""
        return self

    def verb(self, *memory: object, plans: object = ()) -> "NullDevice":
        """See VerbOrder."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _bytes(array: HostArray) -> HostArray:
    return array.view(np.uint8)


class NullSteps:
    """Steps over tables alike, phase by phase, in one thread.

    Args:
        server: over a NullDevice.
        names: of its tables.
        keys: of a batch, of each table.
    """

    def __init__(self, server: Any, names: list[str], keys: Keys) -> None:
        self._server, self._names, self._keys = server, names, keys
        self._keys_there = torch.from_numpy(keys.view(np.int64))  # as the copy stage has them
        length = EXAMPLES * KEYS_A_BAG
        self._offsets = torch.arange(0, length + 1, KEYS_A_BAG)
        self._features: dict[str, hps.Ids] = {}
        self._embeddings = hps.SparseEmbeddings(server, dict.fromkeys(names, 1))
        self._optimizer = hps.RowOptimizer(server)
        self._grads = torch.zeros(EXAMPLES, len(names) * DIM)
        self._nothing = torch.zeros(EXAMPLES)
        self._rows: Any = None
        self._batch: Any = None
        self._output = self._grads

    def warm(self) -> None:
        """What the fetch stage does."""
        of_tables = dict.fromkeys(self._names, self._keys)
        for rows in self._server.queued.warming(of_tables).values():
            rows.release()

    def bags(self) -> None:
        """What the copy stage does first, besides copies: offsets are checked and measured."""
        keys, features = self._keys_there, {}
        for name in self._names:
            features[name] = hps.Ids(keys, self._offsets)
        self._features = {
            name: hps.Ids(keys, bags.offsets, None, bags)
            for name, bags in bags_of(features, "cpu", "the batch").items()
        }

    def pin(self) -> None:
        """What it does then."""
        self._rows = self._server.queued.pin_joint(self._features, EXAMPLES)
        rows = dict(self._rows.of_tables())
        dense = self._nothing.view(EXAMPLES, 1)
        self._batch = hps.Batch(self._features, dense, self._nothing, rows=rows)

    def forward(self) -> None:
        """Of the training loop."""
        self._output = self._embeddings(self._batch)

    def backward(self) -> None:
        """The same."""
        self._output.backward(self._grads)  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """The same."""
        self._optimizer.step()

    def release(self) -> None:
        """What the Pipeline does behind the step."""
        self._rows.release()

    def microseconds(self) -> dict[str, float]:
        """Of a phase the median over some steps."""
        work: dict[str, Callable[[], None]] = {name: getattr(self, name) for name in _PHASES}
        spent: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(_STEPS):
            for name, phase in work.items():
                begun = perf_counter()
                phase()
                spent[name].append(1e6 * (perf_counter() - begun))
        return {name: float(np.median(values)) for name, values in spent.items()}


def measure(num_tables: int, repetitions: int) -> tuple[dict[str, Samples], int]:
    """Microseconds by phase, of all and of the training thread; launches a step."""
    keys = np.arange(EXAMPLES * KEYS_A_BAG, dtype=np.uint64) // 2
    device = NullDevice(len(keys), len(np.unique(keys)), num_tables)
    failures = Failures(device)
    names = [f"table{i}" for i in range(num_tables)]
    optimizer = hps.RowWiseAdagrad(lr=LR)
    tables = [hps.TableConfig(name=name, dim=DIM, optimizer=optimizer) for name in names]

    def caches(config: hps.Config) -> dict[str, AnyRowCache]:
        return make_gpu_caches(
            config, lambda options: cast("Any", DeviceCache(device, failures, options))
        )

    gpu = hps.GpuCacheConfig(bytes=num_tables * 2**22, device="cpu")
    tiers = Tiers(make_gpu_caches=caches)
    with scratch_server(tables, num_tables * 2**20, 1, gpu=gpu, tiers=tiers) as server:
        steps = NullSteps(server, names, keys)
        steps.microseconds()
        before = device.launcher.num_launches
        found = [steps.microseconds() for _ in range(repetitions)]
    launches, rest = divmod(device.launcher.num_launches - before, repetitions * _STEPS)
    assert rest == 0, "steps differ"
    sums = {"all threads": _PHASES, "training thread": _TRAINING} | {one: (one,) for one in _PHASES}
    samples = {
        name: Samples(tuple(sum(one[phase] for phase in phases) for one in found))
        for name, phases in sums.items()
    }
    return samples, launches


def run_null_device(smoke: bool, repetitions: int) -> dict[str, Any]:
    """Rows: what hps's own code takes, beside the aims, and each phase beside all of them."""
    rows: list[dict[str, Any]] = []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else operators on the host wake others, as a device's do not
    try:
        _add_rows(rows, smoke, repetitions)
    finally:
        torch.set_num_threads(num_threads)
    length = EXAMPLES * KEYS_A_BAG
    return {"axes": {"tables": list(TABLES), "keys": [length], "dim": [DIM]}, "rows": rows}


def _add_rows(rows: list[dict[str, Any]], smoke: bool, repetitions: int) -> None:
    nothing = StepOfNothing(DIM, _STEPS)
    empty = Samples(tuple(nothing.microseconds() for _ in range(repetitions)))
    for num_tables in TABLES[:1] if smoke else TABLES:
        samples, launches = measure(num_tables, repetitions)
        for phase, values in samples.items():
            axes = {"device": "null", "tables": num_tables, "launches": launches, "phase": phase}
            baseline = ("all threads", samples["all threads"])
            if phase in _AIMS:
                baseline = ("the aim", Samples((_AIMS[phase],) * len(values.values)))
            rows.append(comparison_row(axes, UNIT, values, baseline, lower_is_better=True))
            if phase == "training thread":
                rows.append(
                    comparison_row(axes, UNIT, values, (NOTHING, empty), lower_is_better=True)
                )
