"""A model over several tables is given other features: weights go with their features' embeddings.

Above it: pytest. Below it: hps/train/changed_model.py, changed_columns.py, `Fields.dims`.
"""

import shutil
from pathlib import Path

import pytest

import hps
from tests.train.changed_lab import OLD, change, changed, close, logits, nothing, only, run, trained

UNEQUAL = ("wide_deep", "dcn_v2")
APP = "columns.app = {kind = 'categorical', table = 'items'}\n"
SLOT = "columns.slot = {kind = 'sequence', table = 'items', pooling = 'mean'}\n"
DIM = "tables.items.dim = 3\n"


def features(*text: str) -> hps.Features:
    return hps.Features.from_toml("".join(text))


@pytest.mark.parametrize("kind", UNEQUAL)
def test_new_and_gone_features_of_tables_of_unequal_dims(tmp_path: Path, kind: str) -> None:
    store = trained(tmp_path, kind, features=features(DIM, APP))
    names = ("age", "os", "slot", "app", "price")  # the tables in another order
    new = changed(tmp_path, store, names, features=features(DIM, APP, SLOT))
    with hps.Model.load(new, dram="8MiB") as model:
        assert list(model.features.items()) == [("features", ["os"]), ("items", ["slot", "app"])]
        assert model.module.dims_of_tables == {"features": 4, "items": 3}
    before = logits(store, only(OLD))
    close(logits(new, only(names, slot=nothing())), before)
    shutil.rmtree(store)
    new.rename(store)
    back = changed(tmp_path, store, OLD, features=features(DIM, APP))
    close(logits(back, only(OLD)), before)


def test_a_changed_run_over_tables_goes_on_after_a_stop(tmp_path: Path) -> None:
    store = trained(tmp_path, "dcn_v2", features=features(DIM, APP))
    names = ("slot", "os", "app", "age")
    new = changed(tmp_path, store, names, features=features(DIM, APP, SLOT))
    whole = shutil.copytree(new, tmp_path / "whole")
    log = tmp_path / "new.parquet"
    expected = run(log, whole, resume=True, epochs=2, dim=None, hidden=None)
    run(log, new, resume=True, epochs=2, dim=None, hidden=None, limit=3 * 256 + 192)
    rest = run(log, new, resume=True, epochs=2, dim=None, hidden=None)
    assert list(expected["digests"]) == ["features", "items"]
    assert rest["digests"] == expected["digests"]
    assert rest["loss_digest"] == expected["loss_digest"]


def test_another_pooling_is_another_feature(tmp_path: Path) -> None:
    mean = SLOT.replace("slot", "app")
    other = "columns.os = {kind = 'categorical', table = 'items'}\n"
    store = trained(tmp_path, "wide_deep", features=features(mean, other))
    names = ("app", "os", "price", "age", "slot")
    asked = features(mean.replace("mean", "sum"), other, SLOT)
    new = changed(tmp_path, store, names, features=asked)
    with hps.Model.load(new, dram="8MiB") as model:
        assert model.features == {"items": ["app", "os", "slot"]}
        weight = model.module.state_dict()["deep.0.weight"]
    begins_anew, stays, is_new = (weight[:, 4 * place : 4 * place + 4] for place in range(3))
    assert not begins_anew.any() and stays.any() and not is_new.any()
    log = tmp_path / "new.parquet"
    said = change(log, shutil.copytree(store, tmp_path / "s"), features=asked)["resumed_with"]
    assert said == [
        "feature 'slot' is new",
        "feature 'app' is made otherwise: it begins as a new one",
    ]
    same = features(mean, other.replace("}", ", hash_buckets = 9}"), SLOT)
    said = change(log, store, features=same)["resumed_with"]
    assert said == [
        "feature 'slot' is new",
        "feature 'os' is made otherwise: it begins as a new one",
    ]


def test_tables_that_come_or_go_are_refused_and_other_dims(tmp_path: Path) -> None:
    store = trained(tmp_path, "wide_deep", features=features(DIM, APP))
    log = tmp_path / "old.parquet"
    words = r"lie in the tables \['features', 'items'\], those that it is to get in \['features'\]"
    with pytest.raises(hps.ConfigError, match=words):
        change(log, store, features=features("columns.app.kind = 'ignored'"))
    with pytest.raises(hps.ConfigError, match=r"to get in \['items', 'os'\]"):
        change(log, store, features=features(DIM, APP, "columns.os = {kind='categorical', dim=2}"))
    with pytest.raises(
        hps.ConfigError, match=r"dim = 5 of table 'items': .* have dim 3; give that"
    ):
        change(log, store, features=features(DIM.replace("3", "5"), APP))
    with pytest.raises(hps.ConfigError, match=r"dim = 4 of table 'items'|--dim 4: .* 3"):
        change(log, store, features=features(APP))
    assert change(log, store, features=features(DIM, APP))["resumed_with"] == []
