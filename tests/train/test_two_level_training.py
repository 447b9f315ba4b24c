"""hps train --two-level: each key has a first-order weight and comes by its vector at a score; the
model keeps it, whoever goes on with it, measures it or scores with it.

Above it: pytest. Below it: hps/train/, hps/models/base.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cli.main import main
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.service.client.options import ClientConfig
from hps.train import evaluate_remote, evaluate_store, train
from hps.train.model_list import models_of
from tests.cluster.rank_nursery import Job, Nursery
from tests.service.client.client_lab import service
from tests.train.killed_run import killed_after
from tests.train.test_training_periods import NUM_DAYS, counts_of, options_of, told

SCORE = 0.35
AGAIN: dict[str, Any] = {"resume": True, "new_data": True}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Logs of slots, a day each, of more keys than small caches hold, some of them often."""
    folder = tmp_path_factory.mktemp("days")
    generator = np.random.default_rng(11)
    paths = []
    for day in range(NUM_DAYS):
        lines = []
        for _ in range(180):
            keys = generator.integers(1, [40, 40, 2000, 2000]) + 20 * day
            slots = " ".join(f"{slot + 1}:{key}" for slot, key in enumerate(keys))
            lines.append(f"click:{int(generator.random() < 0.2)} {slots}\n")
        paths.append(folder / f"day-{day}")
        paths[-1].write_text("".join(lines))
    return paths


def keys_of(server: hps.ParameterServer, table: str) -> set[int]:
    return {key for keys, _ in server.items(table) for key in keys.tolist()}


def test_each_key_has_a_weight_and_those_of_a_score_a_vector(
    days: list[Path], tmp_path: Path
) -> None:
    # Score: shows / 10 without a click, so that 4 shows, or a click, make it.
    figures = train(options_of(days[:2], tmp_path / "store", two_level=SCORE))
    assert set(figures["digests"]) == {"features", "features.first_order"}
    counts = counts_of(days[:2])
    with hps.open(tmp_path / "store") as server:
        vectors, weights = server.tables["features"], server.tables["features.first_order"]
        assert (vectors.dim, weights.dim, weights.statistics) == (2, 1, True)
        assert vectors.admission == hps.Admission(by="features.first_order", min_score=SCORE)
        keys = np.array(list(counts), np.int64)
        assert keys_of(server, "features.first_order") == {*keys.view(np.uint64).tolist()}
        seen = server.statistics("features.first_order", keys.view(np.uint64))
        assert np.array_equal(np.stack([seen["show"], seen["click"]], 1), [*counts.values()])
        with_vector = keys_of(server, "features")
    scores = {key: 0.1 * (show - click) + click for key, (show, click) in counts.items()}
    # By the score of before its update a key may have it, and its vector comes with the next one.
    assert with_vector <= {key for key, score in scores.items() if score >= SCORE}
    assert with_vector >= {key for key, score in scores.items() if score >= SCORE + 4}
    assert 0 < len(with_vector) < len(counts)


def test_a_model_keeps_its_levels_and_takes_no_others(days: list[Path], tmp_path: Path) -> None:
    for name, given in (("apart", SCORE), ("whole", None)):
        train(options_of(days[:1], tmp_path / name, two_level=given))
    figures = train(options_of(days[1:2], tmp_path / "apart", **AGAIN))
    assert set(figures["digests"]) == {"features", "features.first_order"}
    assert train(options_of(days[1:2], tmp_path / "apart", two_level=SCORE, **AGAIN))["rows"] > 0
    for name, asked, stored in (("apart", 2.0, SCORE), ("whole", SCORE, None)):
        message = rf"trained with two_level={stored}, this run asks for {asked} \(--two-level\)"
        with pytest.raises(ConfigError, match=message):
            train(options_of(days[1:2], tmp_path / name, two_level=asked, **AGAIN))
    with hps.Model.load(tmp_path / "apart", dram="8MiB") as scoring:
        other = replace(scoring.recipe, two_level=2.0)
        with pytest.raises(ConfigError, match=rf"has two_level={SCORE}, this run asks for 2.0"):
            scoring.recipe.check_same(other)
    (model,) = [one for one in models_of(tmp_path / "apart").models if one["tag"] == "final"]
    assert (model["dim"], model["dims"]) == (2, {"features": 2})
    with pytest.raises(ConfigError, match="trained with dim=2"):
        train(options_of(days[1:2], tmp_path / "apart", dim=3, **AGAIN))


LIFE: dict[str, Any] = {
    "two_level": SCORE,
    "expire_below": 0.3,
    "expire_unseen": 1,
    "advance_every": "file",
    "valid": None,  # set where it is used
    "eval_every": 3,
    "initial_accumulator": 0.01,  # which tables of servers have from before
}


@pytest.fixture(scope="module")
def whole(days: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """What every other way to train comes to: the store, and what is told of the run."""
    store = tmp_path_factory.mktemp("whole") / "store"
    figures = train(options_of(days, store, **{**LIFE, "valid": days[:1]}, depth=0, threads=1))
    assert figures["period"] == NUM_DAYS - 1
    with hps.open(store) as server:
        weights = server.num_rows("features.first_order")
        assert 0 < server.num_rows("features") < weights < len(counts_of(days))
    return store, told(figures)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 4},
        {"threads": 3, "depth": 1, "lookahead": 3},
        {"instruction_set": "plain"},
        {"dram": 24_000, "depth": 2},
        {"gpu": "8MiB", "device": "cpu", "depth": 2},
        {"gpu": 40_000, "device": "cpu", "dram": 24_000, "depth": 0},
        {"gpu": 40_000, "device": "cpu", "dram": 24_000, "depth": 3},
    ],
    ids=lambda changes: "-".join(str(one) for one in changes.items()),
)
def test_who_waits_does_not_depend_on_how(
    whole: tuple[Path, Json], days: list[Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    more: Json = {**LIFE, "valid": days[:1], **changes}
    figures = train(options_of(days, tmp_path, **more))
    assert told(figures) == whole[1]
    tier = figures["tiers"]["gpu_cache" if "gpu" in changes else "dram_cache"]
    assert (tier["evictions"] > 0) == ("dram" in changes)


@pytest.mark.parametrize("num_checkpoints", [1, 4])
def test_a_run_that_is_killed_goes_on_as_if_it_was_not(
    whole: tuple[Path, Json], days: list[Path], tmp_path: Path, num_checkpoints: int
) -> None:
    more: Json = {**LIFE, "valid": days[:1], "checkpoint_every": 2}
    gpu: Json = {"gpu": 40_000, "device": "cpu"}  # one of both runs has it
    with killed_after(num_checkpoints):
        train(options_of(days, tmp_path, **more, **(gpu if num_checkpoints == 1 else {})))
    more |= gpu if num_checkpoints == 4 else {}
    assert told(train(options_of(days, tmp_path, resume=True, **more))) == whole[1]


def test_weights_and_vectors_count_alike_and_die_together(
    whole: tuple[Path, Json], days: list[Path]
) -> None:
    with hps.open(whole[0]) as server:
        assert server.tables["features"].expiry == server.tables["features.first_order"].expiry
        keys = np.array([*keys_of(server, "features")], np.uint64)
        vectors, weights = (server.statistics(name, keys) for name in server.tables)
        for name in ("show", "click", "last_period", "dies_at"):
            assert np.array_equal(vectors[name], weights[name]), name
        assert len(keys) > 10 and (vectors["dies_at"] > NUM_DAYS - 1).all()


def test_all_who_measure_and_score_say_the_same(
    whole: tuple[Path, Json], days: list[Path], tmp_path: Path
) -> None:
    store, run = whole
    last = run["evaluations"][-1]
    measured = evaluate_store(days[:1], store, dram="8MiB")
    with hps.Model.load(store, dram="8MiB") as model:
        assert model.features == {"features": ["1", "2", "3", "4"]}
        found = [
            (model.predict(batch), batch.labels)
            for batch in model.open_reader(days[:1], batch_size=7)
        ]
        batch = next(iter(model.open_reader(days[:1])))
        ids = batch.features
        assert {*ids} == {*model.server.tables} and len({id(own) for own in ids.values()}) == 1
        scores, labels = (torch.cat(parts).double() for parts in zip(*found, strict=True))
        first = days[0].read_text().splitlines()[:5]
        slots = [dict(word.split(":") for word in line.split()[1:]) for line in first]
        columns = {name: [int(one[name]) for one in slots] for name in ("1", "2", "3", "4")}
        assert torch.equal(model.predict(columns), found[0][0][:5])
        assert model.lookup("features.first_order", np.array([1], np.uint64)).shape == (1, 1)
    assert measured["logloss"] == pytest.approx(last["logloss"], abs=1e-12)
    loss = torch.nn.functional.binary_cross_entropy(scores, labels)
    assert float(loss) == pytest.approx(measured["logloss"], abs=1e-6)


def test_the_keys_may_wait_for_their_weights_too(days: list[Path], tmp_path: Path) -> None:
    train(options_of(days[:1], tmp_path, two_level=SCORE, admit_count=3))
    shows = {key: show for key, (show, _) in counts_of(days[:1]).items()}
    rule = hps.Admission(count=3)
    with hps.open(tmp_path) as server:
        assert server.tables["features.first_order"].admission == rule
        assert [table.statistics for table in server.tables.values()] == [False, True]
        assert server.tables["features"].admission != rule
        kept = keys_of(server, "features.first_order")
        assert kept == {key for key, show in shows.items() if show >= 3}
        assert 0 < len(kept) < len(shows)
        assert keys_of(server, "features") < kept
    train(options_of(days[1:2], tmp_path, **AGAIN))
    train(options_of(days[2:3], tmp_path, admit_count=2, **AGAIN))
    with hps.open(tmp_path) as server:
        assert server.tables["features.first_order"].admission == hps.Admission(count=2)
        assert server.tables["features"].admission == hps.Admission(
            by="features.first_order", min_score=SCORE
        )


def test_narrow_rows_and_counts_are_those_of_the_vectors(days: list[Path], tmp_path: Path) -> None:
    more: Json = {"two_level": SCORE, "row_dtype": "bfloat16", "statistics": True}
    train(options_of(days[:1], tmp_path, **more))
    train(options_of(days[1:2], tmp_path, **AGAIN))
    with hps.open(tmp_path) as server:
        vectors, weights = server.tables.values()
        assert (vectors.dtype, weights.dtype) == ("bfloat16", "float32")
        assert vectors.statistics and weights.statistics and len(keys_of(server, "features")) > 5
    train(options_of(days[:1], tmp_path / "one", dim=1, two_level=SCORE))
    config = options_of(days[:1], tmp_path / "none", statistics=False, two_level=SCORE)
    assert [table.statistics for table in config.server_config().tables] == [False, True]
    widest = options_of(days[:1], tmp_path / "none", dim=4096, two_level=SCORE)
    assert [table.dim for table in widest.server_config().tables] == [4096, 1]
    shares = [table.share * 1e6 // table.layout.row_bytes for table in config.tables({"a": "b"})]
    assert shares[0] == shares[1]  # as many rows of both fit into a tier


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "dlrm"}, r"\(--two-level\): model dlrm: it has no first-order weight"),
        ({"model": "dcn_v2"}, r"model dcn_v2: it has no first-order weight"),
        ({"model": "autoint"}, r"model autoint: it has no first-order weight"),
        ({"model": "din"}, r"model din: it has no first-order weight"),
        (
            {"model": "lr", "dim": None, "hidden": None},
            r"model lr: it has first-order weights alone.*or take deepfm, wide_deep or fm",
        ),
        ({"two_level": 0.0}, "two_level"),
        ({"two_level": float("nan")}, "two_level"),
        ({"gpu": "8MiB"}, "a gpu_cache on cuda:0 admits every key so far"),
    ],
)
def test_what_cannot_have_two_levels_is_refused(
    days: list[Path], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(options_of(days, tmp_path / "store", **{"two_level": 1.0, **given}))
    assert not (tmp_path / "store").exists()


def test_the_commands_say_so(
    whole: tuple[Path, Json], days: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--format", "slots", "--model", "fm", "--batch-size", "16", "--dim", "2"]
    store, out = tmp_path / "store", tmp_path / "out.json"
    flags += ["--two-level", "0.35", "--expire-below", "0.05", "--dram", "8MiB"]
    assert main(["train", str(days[0]), "--store", str(store), *flags]) == 0
    capsys.readouterr()
    assert main(["stats", str(store)]) == 0
    assert "a score of 0.35 in table 'features.first_order'" in capsys.readouterr().out
    assert main(["models", str(store), "--show", "final"]) == 0
    assert re.search(r"two_level.*0\.35", capsys.readouterr().out)
    scored = tmp_path / "scores.csv"
    data = [str(days[0]), "--store", str(store)]
    assert main(["predict", *data, "--out", str(scored), "--dram", "8MiB"]) == 0
    assert main(["evaluate", *data, "--dram", "8MiB"]) == 0
    with hps.open(store) as server:
        every = np.array([*keys_of(server, "features.first_order")], np.uint64)
        weights = np.asarray(server.pull("features.first_order", every))
        has_vector = np.asarray(server.contains("features", every))
        seen = server.statistics("features.first_order", every)
    for number in (int(np.argmin(has_vector)), int(np.argmax(has_vector))):
        key = str(every[number])
        capsys.readouterr()
        assert main(["lookup", str(store), "--key", key, "--key", "987654321"]) == 0
        said = capsys.readouterr().out
        assert main(["lookup", str(store), "--key", key, "--json", str(out)]) == 0
        (row,) = json.loads(out.read_text())["rows"]
        assert (row["table"], row["waits"]) == ("features", not has_vector[number])
        assert row["is_there"] == has_vector[number] and row["first_order"] == weights[number, 0]
        counted = row["first_order_row"]
        assert (counted["show"], counted["click"]) == (seen["show"][number], seen["click"][number])
        score = 0.1 * (counted["show"] - counted["click"]) + counted["click"]
        assert row["score"] == pytest.approx(score)
        assert ("waits for its vector" in said) == row["waits"] != ("embedding:" in said)
        assert "first-order weight, of table 'features.first_order'" in said
        assert "absent: no row is stored" in said


OWN = """
import torch
from hps.models import ClickModel

class Mine(ClickModel):
    has_first_order = True

    def _build(self, hidden, dropout):
        self.bias = torch.nn.Parameter(torch.zeros(()))

    @property
    def output_bias(self):
        return self.bias

    def forward(self, batch):
        vectors, first_order = self.embed(batch).split([self.dim, 1], dim=2)
        return self.bias + first_order.sum(dim=(1, 2)) + vectors.square().sum(dim=(1, 2))
"""


def test_a_model_of_ones_own_needs_no_word_of_it(days: list[Path], tmp_path: Path) -> None:
    file, store = tmp_path / "mine.py", tmp_path / "store"
    file.write_text(OWN)
    kind: Json = {"model": f"{file}:Mine", "valid": days[:1]}
    figures = train(options_of(days[:2], store, two_level=SCORE, **kind))
    assert evaluate_store(days[:1], store)["logloss"] == figures["evaluations"][-1]["logloss"]
    assert 0 < len(keys_of_store(store, "features")) < figures["rows"] / 2
    file.write_text(OWN.replace("has_first_order = True", "has_first_order = False"))
    with pytest.raises(
        ConfigError, match=r"\(--two-level\): model .*: it has no first-order weight"
    ):
        options_of(days[:2], tmp_path / "none", two_level=SCORE, **kind)


def test_tables_of_several_dims_from_a_features_file(tmp_path: Path) -> None:
    log, described = tmp_path / "log.csv", tmp_path / "features.toml"
    write_csv(log, ["a", "b", "c"])
    described.write_text(
        "tables.items.dim = 3\n"
        'columns.a = {kind = "categorical", table = "items"}\n'
        'columns.b = {kind = "categorical"}\n'
        'columns.c = {kind = "ignored"}\n'
    )
    more: Json = {"model": "wide_deep", "features": described, "format": "csv", "depth": 1}
    store = tmp_path / "store"
    train(options_of([log], store, two_level=SCORE, **more))
    with hps.open(store) as server:
        dims = {name: table.dim for name, table in server.tables.items()}
        assert dims == {
            "features": 2,
            "features.first_order": 1,
            "items": 3,
            "items.first_order": 1,
        }
        for name in ("features", "items"):
            vectors, weights = keys_of(server, name), keys_of(server, f"{name}.first_order")
            assert vectors and vectors < weights
    (model,) = models_of(store).models
    assert model["dims"] == {"features": 2, "items": 3}
    # Another feature, and one that goes; tables stay.
    described.write_text(
        "tables.items.dim = 3\n"
        'columns.a = {kind = "ignored"}\n'
        'columns.b = {kind = "categorical"}\n'
        'columns.c = {kind = "categorical", table = "items"}\n'
    )
    more |= AGAIN | {"change_features": True}
    figures = train(options_of([log], store, **more))
    assert figures["rows"] > 0 and len(keys_of_store(store, "items.first_order")) > len(weights)
    with hps.Model.load(store, dram="8MiB") as model:
        assert model.features == {"features": ["b"], "items": ["c"]}
        assert model.predict({"b": ["x1"], "c": ["x2"]}).shape == (1,)
    wrong = described.read_text().replace("dim = 3", "dim = 4")
    described.write_text(wrong)
    with pytest.raises(ConfigError, match=r"dim = 4 of table 'items'.*have dim 3"):
        train(options_of([log], store, **more))


def test_servers_and_the_other_engine_have_the_rows_of_one_store(
    days: list[Path], tmp_path: Path
) -> None:
    def seen(server: Any) -> Any:
        return {name: (one, server.digest(name)) for name, one in sorted(server.tables.items())}

    def trained(store: Any, **place: Any) -> Any:
        train(options_of(days[:2], store, two_level=SCORE, **place))
        return train(options_of(days[2:], store, **AGAIN, **place))["loss_digest"]

    expected = trained(tmp_path / "store")
    with hps.open(tmp_path / "store") as reader:
        rows = seen(reader)
    assert len(rows) == 2
    with service(tmp_path, 2, ()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        assert trained(None, remote=remote) == expected
        with servers.client() as client:
            assert seen(client) == rows
    pytest.importorskip("rocksdict")
    assert trained(tmp_path / "other", engine="rocksdb") == expected
    with hps.open(tmp_path / "other") as reader:
        assert seen(reader) == rows


def test_a_key_whose_weight_is_erased_loses_its_vector(
    days: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    for name, more in (("plain", {}), ("counts", {"statistics": True})):
        store = tmp_path / name
        train(options_of(days[:2], store, two_level=SCORE, **more))
        with hps.open(store) as server:
            every = np.array([*keys_of(server, "features.first_order")], np.uint64)
            shows = server.statistics("features.first_order", every)["show"]
            kept = {*every[shows >= 6].tolist()}
            vectors = keys_of(server, "features")
        assert vectors - kept and vectors & kept
        assert main(["erase", str(store), "--show-below", "6", "--json", str(out)]) == 0
        assert keys_of_store(store, "features.first_order") == kept
        assert keys_of_store(store, "features") == vectors & kept
        told_of = json.loads(out.read_text())
        assert told_of["erased"]["features"] == len(vectors - kept)
        assert {table for one in told_of["held_by"] for table in one["rows"]} == {
            "features",
            "features.first_order",
        }


def test_a_store_that_is_served_is_measured_alike(days: list[Path], tmp_path: Path) -> None:
    train(options_of(days[:2], tmp_path / "shard0", two_level=SCORE))
    alone = evaluate_store(days[:1], tmp_path / "shard0", dram="8MiB")
    with service(tmp_path, 1, ()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        measured = evaluate_remote(days[:1], remote)
    for name in ("logloss", "auc", "rows", "examples"):
        assert measured[name] == alone[name], name


def test_ranks_have_the_keys_of_one_process(
    days: list[Path], tmp_path: Path, ranks: Nursery
) -> None:
    log = tmp_path / "log"
    log.write_text("".join(day.read_text() for day in days))
    words = ["train", str(log), "--format", "slots", "--dim", "2", "--hidden", "4", "--depth", "1"]
    words += ["--batch-size", "16", "--dram", "8MiB", "--two-level", str(SCORE), "--store"]
    assert main([*words, str(tmp_path / "alone")]) == 0
    words += [str(tmp_path / "ranks"), "--checkpoint-every", "2", "--resume-if-any"]
    assert ranks.run(Job(words, 2, dies_at={1: 5})).statuses[1] == -9
    figures = ranks.figures(Job(words, 2, variables={"TORCHELASTIC_RESTART_COUNT": "1"}))
    assert figures["resumed_from"] is not None
    for table in ("features", "features.first_order"):
        found = keys_of_store(tmp_path / "ranks", table)
        assert found == keys_of_store(tmp_path / "alone", table)
    main([*words, "--new-data"])  # and one process goes on with what they have


def test_names_that_leave_none_for_the_weights_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_csv(log, ["a", "b"])
    for tables, message in (
        (("x", "x.first_order"), "is the name of another one"),
        (("y" * 60, "z"), "a name has 64 letters at most"),
    ):
        described = tmp_path / "features.toml"
        described.write_text(
            "".join(
                f'columns.{column} = {{kind = "categorical", table = "{table}"}}\n'
                for column, table in zip("ab", tables, strict=True)
            )
        )
        more: Json = {"features": described, "format": "csv", "two_level": 1.0}
        with pytest.raises(ConfigError, match=message):
            train(options_of([log], tmp_path / "store", **more))
        assert not (tmp_path / "store").exists()


def keys_of_store(store: Path, table: str) -> set[int]:
    with hps.open(store) as server:
        return keys_of(server, table)


def write_csv(path: Path, columns: list[str]) -> None:
    generator = np.random.default_rng(2)
    lines = [",".join(["label", *columns])]
    for _ in range(80):
        values = [f"x{value}" for value in generator.zipf(1.5, len(columns)) % 30]
        lines.append(",".join([str(int(generator.random() < 0.4)), *values]))
    path.write_text("\n".join(lines) + "\n")
