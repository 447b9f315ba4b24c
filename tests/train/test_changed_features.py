"""A stored model is given other features: what it has learned of those that stay is kept.

Above it: pytest. Below it: hps/train/changed_model.py, changed_columns.py, changed_log.py,
`ClickModel.input_axes` of every model.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.models import MODELS
from tests.kinds import POOLING
from tests.train.changed_lab import (
    OLD,
    change,
    changed,
    close,
    logits,
    nothing,
    only,
    run,
    trained,
    write,
)

EXACT = [kind for kind in POOLING if kind != "autoint"]  # its attention mixes all fields


def direct_terms(kind: str, store: Path, values: dict[str, Any], name: str) -> torch.Tensor:
    """What rows of a new feature add to the logit beside the dense part: the first-order weight,
    and products with the vectors of all other fields; as docs/training.md has it."""
    with hps.Model.load(store, dram="8MiB") as model, torch.no_grad():
        batch = model.batch_of(values)
        embedded = model.module.embed(batch).double()
        added = torch.zeros(len(embedded), dtype=torch.float64)
        place = model.features["features"].index(name)
        row = embedded[:, place]
        if MODELS[kind].has_first_order:
            added += row[:, -1]
        if kind in ("deepfm", "fm"):
            others = embedded.sum(1) - row
            vectors = others[:, :-1] + batch.dense.double() @ model.module.dense_factors.double()
            added += (row[:, :-1] * vectors).sum(1)
        return added


@pytest.mark.parametrize("kind", EXACT)
def test_a_new_feature_adds_what_its_rows_add_and_no_more(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind)
    names = ("слот", "app", "slot", "os", "price", "age")
    new = changed(tmp_path, store, names)
    before = logits(store, only(OLD))
    close(logits(new, only(names, slot=nothing(), слот=nothing())), before)
    given = only(names, слот=nothing())
    added = direct_terms(kind, new, given, "slot")
    close(logits(new, given), before + added)
    assert added.abs().max() > 0.1 or kind in ("dlrm", "dcn_v2")


@pytest.mark.parametrize("kind", EXACT)
def test_a_new_dense_column_changes_no_score(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind)
    names = ("app", "os", "size", "price", "age")
    close(logits(changed(tmp_path, store, names), only(names)), logits(store, only(OLD)))


@pytest.mark.parametrize("kind", EXACT)
def test_what_is_gone_counts_as_nothing(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind)
    names = ("age", "app")
    new = changed(tmp_path, store, names)
    expected = logits(store, only(OLD, os=nothing(), price=[0.0] * 256))
    close(logits(new, only(names)), expected)


@pytest.mark.parametrize("kind", POOLING)
def test_columns_in_another_order_are_taken_by_name(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind)
    names = ("age", "os", "price", "app")
    new = changed(tmp_path, store, names)
    with hps.Model.load(new, dram="8MiB") as model:
        assert model.features == {"features": ["os", "app"]}
    close(logits(new, only(names)), logits(store, only(OLD)))


@pytest.mark.parametrize("hidden", [(), (8, 4)])
@pytest.mark.parametrize("kind", EXACT)
def test_new_and_gone_columns_at_once(tmp_path: Path, kind: str, hidden: Sequence[int]) -> None:
    has_layers = MODELS[kind].has_deep_part
    store = trained(tmp_path, kind, **({"hidden": hidden} if has_layers else {}))
    names = ("size", "slot", "age", "app")
    new = changed(tmp_path, store, names)
    expected = logits(store, only(OLD, os=nothing(), price=[0.0] * 256))
    close(logits(new, only(names, slot=nothing())), expected)
    figures = change(tmp_path / "new.parquet", new, epochs=2)
    assert figures["resumed_with"] == [] and np.isfinite(figures["train_logloss"])
    with hps.Model.load(new, dram="8MiB") as model:
        weights = model.module.state_dict()
        assert all(bool((value != 0).any()) for value in weights.values())
        first = weights.get("deep.0.weight", weights.get("top.0.weight"))
        if first is not None:  # what began at 0 has learned
            assert bool((first != 0).all(dim=0).any()) and int((first == 0).all(dim=0).sum()) == 0


@pytest.mark.parametrize("kind", EXACT)
def test_a_model_without_dense_columns_gets_some_and_loses_all(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind, ("app", "os"))
    names = ("app", "os", "price")
    new = changed(tmp_path, store, names)
    close(logits(new, only(names)), logits(store, only(("app", "os"))))
    shutil.rmtree(store)
    new.rename(store)
    back = changed(tmp_path, store, ("app", "os"))
    close(logits(back, only(("app", "os"))), logits(store, only(names)))


def test_attention_keeps_what_it_has_learned_of_each_field(tmp_path: Path) -> None:
    store = trained(tmp_path, "autoint")
    names = ("slot", "os", "app", "size", "age")
    new = changed(tmp_path, store, names)
    with hps.Model.load(store, dram="8MiB") as old, hps.Model.load(new, dram="8MiB") as model:
        before, after = old.module.state_dict(), model.module.state_dict()
    learned = before["output.weight"].view(4, -1)
    fields = dict(zip(("app", "os", "price", "age"), learned, strict=True))
    found = after["output.weight"].view(5, -1)
    for place, name in enumerate(("slot", "os", "app", "size", "age")):
        wanted = fields.get(name, torch.zeros_like(found[0]))
        assert torch.equal(found[place], wanted), name
    assert torch.equal(after["dense_factors"][1], before["dense_factors"][1])
    assert not after["dense_factors"][0].any()
    assert torch.equal(after["layers.1.projections.weight"], before["layers.1.projections.weight"])
    score, was = logits(new, only(names, slot=nothing())), logits(store, only(OLD))
    assert not torch.allclose(score, was, atol=1e-3)  # a new field has a share of the attention
    assert change(tmp_path / "new.parquet", new)["examples"] == 256


@pytest.mark.parametrize("kind", POOLING)
def test_training_goes_on_to_the_same_bits_each_time_and_after_a_stop(
    tmp_path: Path, kind: str
) -> None:
    store = trained(tmp_path, kind)
    log = write(tmp_path / "new.parquet", ("slot", "app", "size", "price"))
    figures = []
    for name in ("one", "two"):
        shutil.copytree(store, tmp_path / name)
        figures.append(change(log, tmp_path / name, epochs=2))
    shutil.copytree(store, tmp_path / "three")
    total = 3 * 256
    change(log, tmp_path / "three", epochs=2, limit=total + 192)
    rest = run(log, tmp_path / "three", resume=True, epochs=2, dim=None, hidden=None)
    first, second = figures
    assert first["digests"] == second["digests"] == rest["digests"]
    assert first["loss_digest"] == second["loss_digest"] == rest["loss_digest"]
    assert first["model_examples"] == total + 512
    dense = []
    for name in ("one", "two", "three"):
        with hps.Model.load(tmp_path / name, dram="8MiB") as model:
            dense.append(model.module.state_dict())
    for other in dense[1:]:
        assert all(torch.equal(other[key], value) for key, value in dense[0].items())
