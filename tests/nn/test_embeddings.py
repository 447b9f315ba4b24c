"""SparseEmbeddings has the bits of a SparseEmbedding a table, and torch's numbers.

Above it: pytest. Below it: embeddings_lab.py. Steps and what is pending: test_embeddings_steps.py.
What is refused: test_embeddings_refusals.py. Other servers: test_embeddings_servers.py.
"""

import contextlib
import importlib.util
import pickle
import sys
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.nn.gradients import pending_of
from tests.lab import random_floats
from tests.nn.embeddings_lab import (
    DIMS,
    FEATURES,
    NAMES,
    POOLING,
    ByTable,
    Jagged,
    draw_batch,
    in_thread,
    joint,
    open_tables,
    slope_of,
    tables,
    train,
)
from tests.nn.test_threads import in_threads

NUM_BATCHES = 6
LISTED = [name for table in NAMES for name in NAMES[table]]  # as batches have them
Result = tuple[list[bytes], dict[str, str]]


@pytest.fixture(scope="module")
def by_table(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Result]:
    """What a SparseEmbedding a table makes of the batches, by batches a step."""
    found = {}
    for accumulate in (1, 2):
        with open_tables(tmp_path_factory.mktemp("by-table"), threads=1) as server:
            batches = [draw_batch(seed) for seed in range(NUM_BATCHES)]
            found[accumulate] = train(server, ByTable(server), batches, accumulate=accumulate)
    return found


def outcome(server: Any, **options: Any) -> Result:
    """What one call for all tables makes of the same batches."""
    batches = [draw_batch(seed) for seed in range(NUM_BATCHES)]
    return train(server, joint(server), batches, **options)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("instruction_set", ["auto", "avx512", "avx2", "plain"])
def test_outputs_and_rows_have_the_bits_of_a_module_a_table(
    tmp_path: Path, by_table: dict[int, Result], threads: int, instruction_set: str
) -> None:
    try:
        server = open_tables(tmp_path, threads=threads, instruction_set=instruction_set)
    except hps.ConfigError as error:
        pytest.skip(f"this processor: {error}")
    with server:
        assert server.joint is not None
        assert outcome(server) == by_table[1]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("depth", [None, 0, 1, 4])
def test_a_pipeline_changes_no_bit(
    tmp_path: Path, by_table: dict[int, Result], depth: int | None, accumulate: int
) -> None:
    with open_tables(tmp_path) as server:
        assert outcome(server, depth=depth, accumulate=accumulate) == by_table[accumulate]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("depth", "accumulate"), [(None, 1), (0, 2), (4, 1), (4, 2)])
def test_over_a_gpu_cache_on_the_host_no_bit_changes(
    tmp_path: Path, by_table: dict[int, Result], threads: int, depth: int | None, accumulate: int
) -> None:
    with open_tables(tmp_path, kind="gpu", threads=threads) as server:
        found = outcome(server, depth=depth, accumulate=accumulate)
        assert server.stats()["gpu_cache"]["hits"] > 0
    assert found == by_table[accumulate]


def test_a_torch_that_has_no_table_of_functions_changes_no_bit(
    tmp_path: Path, by_table: dict[int, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which it says where a tensor lies."""
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    with open_tables(tmp_path) as server:
        assert outcome(server) == by_table[1]
    monkeypatch.undo()
    assert hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


@pytest.mark.parametrize("depth", [None, 0, 4])
def test_rows_that_come_into_a_gpu_cache_and_leave_it_change_no_bit(
    tmp_path: Path, by_table: dict[int, Result], depth: int | None
) -> None:
    gpu = hps.GpuCacheConfig(bytes="1MiB", device="cpu")
    with open_tables(tmp_path, dram="2MiB", gpu=gpu) as server:
        found = outcome(server, depth=depth)
        assert server.stats()["tables"]["most"]["gpu_cache"]["evictions"] > 50
    assert found == by_table[1]


@pytest.mark.parametrize("depth", [None, 0, 4])
def test_rows_that_come_from_the_ssd_change_no_bit(
    tmp_path: Path, by_table: dict[int, Result], depth: int | None
) -> None:
    with open_tables(tmp_path, dram="1MiB") as server:
        found = outcome(server, depth=depth)
        stats = server.stats()["tables"]
        assert stats["most"]["dram_cache"]["evictions"] > 50
    assert found == by_table[1]


def test_what_others_do_between_forward_and_step_changes_no_bit(
    tmp_path: Path, by_table: dict[int, Result]
) -> None:
    """An evaluation by the same module; pulls and pins of another thread that put rows out."""

    def disturb(server: Any, module: torch.nn.Module, number: int) -> None:
        if number % 2:
            with torch.no_grad():
                module(draw_batch(100 + number))
            module.eval()(draw_batch(200 + number, 7))
            module.train()
        in_thread(lambda: pull_and_pin(server, number))

    def pull_and_pin(server: Any, number: int) -> None:
        for name in NAMES:
            keys = torch.arange(1000 * number, 1000 * number + 250)
            server.pull(name, keys)
            server.pin(name, keys[:20]).release()
            server.pin(name, draw_batch(number).features[name].keys_L[:9]).release()

    with open_tables(tmp_path, dram="1MiB") as server:
        assert outcome(server, between=disturb) == by_table[1]


@pytest.mark.parametrize("seed", range(2))
def test_what_changes_rows_between_forward_and_step_counts_as_it_does_by_table(
    tmp_path: Path, seed: int
) -> None:
    """Rows are erased, set, pushed, or all go back to a checkpoint."""

    def change(server: Any, module: torch.nn.Module, number: int) -> None:
        generator = np.random.default_rng([seed, number])
        for name in NAMES:
            keys = draw_batch(number).features[name].keys_L.unique()
            some = keys[torch.from_numpy(generator.random(len(keys)) < 0.3)]
            match int(generator.integers(5)):
                case 0:
                    server.erase(name, some)
                case 1:
                    server.assign(name, some, torch.ones(len(some), DIMS[name]))
                case 2:
                    server.push(name, some, torch.ones(len(some), DIMS[name]))
                case 3:
                    server.pull(name, torch.arange(500), create=True)
        if number == 2:
            server.checkpoint("earlier")
        if number == 4:
            server.restore("earlier")

    results = []
    for make in (ByTable, joint):
        with open_tables(tmp_path / make.__name__, dram="1MiB") as server:
            batches = [draw_batch(number) for number in range(6)]
            results.append(train(server, make(server), batches, between=change))
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference"])
def test_a_batch_that_no_cache_can_hold_is_read_to_the_same_bits(tmp_path: Path, mode: str) -> None:
    batch, outputs = draw_batch(1, num_examples=300, num_keys=20_000), []
    for dram in ("64MiB", "1MiB"):
        with open_tables(tmp_path / dram, dram=dram) as server:
            module = joint(server)
            if mode == "eval":
                output = module.eval()(batch)
            else:
                with torch.no_grad() if mode == "no_grad" else torch.inference_mode():
                    output = module(batch)
            outputs.append(output.clone())
            keys = len(batch.features["most"].keys_L.unique())
            slots = server.stats()["tables"]["most"]["dram_cache"]["capacity_rows"]
            assert (slots < keys) == (dram == "1MiB")
            assert not output.requires_grad and pending_of(server).is_empty
            assert server.pins == 0 and server.num_rows("most") == 0
    assert torch.equal(outputs[0], outputs[1])


def twin_outputs(
    rows: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], batch: hps.Batch
) -> torch.Tensor:
    """What should come out, from the distinct rows in the order of their keys, in their type."""
    parts = {}
    for table, names in NAMES.items():
        ids = batch.features[table]
        places = torch.searchsorted(ids.keys_L.unique(), ids.keys_L)
        values = rows[table][places] * weights[table][:, None]
        lengths = ids.offsets.diff()
        bags = torch.repeat_interleave(lengths)
        sums = torch.zeros(len(lengths), DIMS[table], dtype=values.dtype).index_add(0, bags, values)
        if POOLING.get(table) == "mean":
            sums = sums / lengths.clamp(min=1)[:, None]
        parts |= zip(names, sums.view(len(names), len(batch), -1), strict=True)
    return torch.cat([parts[name] for name in FEATURES], dim=1)


def with_weights(batch: hps.Batch, weights: dict[str, torch.Tensor]) -> hps.Batch:
    """The same batch with these weights in the place of its own."""
    features = {
        table: replace(ids, weights_L=weights[table]) for table, ids in batch.features.items()
    }
    return replace(batch, features=features)


@pytest.mark.parametrize("weights_learn", [False, True])
@pytest.mark.parametrize("form", ["batch", "pipeline", "jagged"])
def test_outputs_and_gradients_are_those_of_torch_in_float64(
    tmp_path: Path, form: str, weights_learn: bool
) -> None:
    batch = draw_batch(1)
    given = {
        table: torch.ones(len(ids.keys_L)) if ids.weights_L is None else ids.weights_L
        for table, ids in batch.features.items()
    }
    batch = with_weights(batch, {t: w.requires_grad_(weights_learn) for t, w in given.items()})
    jagged = Jagged(batch, list(FEATURES))
    jagged.weights_L = jagged.weights_L.detach().requires_grad_(weights_learn)
    keys = {table: ids.keys_L.unique() for table, ids in batch.features.items()}
    with (
        open_tables(tmp_path, optimizer=hps.SGD(lr=1.0)) as server,
        contextlib.ExitStack() as stack,
    ):
        before = {t: torch.as_tensor(server.pull(t, keys[t])).clone() for t in NAMES}
        source: Any = jagged if form == "jagged" else batch
        if form == "pipeline":
            source = next(stack.enter_context(hps.Pipeline([batch], server)))
        output = joint(server)(source)
        output.backward(slope_of(output))
        hps.RowOptimizer(server).step()
        changes = {t: before[t] - torch.as_tensor(server.pull(t, keys[t])) for t in NAMES}
    rows = {t: one.double().requires_grad_() for t, one in before.items()}
    weights = {t: one.detach().double().requires_grad_() for t, one in given.items()}
    expected = twin_outputs(rows, weights, batch)
    expected.backward(slope_of(output).double())
    close = {"rtol": 1e-4, "atol": 2e-5}  # of sums of up to 2500 terms
    torch.testing.assert_close(output.double(), expected, **close)
    for table in NAMES:
        torch.testing.assert_close(changes[table].double(), rows[table].grad, **close)
    if weights_learn:
        grads = {t: one.grad for t, one in weights.items() if one.grad is not None}
        found = {t: one.grad for t, one in given.items()}
        if form == "jagged":
            grads = {"": Jagged(with_weights(batch, grads), list(FEATURES)).weights_L}
            found = {"": jagged.weights_L.grad}
        for name, grad in grads.items():
            assert found[name] is not None and grad.abs().max() > 0.01
            torch.testing.assert_close(found[name].double(), grad, **close)


class Jagging(torch.nn.Module):
    """Gives a module each batch as a jagged tensor."""

    def __init__(self, module: torch.nn.Module, order: list[str], dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.order, self.dtype = module, order, dtype

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        output: torch.Tensor = self.module(Jagged(batch, self.order, self.dtype))
        return output


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "order", [list(FEATURES), [name for own in NAMES.values() for name in own]]
)
def test_a_jagged_tensor_has_the_bits_of_the_batch(
    tmp_path: Path, dtype: torch.dtype, order: list[str]
) -> None:
    """Where a table's features lie side by side, and where others lie between them."""
    table_of = {name: table for table, own in NAMES.items() for name in own}
    results = []
    for is_jagged in (False, True):
        with open_tables(tmp_path / str(is_jagged)) as server:
            module = hps.SparseEmbeddings(server, {name: table_of[name] for name in order}, POOLING)
            batches = [draw_batch(seed) for seed in range(4)]
            # A jagged tensor has weights for all tables or for none.
            ones = {t: torch.ones(len(ids.keys_L)) for t, ids in batches[0].features.items()}
            own = {t: ids.weights_L for t, ids in batches[0].features.items()}
            ones |= {table: weights for table, weights in own.items() if weights is not None}
            batches[0] = with_weights(batches[0], ones)
            results.append(
                train(server, Jagging(module, order, dtype) if is_jagged else module, batches)
            )
    assert results[0] == results[1]


def test_a_jagged_tensor_without_weights_is_read_as_the_batch(tmp_path: Path) -> None:
    batch = draw_batch(2)
    plain = {table: replace(ids, weights_L=None) for table, ids in batch.features.items()}
    batch = replace(batch, features=plain)
    with open_tables(tmp_path) as server:
        module = joint(server)
        jagged = Jagged(batch, list(FEATURES))
        assert jagged.weights_or_none() is None
        assert torch.equal(module(jagged), module(batch))


def test_features_come_from_the_tables_or_from_counts_or_from_the_first_batch(
    tmp_path: Path,
) -> None:
    batch = draw_batch(2)
    with open_tables(tmp_path / "named") as server:
        wanted = joint(server)
        by_name = wanted.by_name(batch)
        assert list(by_name) == list(FEATURES) == list(wanted.feature_names)
        module = hps.SparseEmbeddings(server, pooling=POOLING)
        assert list(module.feature_names) == LISTED
        expected = torch.cat([by_name[name] for name in LISTED], dim=1)
        assert torch.equal(module(batch), expected)
        counts = {table: len(NAMES[table]) for table in NAMES}
        module = hps.SparseEmbeddings(server, counts, POOLING)
        assert module.feature_names[:4] == ("one.0", "one.1", "one.2", "four.0")
        assert torch.equal(module(batch), expected)
        some = hps.SparseEmbeddings(server, {"many": 1, "four": 2}, POOLING)
        assert some.feature_names == ("many.0", "four.0", "four.1") and some.widths == (64, 4, 4)
        wanted_some = torch.cat([by_name[name] for name in ("i", "d", "e")], dim=1)
        assert torch.equal(some(batch), wanted_some)
        with hps.Pipeline([batch], server) as batches:  # which has pinned tables besides
            assert torch.equal(some(next(batches)), wanted_some)
    plain = [replace(table, features=None) for table in tables()]
    with hps.ParameterServer(hps.Config(path=tmp_path / "plain", tables=plain)) as server:
        module = hps.SparseEmbeddings(server, pooling=POOLING)
        assert module.feature_names == () and module.widths == ()
        batch = draw_batch(2)
        batch = replace(batch, features={table: batch.features[table] for table in NAMES})
        assert torch.equal(module(batch), expected)
        assert module.feature_names[:4] == ("one.0", "one.1", "one.2", "four.0")
        assert torch.equal(module(draw_batch(1, 5))[:, :3], module.eval()(draw_batch(1, 5))[:, :3])


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_batch_that_tells_nothing_is_not_learnt_from(tmp_path: Path, is_bad: bool) -> None:
    """It has no example, or was refused."""
    plain = [replace(table, features=None) for table in tables()]
    with hps.ParameterServer(hps.Config(path=tmp_path / "plain", tables=plain)) as server:
        module = hps.SparseEmbeddings(server)
        if is_bad:
            short = draw_batch(2)
            short.features["one"].offsets = short.features["one"].offsets[:-1]
            with pytest.raises(hps.ConfigError, match="bags of table 'one'"):
                module(short)
        else:
            assert module(draw_batch(2, 0)).shape[0] == 0
            with pytest.raises(hps.ConfigError, match="names of the features are not known"):
                module.by_name(draw_batch(2, 0))
        output = module(draw_batch(2))
        assert output.shape == (24, sum(DIMS[name] * len(NAMES[name]) for name in NAMES))


def test_no_example_and_no_key_keep_their_shapes(tmp_path: Path) -> None:
    with open_tables(tmp_path) as server:
        module, width = joint(server), sum(DIMS[table] for table in FEATURES.values())
        optimizer = hps.RowOptimizer(server)
        empty = draw_batch(2, 0)
        outputs = [module(empty), module(Jagged(empty, list(FEATURES)))]
        with hps.Pipeline([empty], server) as batches:
            outputs.append(module(next(batches)))
            for output in outputs:
                assert output.shape == (0, width)
                output.sum().backward()
            optimizer.step()
        keyless = draw_batch(2, 3)
        for ids in keyless.features.values():
            ids.keys_L, ids.weights_L = ids.keys_L[:0], None
            ids.offsets = torch.zeros_like(ids.offsets)
        output = module(keyless)
        assert torch.equal(output, torch.zeros(3, width))
        output.sum().backward()
        optimizer.step()
        assert all(server.num_rows(table) == 0 for table in NAMES)


def test_keys_of_64_bits_and_arrays_with_gaps_are_taken(tmp_path: Path) -> None:
    batch = draw_batch(1)
    other = draw_batch(1)
    for ids in other.features.values():
        ids.keys_L = torch.stack([ids.keys_L, ids.keys_L + 1], dim=1)[:, 0]
        ids.offsets = torch.stack([ids.offsets, ids.offsets], dim=1)[:, 0]
        if ids.weights_L is not None:
            ids.weights_L = torch.stack([ids.weights_L, ids.weights_L], dim=1)[:, 0]
        assert not ids.keys_L.is_contiguous()
    unsigned = draw_batch(1)
    for ids in unsigned.features.values():
        ids.keys_L = ids.keys_L.view(torch.uint64)
        ids.offsets = ids.offsets.to(torch.int32)
    with open_tables(tmp_path) as server:
        module = joint(server).eval()
        wanted = module(batch)
        assert torch.equal(module(other), wanted) and torch.equal(module(unsigned), wanted)


def test_threads_of_one_module_get_what_each_gets_alone(tmp_path: Path) -> None:
    with open_tables(tmp_path, dram="1MiB") as server:
        module = joint(server).eval()
        asked = [draw_batch(seed, 4 + seed) for seed in range(6)]
        alone = [module(batch) for batch in asked]

        def read(number: int) -> int:
            outputs = (module(asked[number]) for _ in range(15))
            return sum(not torch.equal(output, alone[number]) for output in outputs)

        assert in_threads(read, 6) == [0] * 6
        assert server.pins == 0


def test_a_copy_shares_the_rows_and_no_module_is_pickled(tmp_path: Path) -> None:
    batch = draw_batch(1)
    with open_tables(tmp_path) as server:
        model = torch.nn.Sequential(joint(server), torch.nn.Linear(2, 1))
        assert [name for name, _ in model.named_parameters()] == ["1.weight", "1.bias"]
        assert list(model.state_dict()) == ["1.weight", "1.bias"]
        module = model[0]
        module(with_weights(batch, learning(batch)))  # has made what it uses a table
        model.eval()
        assert not module(with_weights(batch, learning(batch))).requires_grad
        for other in (deepcopy(model)[0], copy(module)):
            assert other is not module and other._server is server and not other.training
            assert torch.equal(other(batch), module(batch))
            other.train()(batch).sum().backward()
            assert not pending_of(server).is_empty
            hps.RowOptimizer(server).zero_grad()
        with pytest.raises(TypeError, match=r"cannot be pickled.*state_dict"):
            pickle.dumps(module)
        assert "'a': 'one'" in repr(module)


def learning(batch: hps.Batch) -> dict[str, torch.Tensor]:
    """Weights of all tables that require a gradient."""
    return {
        table: torch.from_numpy(
            random_floats(np.random.default_rng(1), len(ids.keys_L))
        ).requires_grad_()
        for table, ids in batch.features.items()
    }


def test_a_keyed_tensor_has_the_features_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of torchrec where it is installed, else what takes its place."""
    batch = draw_batch(2)
    with open_tables(tmp_path) as server:
        module = joint(server)
        if importlib.util.find_spec("torchrec") is None:
            with pytest.raises(hps.ConfigError, match=r"torchrec.*or take by_name"):
                module.as_keyed_tensor(batch)
            monkeypatch.setitem(sys.modules, "torchrec", SimpleNamespace(KeyedTensor=KeyedLike))
        keyed = module.as_keyed_tensor(batch)
        assert keyed.keys() == list(FEATURES)
        assert keyed.length_per_key() == [DIMS[table] for table in FEATURES.values()]
        for name, part in module.by_name(batch).items():
            assert torch.equal(keyed[name], part)
        keyed.values().sum().backward()
        assert pending_of(server).num_collected == 1


class KeyedLike:
    """What a torchrec KeyedTensor shows of itself."""

    def __init__(self, keys: list[str], length_per_key: list[int], values: torch.Tensor) -> None:
        self._parts = torch.split(values, length_per_key, dim=1)
        self._keys, self._lengths, self._values = keys, length_per_key, values

    def keys(self) -> list[str]:
        return self._keys

    def length_per_key(self) -> list[int]:
        return self._lengths

    def values(self) -> torch.Tensor:
        return self._values

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._parts[self._keys.index(name)]
