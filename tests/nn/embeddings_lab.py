"""Six tables of several dims and optimizers, batches for them, and the same look-ups by a
SparseEmbedding a table.

Above it: the tests of SparseEmbeddings. Below it: the public names of hps.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import hps
from hps.parameter_server.opening import Tiers
from tests.lab import random_floats, random_keys
from tests.twins.dram_cache import TwinDramCache

OPTIMIZERS: dict[str, Any] = {
    "one": hps.SGD(lr=0.1),
    "four": hps.Adagrad(lr=0.1),
    "sixteen": hps.RowWiseAdagrad(lr=0.1),
    "twenty": hps.Adam(lr=0.01),
    "many": hps.FTRL(lr=0.1, l1=0.001, l2=0.01),
    "most": hps.Adagrad(lr=0.05),
}
DIMS = {"one": 1, "four": 4, "sixteen": 16, "twenty": 20, "many": 64, "most": 128}
# Each table's features in the order in which batches have them.
NAMES = {
    "one": ("a", "b", "c"),
    "four": ("d", "e"),
    "sixteen": ("f",),
    "twenty": ("g", "h"),
    "many": ("i",),
    "most": ("j", "k"),
}
# In the order of the columns: some side by side, some apart, some the other way round.
FEATURES = {name: table for table in NAMES for name in NAMES[table] if name in "adgjbi"}
FEATURES |= {name: table for table in reversed(NAMES) for name in reversed(NAMES[table])} | FEATURES
POOLING: dict[str, Any] = {"one": "sum", "four": "mean", "twenty": "mean", "most": "sum"}
EXAMPLES = 24


def tables(optimizer: Any = None) -> list[hps.TableConfig]:
    """All six; each has its own optimizer unless told."""
    return [
        hps.TableConfig(
            name=name, dim=DIMS[name], optimizer=optimizer or OPTIMIZERS[name], features=NAMES[name]
        )
        for name in NAMES
    ]


def config_of(folder: Path, dram: str = "64MiB", optimizer: Any = None, **options: Any) -> Any:
    """The config of a store of all six."""
    return hps.Config(
        path=folder / "store",
        tables=tables(optimizer),
        dram=hps.DramCacheConfig(bytes=dram),
        **{"threads": 2, **options},
    )


def tiers_of(kind: str) -> Tiers:
    """The native tiers; of the kind "twins" caches that have no joint look-ups."""
    return Tiers(make_cache=TwinDramCache) if kind == "twins" else Tiers()


def open_tables(
    folder: Path, dram: str = "64MiB", kind: str = "dram", **options: Any
) -> hps.ParameterServer:
    """A server of all six; options as config_of. Of the kind "gpu" the host build of gpu_cache is
    over it; of the kind "twins" tables are worked off one by one."""
    if kind == "gpu":
        options["gpu"] = hps.GpuCacheConfig(bytes="8MiB", device="cpu")
    server = hps.ParameterServer(config_of(folder, dram, **options), _tiers=tiers_of(kind))
    assert (server.joint is None) == (kind == "twins")
    return server


def draw_bags(
    generator: np.random.Generator, lengths: NDArray[np.int64], num_keys: int, *, weighted: bool
) -> hps.Ids:
    """Bags of these lengths of a few random keys; some weights are 0, some below."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    keys = generator.choice(random_keys(generator, num_keys, 5 * num_keys), int(offsets[-1]))
    weights = random_floats(generator, len(keys)) if weighted else None
    if weights is not None:
        weights[::5] = 0
    return hps.Ids(
        torch.from_numpy(keys.view(np.int64)),
        torch.from_numpy(offsets),
        None if weights is None else torch.from_numpy(weights),
    )


def draw_batch(seed: int, num_examples: int = EXAMPLES, num_keys: int = 80) -> hps.Batch:
    """A batch in which table "one" has a key a bag, "four" empty and short bags and weights,
    "sixteen" no key at times, "twenty" one key in many bags, "many" weights, "most" long bags."""
    generator = np.random.default_rng([seed, num_examples])
    features = {}
    for name in generator.permutation(list(NAMES)) if seed % 2 else NAMES:
        table = str(name)
        num_bags = len(NAMES[table]) * num_examples
        lengths = generator.integers(0, 6, num_bags)
        own_keys = num_keys
        match table:
            case "one":
                lengths[:] = 1
            case "sixteen":
                lengths *= seed % 3 > 0
            case "twenty":
                own_keys = 3
            case "most" if num_bags:
                lengths[generator.integers(num_bags)] = 2500
        is_weighted = table in ("four", "many") or (table == "most" and seed % 2 == 1)
        features[table] = draw_bags(generator, lengths, own_keys, weighted=is_weighted)
    return hps.Batch(
        features, torch.zeros(num_examples, 0), torch.ones(num_examples), {"batch": seed}
    )


class ByTable(torch.nn.Module):
    """What SparseEmbeddings does, by a SparseEmbedding a table."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self._modules |= {
            name: hps.SparseEmbedding(server, name, POOLING.get(name, "sum")) for name in NAMES
        }

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        parts = {}
        for table, names in NAMES.items():
            output = self._modules[table](batch)  # type: ignore[misc]
            parts |= zip(names, output.split(DIMS[table], dim=1), strict=True)
        return torch.cat([parts[name] for name in FEATURES], dim=1)


def joint(server: Any, dtype: torch.dtype = torch.float32) -> hps.SparseEmbeddings:
    """All features in one call."""
    return hps.SparseEmbeddings(server, FEATURES, POOLING, dtype)


def slope_of(output: torch.Tensor) -> torch.Tensor:
    """A gradient for an output, other in each place."""
    slope = torch.sin(torch.arange(output.numel(), dtype=torch.float32))
    return slope.view_as(output).to(output.dtype)


Between = Callable[[Any, torch.nn.Module, int], object]


def train(
    server: Any,
    module: torch.nn.Module,
    batches: list[hps.Batch],
    *,
    depth: int | None = None,
    accumulate: int = 1,
    between: Between = lambda server, module, number: None,
) -> tuple[list[bytes], dict[str, str]]:
    """The outputs of all batches, and the digests of all tables after their steps.

    Args:
        depth: of a pipeline; None for none.
        between: called between forward and step of each batch.
    """
    optimizer, outputs = hps.RowOptimizer(server), []

    def run(number: int, batch: hps.Batch) -> None:
        output = module(batch)
        between(server, module, number)
        output.backward(slope_of(output))
        if (number + 1) % accumulate == 0:
            optimizer.step()
        outputs.append(output.detach().float().numpy().tobytes())

    if depth is None:
        for number, batch in enumerate(batches):
            run(number, batch)
    else:
        with hps.Pipeline(batches, server, depth, accumulate) as prepared:
            for number, batch in enumerate(prepared):
                assert batch.rows is not None
                run(number, batch)
    assert getattr(server, "pins", 0) == 0  # of a client shards know
    return outputs, {name: server.digest(name) for name in server.tables}


def in_thread(work: Callable[[], object]) -> None:
    """Runs it in a thread of its own; raises what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class Jagged:
    """What SparseEmbeddings uses of a torchrec KeyedJaggedTensor.

    Args:
        batch: whose features it holds.
        names: of the features, in order.
        dtype: of the offsets.
    """

    def __init__(
        self, batch: hps.Batch, names: list[str], dtype: torch.dtype = torch.int64
    ) -> None:
        self._names, self._stride = names, len(batch)
        keys, lengths, weights = [], [], []
        self._is_weighted = any(ids.weights_L is not None for ids in batch.features.values())
        for name in names:
            table = next(table for table, own in NAMES.items() if name in own)
            ids, place = batch.features[table], NAMES[table].index(name)
            bags = ids.offsets[place * len(batch) : (place + 1) * len(batch) + 1]
            own = slice(int(bags[0]), int(bags[-1]))
            keys.append(ids.keys_L[own])
            lengths.append(bags.diff())
            plain = torch.ones(len(keys[-1]))
            weights.append(plain if ids.weights_L is None else ids.weights_L[own])
        self.keys_L, self.weights_L = torch.cat(keys), torch.cat(weights)
        whole = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
        self.offsets_L = whole.to(dtype)

    def keys(self) -> list[str]:
        return self._names

    def values(self) -> torch.Tensor:
        return self.keys_L

    def offsets(self) -> torch.Tensor:
        return self.offsets_L

    def weights_or_none(self) -> torch.Tensor | None:
        return self.weights_L if self._is_weighted else None

    def stride(self) -> int:
        return self._stride
