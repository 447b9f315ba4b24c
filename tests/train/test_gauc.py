"""GAUC in the figures of `hps train --test` and `hps evaluate`, by the column of groups.

Above it: pytest. Below it: `evaluate_model`, hps/group_metrics.py, the flags of the commands.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.train import TrainOptions, evaluate_store, train
from tests.group_twin import by_definition
from tests.logs import write_criteo

SMALL: dict[str, Any] = {"dim": 3, "hidden": (8,), "batch_size": 64, "dram": "8MiB"}
SMALL |= {"torch_threads": 1, "threads": 1, "depth": 0}


def columns(size: int = 600, seed: int = 0) -> dict[str, Any]:
    """Users with one example, of one class, and missing ones among them."""
    random = np.random.default_rng(seed)
    users = [None if user == 3 else f"user {user}" for user in random.geometric(0.05, size)]
    found: dict[str, Any] = {"label": random.integers(0, 2, size), "user": users}
    found |= {"item": random.integers(0, 25, size), "price": np.round(random.random(size), 1)}
    return found | {"w": random.random(size)}


def write(path: Path, values: dict[str, Any]) -> Path:
    table = pa.table(values)
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


def by_scores(log: Path, store: Path, column: str) -> tuple[float, int, int]:
    """By the definition, of what the stored model predicts."""
    values = pq.read_table(log).to_pydict()
    with hps.Model.load(store) as model, torch.no_grad():
        reader = model.open_reader([log], group=None)
        logits = torch.cat([model.module(batch) for batch in reader]).tolist()
    rows = zip(logits, values["label"], values[column], strict=True)
    return by_definition(*zip(*(row for row in rows if row[2] is not None), strict=True))


@pytest.mark.parametrize("is_feature", [True, False])
def test_a_run_measures_gauc_on_its_test_log(tmp_path: Path, is_feature: bool) -> None:
    log = write(tmp_path / "log", columns())
    test = write(tmp_path / "test", columns(400, seed=1))
    ignore = ["w"] if is_feature else ["w", "user"]
    figures = run(log, tmp_path / "store", group="user", ignore=ignore, test=[test])
    gauc, num_groups, num_examples = by_scores(test, tmp_path / "store", "user")
    assert figures["test_groups"] == num_groups > 10
    assert figures["test_gauc"] == pytest.approx(gauc, abs=1e-12)
    assert figures["test_error"] is None
    found = evaluate_store([test], tmp_path / "store")  # the model knows its groups
    assert (found["gauc"], found["groups"]) == (figures["test_gauc"], figures["test_groups"])
    assert found["gauc_examples"] == num_examples < found["examples"] == 400
    assert found["normalized_entropy"] == figures["test_normalized_entropy"] > 0
    plain = run(log, tmp_path / "plain", ignore=ignore, test=[test])
    assert plain["test_gauc"] is plain["test_groups"] is None
    # Groups are measured alone: nothing else is another.
    same = ("loss_digest", "digests", "test_auc", "test_logloss", "rows")
    assert {name: plain[name] for name in same} == {name: figures[name] for name in same}


@pytest.mark.parametrize("column", ["user", "item"])
def test_any_column_groups_an_evaluation(tmp_path: Path, column: str) -> None:
    log = write(tmp_path / "log", columns())
    for trained_with in (None, "user"):
        store = tmp_path / f"store {trained_with}"
        run(log, store, group=trained_with, ignore=["user", "w"])
        found = evaluate_store([log], store, group=column)
        gauc, num_groups, num_examples = by_scores(log, store, column)
        assert found["gauc"] == pytest.approx(gauc, abs=1e-12)
        assert (found["groups"], found["gauc_examples"]) == (num_groups, num_examples)
        assert ("gauc" in evaluate_store([log], store)) == (trained_with is not None)
        assert "gauc" not in evaluate_store([log], store, group=None)


def test_batches_of_any_size_have_the_same_gauc(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", columns())
    run(log, tmp_path / "store", group="user", ignore=["w"])
    whole, small = (evaluate_store([log], tmp_path / "store", batch_size=n) for n in (4096, 7))
    assert whole["groups"] == small["groups"] > 10
    assert whole["gauc"] == pytest.approx(small["gauc"], abs=1e-3)  # torch rounds otherwise


def test_missing_groups_are_in_the_other_figures_alone(tmp_path: Path) -> None:
    values = columns()
    log = write(tmp_path / "log", values)
    run(log, tmp_path / "store", group="user", ignore=["w", "user"])
    found = evaluate_store([log], tmp_path / "store")
    assert found["examples"] == 600
    nobody = write(tmp_path / "nobody", {**values, "user": pa.array([""] * 600)})
    found = evaluate_store([nobody], tmp_path / "store")
    assert found["examples"] == 600 and found["groups"] == 0 and math.isnan(found["gauc"])


def test_the_commands_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(write(tmp_path / "log.parquet", columns()))
    store, out = ["--store", str(tmp_path / "store")], str(tmp_path / "out.json")
    flags = ["--dim", "2", "--hidden", "4", "--dram", "8MiB", "--batch-size", "64"]
    flags += ["--ignore", "w", "--group", "user", "--test", log]
    assert main(["train", log, *store, *flags, "--json", out]) == 0
    figures, said = json.loads(Path(out).read_text()), capsys.readouterr()
    assert figures["test_gauc"] > 0 and figures["test_groups"] > 10
    for name in ("test gauc", "test groups", "test normalized entropy"):
        assert any(line.startswith(f"{name} ") for line in said.out.splitlines()), name
    assert "and the groups of gauc): user" in said.err
    for words, names in (
        ([], {"gauc", "groups", "gauc_examples", "normalized_entropy"}),
        (["--group", "item"], {"gauc", "groups"}),
        (["--no-group"], set()),
    ):
        assert main(["evaluate", log, *store, *words, "--json", out]) == 0
        measured = json.loads(Path(out).read_text())
        assert names <= measured.keys() and ("gauc" in measured) == bool(names)
        told = capsys.readouterr().out
        assert ("\ngauc " in told) == ("\ngroups " in told) == bool(names)
    assert main(["evaluate", log, *store, "--group", "nothing"]) == 1
    assert "has no column 'nothing' for the group" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", log, *store, "--group", "item", "--no-group"])


def test_a_log_without_the_columns_is_scored_and_measured_without_groups(tmp_path: Path) -> None:
    values = columns()
    log = write(tmp_path / "log", values)
    run(log, tmp_path / "store", group="user", weight="w", ignore=["user"])
    bare = {name: values[name] for name in ("item", "price")}
    store = tmp_path / "store"
    out, wanted = tmp_path / "out.npy", tmp_path / "wanted.npy"
    scored = write(tmp_path / "bare.parquet", bare)
    assert main(["predict", str(scored), "--store", str(store), "--out", str(out)]) == 0
    assert main(["predict", str(log), "--store", str(store), "--out", str(wanted)]) == 0
    assert np.array_equal(np.load(out), np.load(wanted)) and len(np.load(out)) == 600
    unfit = {"user": np.zeros(600), "w": ["much"] * 600}  # what they hold does not matter
    scored = write(tmp_path / "unfit.parquet", {**bare, **unfit})
    assert main(["predict", str(scored), "--store", str(store), "--out", str(out)]) == 0
    assert np.array_equal(np.load(out), np.load(wanted))
    with hps.Model.load(store) as model:
        raw = model.predict({name: list(column) for name, column in bare.items()})
        assert len(raw) == 600
    labelled = write(tmp_path / "labelled.parquet", {**bare, "label": values["label"]})
    with pytest.raises(hps.ConfigError, match="has no column 'user' for the group"):
        evaluate_store([labelled], store)
    assert evaluate_store([labelled], store, group=None)["examples"] == 600


def test_a_test_log_is_looked_at_before_training(tmp_path: Path) -> None:
    """It may lack weights, which do not count there, and not groups, which were asked for."""
    values = columns()
    log = write(tmp_path / "log", values)
    for name, store in (("w", "a"), ("user", "b")):
        kept = {key: column for key, column in values.items() if key != name}
        test = write(tmp_path / f"without {name}", kept)
        asked: dict[str, Any] = {"weight": "w", "group": "user", "ignore": ["user"]}
        if name == "w":
            assert run(log, tmp_path / store, test=[test], **asked)["test_gauc"] > 0
        else:
            with pytest.raises(hps.ConfigError, match="no column 'user' for the group") as error:
                run(log, tmp_path / store, test=[test], **asked)
            assert "this is --test" in error.value.__notes__[0]
            assert not (tmp_path / store).exists()


def test_a_log_without_named_columns_has_no_groups(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 200)
    run(log, tmp_path / "store")
    with pytest.raises(hps.ConfigError, match="group='user': only parquet and csv have columns"):
        evaluate_store([log], tmp_path / "store", group="user")
