"""How a log is read is part of the model: kept with it, taken by a run that goes on, told first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main, make_parser
from hps.cluster.parameter_server import ClusterParameterServer
from hps.cluster.world.world import World
from hps.reader.column_use import DENSE, ColumnUse
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_store, train
from hps.train.dense_watch import DenseWatch
from hps.train.reading import model_to_resume
from tests.cluster.ranks import run_ranks
from tests.logs import write_criteo
from tests.service.client.client_lab import service

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
NUMBERS = ("keys", "dense_transform", "dense_columns")  # that earlier versions did not store


def write_parquet(path: Path, seed: int = 0, **columns: Any) -> Path:
    random = np.random.default_rng(seed)
    table = {"label": random.integers(0, 2, 256)}
    table |= {name: random.integers(0, 9, 256) for name in ("app", "os")}
    table |= {"price": random.random(256), "age": random.random(256), **columns}
    pq.write_table(pa.table(table), path)
    return path


def write_libsvm(path: Path) -> Path:
    path.write_text("".join(f"{row % 2} {row % 17}:1 {100 + row % 5}:1\n" for row in range(256)))
    return path


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


def go_on(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return run(log, store, **{"resume": True, "new_data": True, **changes})


def make_old(store: Path) -> None:
    """The newest checkpoint as a version wrote it that stored less of how the log is read."""
    with hps.open(store, read_only=False) as server:
        model, position = server.checkpoint_state("final")
        for name in ("dense_transform", "dense_columns", "ignore", "shared_vocabulary"):
            del model["recipe"]["reader"][name]
        for name in NUMBERS:
            position.pop(name, None)
        server.checkpoint(tag="old", model=model, reader=position)


def test_a_run_that_goes_on_takes_the_rule_of_keys_from_the_model(tmp_path: Path) -> None:
    log = write_libsvm(tmp_path / "log")
    for store, rule in (("hashed", True), ("raw", False), ("default", None)):
        rows = run(log, tmp_path / store, hash_keys=rule)["rows"]
        assert go_on(log, tmp_path / store)["rows"] == rows == 22
        with pytest.raises(hps.ConfigError, match=r"hash_keys=.*\(--hash-keys, --raw-keys\)"):
            go_on(log, tmp_path / store, hash_keys=not rule)
    digests = [run(log, tmp_path / f"{rule} 2", hash_keys=rule)["digests"] for rule in (True, None)]
    assert digests[0] != digests[1]


CONTRADICTIONS = [
    ("--format", {"format": "libsvm"}),
    ("--hash-keys, --raw-keys", {"hash_keys": False}),
    ("--label", {"label": "age"}),
    ("--dense", {"dense": 1}),
    ("--dense-log", {"dense_transform": "signed_log1p"}),
    ("--ignore", {"ignore": ["app"]}),
    ("--shared-vocabulary", {"shared_vocabulary": True}),
]


@pytest.mark.parametrize("new_data", [True, False])
def test_a_flag_that_contradicts_the_model_is_refused_by_name(
    tmp_path: Path, new_data: bool
) -> None:
    log, store = write_parquet(tmp_path / "log"), tmp_path / "store"
    run(log, store)
    for flag, changes in CONTRADICTIONS:
        name, value = next(iter(changes.items()))
        with pytest.raises(hps.ConfigError) as refused:
            go_on(log, store, new_data=new_data, **changes)
        said = str(refused.value)
        assert f"({flag})" in said and f"asks for {value!r}" in said and f"{name}=" in said
    agreeing = {"format": "parquet", "hash_keys": True, "label": "label", "dense": 2, "ignore": []}
    free = {"batch_size": 32, "on_error": "skip", "threads": 1}
    assert go_on(log, store, new_data=new_data, **agreeing, **free)["rows"] == 18


def test_what_was_given_once_need_not_be_given_again(tmp_path: Path) -> None:
    at = pa.array([0] * 256, pa.timestamp("s"))
    click = np.arange(256) % 2
    log = write_parquet(tmp_path / "log", at=at, click=click)
    how: dict[str, Any] = {"label": "click", "ignore": ["at", "label"], "hash_keys": False}
    how |= {"dense_transform": "signed_log1p", "shared_vocabulary": True}
    first = run(log, tmp_path / "store", test=[log], **how)
    # Another day has its columns in another order, and one that the model does not know.
    table = pq.read_table(log)
    day = tmp_path / "day"
    names = ["age", "price", "os", "app", "click"]
    pq.write_table(table.select(names).append_column("new", pa.array(range(256))), day)
    second = go_on(day, tmp_path / "store", test=[log])
    same = go_on(log, tmp_path / "store")
    assert first["rows"] == second["rows"] == same["rows"]
    told = {column["name"]: column["kind"] for column in second["columns"]}
    assert told["new"] == "ignored" and told["click"] == "label"
    measured = evaluate_store([day], tmp_path / "store")
    assert same["columns"] == first["columns"]  # with the reasons of the first run, too
    why = {column["name"]: column["why"] for column in same["columns"]}
    assert why["at"] == why["label"] == "left out by name"
    assert measured["logloss"] == pytest.approx(
        evaluate_store([log], tmp_path / "store")["logloss"]
    )
    with pytest.raises(hps.ConfigError, match=r"format='parquet'.*asks for 'libsvm'.*--format"):
        evaluate_store([log], tmp_path / "store", format="libsvm")


def test_a_model_of_an_earlier_version_goes_on_as_it_was_read(tmp_path: Path) -> None:
    log, store = write_parquet(tmp_path / "log"), tmp_path / "store"
    rows = run(log, store, hash_keys=False)["rows"]
    make_old(store)
    more = write_parquet(tmp_path / "more", paid=pa.array([True] * 256))
    figures = go_on(more, store)
    assert figures["rows"] == rows == 9
    told = {column["name"]: column["why"] for column in figures["columns"]}
    assert told["app"] == "numbers are keys as they stand"
    assert told["paid"] == "no table has this feature"
    with pytest.raises(hps.ConfigError, match=r"hash_keys=False, .* asks for True"):
        go_on(log, store, hash_keys=True)
    assert go_on(log, store)["rows"] == rows  # also once this version has stored it


def test_an_old_model_of_criteo_keeps_its_dense_values(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 128)
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    log.write_text("".join("\t".join([line[0], "", "-1", *line[3:]]) + "\n" for line in lines))
    run(log, tmp_path / "store", dense_transform="log1p", limit=64)
    make_old(tmp_path / "store")
    run(log, tmp_path / "store", resume=True)
    whole = run(log, tmp_path / "whole", dense_transform="log1p")
    resumed = run(log, tmp_path / "store", resume=True)
    assert resumed["digests"] == whole["digests"]
    assert resumed["loss_digest"] == whole["loss_digest"]
    now = run(log, tmp_path / "now")
    assert now["loss_digest"] != whole["loss_digest"]


def test_servers_tell_how_their_model_reads(tmp_path: Path) -> None:
    log = write_libsvm(tmp_path / "log")
    with service(tmp_path, 1, tables=()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        where: dict[str, Any] = {"data": [log], "remote": remote, **SMALL}
        rows = train(TrainOptions(**where, hash_keys=True))["rows"]
        where |= {"resume": True, "new_data": True}
        assert train(TrainOptions(**where))["rows"] == rows
        with pytest.raises(hps.ConfigError, match=r"service .* hash_keys=True"):
            train(TrainOptions(**where, hash_keys=False))


def test_every_rank_is_told_how_the_model_reads(tmp_path: Path) -> None:
    log = write_libsvm(tmp_path / "log")
    run(log, tmp_path / "alone", hash_keys=True, shared_vocabulary=True)
    with hps.open(tmp_path / "alone") as server:
        model, position = server.checkpoint_state("final")
    asked = TrainOptions(data=[log], store=tmp_path / "ranks", resume=True, **SMALL)
    config = asked.server_config()

    def body(world: World) -> Any:
        with ClusterParameterServer(config, world) as server:
            server.push("features", np.array([1, 2]), np.ones((2, 3), np.float32))
            server.checkpoint(model=model, reader=position)
        seen = (
            asked
            if world.rank == 0
            else TrainOptions(
                data=[log], store=tmp_path / "not seen from here", resume=True, **SMALL
            )
        )
        stored = model_to_resume(seen, world)
        return None if stored is None else stored.flags()

    first, second = run_ranks(2, body)
    assert first == second and first["hash_keys"] and first["shared_vocabulary"]
    shape = {"model": "deepfm", "dim": 2, "hidden": [4], "optimizer": "adagrad"}
    assert first.items() >= shape.items()


def test_ranks_take_the_recipe_of_the_checkpoint_that_is_named(tmp_path: Path) -> None:
    log = write_libsvm(tmp_path / "log")
    run(log, tmp_path / "alone", hash_keys=True)
    with hps.open(tmp_path / "alone") as server:
        model, position = server.checkpoint_state("final")
    asked = TrainOptions(data=[log], store=tmp_path / "ranks", resume=True, **SMALL)
    raw = {**model, "recipe": {**model["recipe"], "reader": {**model["recipe"]["reader"]}}}
    raw["recipe"]["reader"]["hash_keys"] = False

    def body(world: World) -> Any:
        with ClusterParameterServer(asked.server_config(), world) as server:
            server.push("features", np.array([1, 2]), np.ones((2, 3), np.float32))
            server.checkpoint(tag="hashed", model=model, reader=position)
            server.checkpoint(tag="raw", model=raw, reader=position)
        found = [
            model_to_resume(replace(asked, resume_from=name), world)
            for name in ("hashed", "raw", None)
        ]
        return [stored.flags()["hash_keys"] for stored in found if stored is not None]

    assert run_ranks(2, body) == [[True, False, False]] * 2


def test_flags_that_are_not_given_are_none_and_both_rules_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = make_parser("train").parse_args
    words = ["train", "log", "--store", "store"]
    for given, value in ((["--hash-keys"], True), (["--raw-keys"], False), ([], None)):
        assert parse([*words, *given]).hash_keys is value
    bare = parse(words)
    for name in ("format", "label", "dense", "dense_transform", "ignore", "shared_vocabulary"):
        assert getattr(bare, name) is None
    assert parse([*words, "--ignore", "a", "--ignore", "b"]).ignore == ["a", "b"]
    with pytest.raises(SystemExit):
        main([*words, "--hash-keys", "--raw-keys"])
    assert "not allowed with argument --hash-keys" in capsys.readouterr().err


def test_columns_are_told_before_the_first_batch_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = np.arange(256) * 10.0
    log = write_parquet(tmp_path / "log", far=far, at=pa.array([0] * 256, pa.timestamp("s")))
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--dim", "2", "--hidden", "4"]
    words += ["--batch-size", "64", "--progress-seconds", "0.000001"]
    assert main(words) == 1
    assert "'at' (timestamp[ms])" in capsys.readouterr().err
    out = tmp_path / "out.json"
    assert main([*words, "--ignore", "at", "--json", str(out)]) == 0
    said = capsys.readouterr().err
    lines = [
        "2 features (hashed with the feature): app, os",
        "3 dense (as it stands; null is 0): price, age, far",
        "1 ignored (left out by name): at (timestamp[ms])",
    ]
    for line in lines:
        assert f"hps: columns: {line}\n" in said
    assert said.index("columns: ") < said.index("examples  ")
    assert "warning: dense column 'far' is far from scale: mean 1275, from 0 to 2550" in said
    assert "'price'" not in said and "--dense-log" in said
    columns = {column["name"]: column for column in json.loads(out.read_text())["columns"]}
    assert columns["far"]["kind"] == "dense" and columns["far"]["mean"] == 1275
    assert columns["at"]["type"] == "timestamp[ms]" and columns["app"]["table"] == "features"
    assert columns["label"]["kind"] == "label"
    out.unlink()
    other = ["--store", str(tmp_path / "log store"), "--ignore", "at", "--dense-log"]
    assert main([*words, *other, "--json", str(out)]) == 0
    assert "warning" not in capsys.readouterr().err


def test_criteo_is_not_warned_of_and_a_watch_ends(tmp_path: Path) -> None:
    columns = [ColumnUse(name, DENSE, "float", "") for name in "ab"]
    watch = DenseWatch(columns, "none")
    assert watch.add(torch.zeros(0, 2)) == [] == watch.add(torch.ones(9_999, 2))
    warnings = watch.add(torch.tensor([[0.0, 1e9]]))
    assert len(warnings) == 1 and "'b'" in warnings[0] and "from 1 to 1e+09" in warnings[0]
    assert watch.add(torch.full((20_000, 2), 1e9)) == [] == watch.finish()
    assert watch.found()["a"]["examples"] == 10_000
    figures = run(write_criteo(tmp_path / "log", 128), tmp_path / "store")
    told = [column for column in figures["columns"] if column["kind"] == "dense"]
    assert len(told) == 13 and all(column["root_mean_square"] < 20 for column in told)
