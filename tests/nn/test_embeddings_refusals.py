"""What SparseEmbeddings refuses, and that nothing is held or pending after it.

Above it: pytest. Below it: embeddings_lab.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.nn.gradients import pending_of
from tests.nn.embeddings_lab import (
    FEATURES,
    NAMES,
    POOLING,
    Jagged,
    draw_batch,
    joint,
    open_tables,
    slope_of,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hps.ParameterServer]:
    with open_tables(tmp_path) as server:
        yield server


@pytest.mark.parametrize(
    ("features", "pooling", "reason"),
    [
        ({}, "sum", "at least one feature"),
        ({"x": "other"}, "sum", r"no table 'other'; the server has \['four', 'many'"),
        ({"other": 2}, "sum", "no table 'other'"),
        ({"one": 0}, "sum", r"features\['one'\]=0; give"),
        ({"one": 1.5}, "sum", r"features\['one'\]=1.5; give"),
        (
            {"a": "one", "b": "one", "x": "one"},
            "sum",
            r"features \['x'\] of table 'one', which has \['a', 'b', 'c'\]",
        ),
        (None, "max", "pooling 'max' of table"),
        (None, {"one": "max"}, "pooling 'max' of table 'one'"),
        (None, {"other": "sum"}, "pooling 'sum' of table 'other'"),
        (None, None, "pooling None of table"),
    ],
)
def test_a_module_of_what_the_server_has_not_is_refused(
    server: hps.ParameterServer, features: Any, pooling: Any, reason: str
) -> None:
    with pytest.raises(hps.ConfigError, match=f"^SparseEmbeddings: .*{reason}"):
        hps.SparseEmbeddings(server, features, pooling)


def lacks(batch: hps.Batch) -> None:
    batch.features = {"one": batch.features["one"]}


def set_offsets(table: str, change: Callable[[torch.Tensor], Any]) -> Callable[[hps.Batch], None]:
    def spoil(batch: hps.Batch) -> None:
        batch.features[table].offsets = change(batch.features[table].offsets.clone())

    return spoil


def falling(offsets: torch.Tensor) -> torch.Tensor:
    offsets[3] = offsets[7] + 1
    return offsets


def late(offsets: torch.Tensor) -> torch.Tensor:
    """Begins with 1, with the last as far off."""
    return offsets + 1


def set_weights(value: Any) -> Callable[[hps.Batch], None]:
    def spoil(batch: hps.Batch) -> None:
        ids = batch.features["many"]
        if isinstance(value, float):
            assert ids.weights_L is not None
            ids.weights_L[2] = value
        else:
            ids.weights_L = value

    return spoil


def set_keys(change: Callable[[torch.Tensor], Any]) -> Callable[[hps.Batch], None]:
    def spoil(batch: hps.Batch) -> None:
        batch.features["four"].keys_L = change(batch.features["four"].keys_L)

    return spoil


WRONG: list[tuple[Callable[[hps.Batch], None], str]] = [
    (lacks, r"lacks table '(four|many|twenty)'; it holds \['one'\]"),
    (
        set_offsets("one", lambda offsets: offsets[:-24]),
        "48 bags of table 'one'; 3|'one'.*0 to 48",
    ),
    (set_offsets("one", lambda offsets: offsets[:-1]), "71 bags of table 'one'|F . B"),
    (set_offsets("twenty", falling), "table 'twenty'.*must not fall"),
    (set_offsets("most", lambda offsets: offsets.clamp(max=9)), "table 'most'.*number of keys"),
    (set_offsets("four", late), "first.*must be 0"),
    (set_offsets("four", lambda offsets: offsets.float()), "int64 or int32 offsets"),
    (set_weights(float("nan")), r"table 'many'.*weights\[2\] is nan"),
    (set_weights(float("inf")), r"table 'many'.*weights\[2\] is inf"),
    (set_weights(torch.ones(3)), r"weights \[L\]"),
    (set_weights(torch.ones(3, dtype=torch.float64)), "float32 weights"),
    (set_weights(torch.ones(3, dtype=torch.bfloat16)), "weights has dtype torch.bfloat16"),
    (set_keys(lambda keys: keys.float()), "64 bits"),
    (set_keys(lambda keys: keys.to(torch.int32)), "64 bits"),
    (set_keys(lambda keys: keys[:, None]), "keys"),
]


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_batch_is_refused_by_look_ups_and_pipelines(
    server: hps.ParameterServer, number: int, is_pinned: bool
) -> None:
    spoil, reason = WRONG[number]
    batch, module = draw_batch(1), joint(server)
    spoil(batch)
    with pytest.raises(hps.ConfigError, match=reason):
        if is_pinned:
            with hps.Pipeline([batch], server) as batches:
                module(next(batches))
        else:
            module(batch)
    assert server.pins == 0 and pending_of(server).is_empty
    right = draw_batch(1)  # the memory of the one that was refused is used again
    assert torch.equal(module(right), joint(server).eval()(right))
    assert module(right).isfinite().all()


def other_order(jagged: Jagged) -> None:
    jagged._names = jagged._names[::-1]


def missing(jagged: Jagged) -> None:
    jagged._names = jagged._names[1:]


def unknown(jagged: Jagged) -> None:
    jagged._names = [*jagged._names, "more"]


def offsets_short(jagged: Jagged) -> None:
    jagged.offsets_L = jagged.offsets_L[:-1]


def offsets_early(jagged: Jagged) -> None:
    jagged.offsets_L = jagged.offsets_L.clamp(max=len(jagged.keys_L) - 1)


def offsets_late(jagged: Jagged) -> None:
    jagged.offsets_L = jagged.offsets_L.clamp(min=1)


def offsets_beyond(jagged: Jagged) -> None:
    jagged.offsets_L[-1] += 1


def offsets_falling(jagged: Jagged) -> None:
    jagged.offsets_L[30] = jagged.offsets_L[31] + 1


def offsets_below(jagged: Jagged) -> None:
    jagged.offsets_L[24] = -1


def weights_nan(jagged: Jagged) -> None:
    jagged.weights_L[-1] = torch.nan


def weights_short(jagged: Jagged) -> None:
    jagged.weights_L = jagged.weights_L[:-1]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_order, r"another order.*pass tensor.permute\(\[10, 9, 8"),
        (missing, r"lacks features \['a'\]"),
        (unknown, r"has features \['more'\], which"),
        (offsets_short, "264 offsets of 11 features and 24 examples; 265"),
        (offsets_early, "offsets"),
        (offsets_late, "offsets"),
        (offsets_beyond, "offsets"),
        (offsets_falling, "offsets"),
        (offsets_below, "offsets"),
        (weights_nan, r"table '\w+'.*weights\[\d+\] is nan"),
        (weights_short, r"weights \[L\]"),
    ],
)
def test_a_wrong_jagged_tensor_is_refused(
    server: hps.ParameterServer, spoil: Callable[[Jagged], None], reason: str
) -> None:
    jagged, module = Jagged(draw_batch(1), list(FEATURES)), joint(server)
    spoil(jagged)
    with pytest.raises(hps.ConfigError, match=reason):
        module(jagged)
    assert server.pins == 0 and pending_of(server).is_empty


def test_other_things_than_batches_are_refused(server: hps.ParameterServer) -> None:
    with pytest.raises(hps.ConfigError, match=r"got Tensor; pass an hps\.Batch or"):
        joint(server)(torch.arange(3))


def test_features_of_several_tables_must_be_told(tmp_path: Path) -> None:
    tables = [hps.TableConfig(name=name, dim=4) for name in ("ads", "users")]
    with (
        hps.ParameterServer(hps.Config(path=tmp_path / "s", tables=tables)) as server,
        pytest.raises(hps.ConfigError, match="which features are which table's"),
    ):
        hps.SparseEmbeddings(server)(Jagged(draw_batch(1), list(FEATURES)))


def test_released_rows_are_refused(server: hps.ParameterServer) -> None:
    module = joint(server)
    with hps.Pipeline([draw_batch(1), draw_batch(2)], server) as batches:
        first = next(batches)
        pinned = dict(first.rows or {})
        next(batches)
        first.rows = pinned
        with pytest.raises(hps.ConfigError, match=r"table '.*' were released"):
            module(first)


def digests(server: hps.ParameterServer) -> list[str]:
    return [server.digest(name) for name in NAMES]


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_no_table(
    server: hps.ParameterServer, bad: float, is_pinned: bool
) -> None:
    module, optimizer = joint(server), hps.RowOptimizer(server)
    module(draw_batch(1)).sum().backward()
    optimizer.step()
    before, batch = digests(server), draw_batch(2)
    key = int(batch.features["twenty"].keys_L.view(torch.uint64)[0])
    with hps.Pipeline([batch], server) as batches:
        output = module(next(batches) if is_pinned else batch)
        slope = slope_of(output)
        column = sum(module.widths[: list(FEATURES).index("g")])
        bags = batch.features["twenty"].offsets
        example = int((bags[1:] > 0).nonzero()[0, 0])
        slope[example, column + 3] = bad
        output.backward(slope)
        for _ in range(2):  # what was refused stays pending, and is refused again
            with pytest.raises(hps.NonFiniteError, match=rf"table 'twenty'.*\b{key}\b"):
                optimizer.step()
            assert digests(server) == before
        optimizer.zero_grad()
        optimizer.step()
    assert digests(server) == before and server.pins == 0
    module(batch).sum().backward()
    optimizer.step()
    assert all(one != other for one, other in zip(digests(server), before, strict=True))


def test_a_rate_that_would_overflow_a_row_changes_no_table(server: hps.ParameterServer) -> None:
    module, optimizer = joint(server), hps.RowOptimizer(server)
    group = next(group for group in optimizer.param_groups if group["table"] == "one")
    group["lr"] = 3e38
    output = module(draw_batch(1))
    output.backward(torch.full_like(output, 100.0))
    with pytest.raises(hps.NonFiniteError, match="table 'one'"):
        optimizer.step()
    assert all(server.num_rows(name) == 0 for name in NAMES)


def test_a_closed_and_a_read_only_server_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    batch = draw_batch(1)
    with open_tables(tmp_path) as server:
        module, optimizer = joint(server), hps.RowOptimizer(server)
        wanted = module.eval()(batch)
        module.train()(batch).sum().backward()
        server.checkpoint()
    for act in (lambda: module(batch), lambda: module.eval()(batch), optimizer.step):
        with pytest.raises(hps.StoreError, match="is closed"):
            act()
    with hps.open(tmp_path / "store") as reading:
        module = hps.SparseEmbeddings(reading, FEATURES, POOLING)
        assert torch.equal(module(batch), wanted)
        module(batch).sum().backward()
        with pytest.raises(
            hps.ConfigError, match=r"open read-only; .*hps.open\(path, read_only=False\)"
        ):
            hps.RowOptimizer(reading).step()
