"""The benchmarks of quality: splits, orders, vocabularies, histories, intervals, runs kept.

Above it: pytest. Below it: benchmarks/quality/.
"""

import importlib
import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest
import torch

import hps
from benchmarks.quality.contenders import run_contender
from benchmarks.quality.data_sets import (
    ALL_DATA_SETS,
    DATA_SETS,
    TINY,
    Choice,
    absent_data,
    load,
)
from benchmarks.quality.defaults.defaults_bench import (
    CANDIDATES,
    MORE_SEEDS,
    PASSES,
    PATIENCE,
    RATES,
    SMALL,
    Tuning,
    batch_of,
    in_passes,
    rows_of,
    text_of,
    trials,
    tuning_of,
)
from benchmarks.quality.figures import measure
from benchmarks.quality.generated import GENERATED, GENERATED_RARE, SHAPES, generated
from benchmarks.quality.logs import LABEL, Log, Vocabulary, in_epochs, longest_bag
from benchmarks.quality.public import AbsentData, criteo, folder_of, histories, standardised
from benchmarks.quality.quality_bench import (
    BAR,
    PEER_NAMES,
    PEERS,
    choice_of,
    planted_row,
    quality_row,
)
from benchmarks.quality.runs import Runs
from benchmarks.quality.settings import Job, Settings
from benchmarks.quality.statistics import paired
from benchmarks.quality.torchrec_dlrm import Coded, model_of, peer_classes
from benchmarks.quality.two_optimizers import TwoOptimizers
from benchmarks.quality.worker import job_from
from hps.models import MODELS
from hps.train import TrainOptions


def log_of(count, **more):
    table = pa.table(
        {
            LABEL: pa.array(np.arange(count) % 2, pa.int8()),
            "row": pa.array(range(count), pa.int64()),
            "words": pa.array([["a"] * (row % 3) for row in range(count)], pa.list_(pa.string())),
            "size": pa.array(np.arange(count, dtype=np.float32)),
            "history": pa.array([[row] for row in range(count)], pa.list_(pa.int64())),
        }
    )
    return Log(name="made", table=table, history="history", target="row", **more)


def rows_in(table):
    return table["row"].to_pylist()


def test_columns_are_told_by_their_types_and_the_history_is_none_of_them():
    log = log_of(5)
    assert log.columns("features") == ["row"]
    assert log.columns("bags") == ["words"]
    assert log.columns("dense") == ["size"]


@pytest.mark.parametrize("more", [{}, {"is_ordered": True}, {"num_test": 30}])
def test_a_split_holds_each_example_once_and_is_the_seed_s(more):
    log = log_of(101, **more)
    parts, again, other = log.split(3), log.split(3), log.split(4)
    assert sorted(row for part in parts.values() for row in rows_in(part)) == list(range(101))
    assert all(parts[part].equals(again[part]) for part in parts)
    assert rows_in(parts["train"]) != rows_in(other["train"])
    assert len(parts["test"]) == more.get("num_test", 11)


def test_what_is_ordered_is_split_in_its_order():
    parts = log_of(100, is_ordered=True).split(0)
    assert rows_in(parts["valid"]) == list(range(80, 90))
    assert rows_in(parts["test"]) == list(range(90, 100))
    assert rows_in(parts["train"]) != list(range(80))
    fixed = log_of(100, num_test=10).split(0)
    assert rows_in(fixed["test"]) == list(range(90, 100))


def test_every_epoch_has_all_examples_in_an_order_of_its_own():
    train = log_of(50).table
    ordered = rows_in(in_epochs(train, 2, seed=1))
    assert sorted(ordered[:50]) == sorted(ordered[50:]) == list(range(50))
    assert ordered[:50] != ordered[50:]
    assert ordered == rows_in(in_epochs(train, 2, seed=1)) != rows_in(in_epochs(train, 2, seed=2))


def test_what_training_has_not_seen_is_code_0():
    column = pa.chunked_array([["b", "ä", ""], ["b"]])
    known = Vocabulary.of([column])
    assert len(known) == 4
    codes = known.codes_of(pa.chunked_array([["zz", "b", "", "ä", "a"]]))
    assert codes[0] == codes[4] == 0 and sorted(codes[1:4]) == [1, 2, 3]
    assert list(Vocabulary(np.array([])).codes(np.array(["x"]))) == [0]


def test_bags_are_padded_and_leave_out_what_is_not_known():
    column = pa.chunked_array([pa.array([["a", "b"], [], ["c"], ["b", "x", "a"]])])
    known = Vocabulary(np.array(["a", "b", "c"]))
    assert known.bags_of(column, 2).tolist() == [[1, 2], [0, 0], [3, 0], [2, 1]]
    assert longest_bag({"train": pa.table({"words": column})}, "words") == 3


def test_a_history_has_no_item_of_its_own_moment_or_later_ones():
    users, items = np.array([1, 1, 2, 1, 1]), np.array([10, 11, 12, 13, 14])
    times, liked = np.array([1, 1, 1, 2, 3]), np.array([True, True, True, False, True])
    made = histories(users, items, times, liked).to_pylist()
    assert made == [[], [], [], [10, 11], [10, 11]]


def test_scaled_columns_take_the_mean_for_what_is_missing():
    scaled = np.asarray(standardised(np.array([1.0, np.nan, 3.0])))
    assert (
        scaled.dtype == np.float32 and scaled[1] == 0 and np.allclose(scaled, [-1, 0, 1], atol=0.3)
    )
    assert np.isfinite(np.asarray(standardised(np.array([2.0, 2.0])))).all()


def test_criteo_s_format_is_read_whole(tmp_path):
    counts = ["", "-1", "3", *["0"] * 10]
    line = "\t".join(["1", *counts, *[f"c{place}" for place in range(25)], ""])
    (tmp_path / "log.tsv").write_text(f"{line}\n{line}\n")
    log = criteo(tmp_path / "log.tsv")
    assert (len(log.columns("dense")), len(log.columns("features"))) == (13, 26)
    assert (
        log.table["I3"][0].as_py() == pytest.approx(np.log(4)) and log.table["I2"][0].as_py() == 0
    )
    assert log.table["C26"][0].as_py() == ""


def test_an_interval_is_that_of_pairs():
    found = paired([0.75, 0.77, 0.79], [0.74, 0.75, 0.76])
    assert (found.difference, found.low, found.high) == pytest.approx(
        (0.02, -0.00484, 0.04484), abs=1e-5
    )
    assert found.reaches(0.03) and not found.reaches(0.05)
    alone = paired([0.7], [0.71])
    assert alone.high is None and alone.reaches(-0.02) and not alone.reaches(-0.003)


def scores_of(auc, **more):
    return {"test": {"auc": auc, "logloss": 0.5}, "valid": {"auc": auc}, "best_auc": None} | more


def test_a_row_is_below_the_bar_where_its_whole_interval_is():
    worse = [scores_of(auc) for auc in (0.700, 0.711, 0.722)]
    better = [scores_of(auc) for auc in (0.710, 0.720, 0.730)]
    row = quality_row({}, worse, ("peer", better), BAR)
    assert row["difference"] == pytest.approx(-0.009) and not row["reaches"]
    assert quality_row({}, better, ("peer", worse), BAR)["reaches"]


def test_the_share_of_the_planted_best_is_counted_from_one_half():
    row = planted_row({}, [scores_of(0.7, best_auc=0.9), scores_of(0.8, best_auc=0.9)])
    assert row["share"] == pytest.approx(0.625) and row["value"] == pytest.approx(0.75)


def test_a_log_that_cannot_be_told_apart_scores_one_half():
    figures = measure(np.full(100, 0.25), np.arange(100) % 2)
    assert figures["auc"] == 0.5 and figures["logloss"] == pytest.approx(0.8370, abs=1e-4)


def test_hps_learns_the_tiny_log_and_repeats_with_the_seed():
    log = load(TINY, 0, None)
    settings = Settings(dim=4, hidden=(8,), batch_size=32, epochs=2, lr=0.1)
    first, again, other = (run_contender("hps", log, settings, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert 0.6 < first["test"]["auc"] < log.best
    assert run_contender("hps", log, Settings(lr=1e-6, dense_lr=1e-6), 0)["test"]["auc"] < 0.6


def test_hps_trains_with_the_seed_and_what_is_asked_for_and_nothing_more(monkeypatch):
    seen = []

    class Stop(Exception):
        pass

    def stop(options):
        seen.append(options)
        raise Stop

    monkeypatch.setattr("benchmarks.quality.contenders.train", stop)
    for settings in (Settings(model="fm", dim=4, hidden=(8,), lr=0.1), Settings()):
        with pytest.raises(Stop):
            run_contender("hps", load(TINY, 0, None), settings, 7)
    asked, default = seen
    assert (asked.seed, asked.model, asked.dim, asked.lr, asked.hidden) == (7, "fm", 4, 0.1, None)
    assert default.shape() == TrainOptions(data=["x"], store="y").shape()
    assert (default.lr, default.batch_size) == (None, TrainOptions.batch_size)


SMALL_MODEL = {"dim": 4, "hidden": (8, 6), "dropout": 0.0, "init_std": 0.01}
TRAINED = {"batch_size": 32, "epochs": 2, "lr": 0.1, "dense_lr": 0.01}


def need(peer):
    """Skips where the peer is not installed."""
    try:
        if peer == "torchrec":
            peer_classes()
        else:
            importlib.import_module("benchmarks.quality.deepctr").peer_modules()
    except (ImportError, OSError) as error:
        pytest.skip(f"{PEER_NAMES[peer]} is not installed: {error}")


def test_every_kind_of_model_has_a_peer_that_has_a_name():
    assert set(PEERS) == set(MODELS) and set(PEERS.values()) == set(PEER_NAMES)


def test_rows_of_a_peer_have_adagrad_and_all_else_has_adam():
    bags = torch.nn.ModuleDict({"a": torch.nn.EmbeddingBag(3, 2, mode="sum")})
    model = torch.nn.ModuleDict({"embedding_bags": bags, "top": torch.nn.Linear(2, 1)})
    optimizer = TwoOptimizers(model, "embedding_bags", Settings(lr=0.5, dense_lr=0.125))
    optimizer.zero_grad()
    before = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    model["top"](bags["a"](torch.tensor([[1]]))).sum().backward()
    optimizer.step()
    moved = {name: (own - before[name]).abs() for name, own in model.named_parameters()}
    # The first step of either is its rate in each weight that has a gradient.
    assert moved["embedding_bags.a.weight"].tolist() == [[0, 0], pytest.approx([0.5, 0.5]), [0, 0]]
    assert moved["top.weight"].tolist() == [pytest.approx([0.125, 0.125], rel=1e-4)]
    kinds = [type(part) for part in optimizer.parts]
    assert kinds == [torch.optim.Adagrad, torch.optim.Adam]
    assert len(optimizer.parts[0].param_groups[0]["params"]) == 1


def test_a_part_is_coded_by_what_training_has_seen():
    words = pa.list_(pa.string())
    train = pa.table(
        {
            LABEL: pa.array([0, 1], pa.int8()),
            "city": ["b", "ä"],
            "words": pa.array([["x", "y"], []], words),
        }
    )
    other = pa.table(
        {
            LABEL: pa.array([0, 1, 1], pa.int8()),
            "city": ["ä", "new", ""],
            "words": pa.array([["new", "y"], [], ["x", "x"]], words),
        }
    )
    log = Log(name="made", table=train)
    coded = Coded(log, {"train": train, "test": other}, "test")
    assert coded.sizes == {"city": 3, "words": 3} and coded.num_dense == 1
    first, second = coded.batches(2)
    assert [part.tolist() for part in first] == [[[0], [0]], [2, 0, 2], [1, 1, 1, 0]]
    assert [part.tolist() for part in second] == [[[0]], [0, 1, 1], [1, 2]]


def test_dense_columns_are_given_as_they_are():
    log = log_of(5)
    coded = Coded(log, {"train": log.table}, "train")
    (batch,) = coded.batches(8)
    assert coded.num_dense == 1 and batch[0].tolist() == [[0], [1], [2], [3], [4]]
    assert list(coded.sizes) == ["row", "words"] and batch[2].tolist() == [1] * 5 + [0, 1, 2, 0, 1]


def test_the_dlrm_of_the_peer_is_as_large_as_that_of_hps(tmp_path):
    need("torchrec")
    settings = Settings(model="dlrm", **SMALL_MODEL)
    peer = model_of({"a": 5, "b": 7, "c": 9}, 2, settings)
    others = [own.shape for name, own in peer.named_parameters() if "embedding_bags" not in name]
    tables = [hps.TableConfig(name="t", dim=4)]
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        own = MODELS["dlrm"](server, {"t": 3}, 2, hidden=(8, 6))
    assert sorted(others) == sorted(weights.shape for weights in own.parameters())
    rows = [own for name, own in peer.named_parameters() if "embedding_bags" in name]
    assert len(rows) == 3 and 0.005 < torch.cat(rows).std() < 0.02


def test_the_attention_of_the_peer_is_as_wide_as_that_of_hps(tmp_path):
    need("deepctr")
    deepctr = importlib.import_module("benchmarks.quality.deepctr")
    log = load(TINY, 0, None)
    parts = log.split(0)
    columns, _ = deepctr._columns(log, parts, 4)
    peer = deepctr._model(log, columns, Settings(model="autoint", **SMALL_MODEL), seed=0)
    tables = [hps.TableConfig(name="t", dim=4)]
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        own = MODELS["autoint"](server, {"t": 8}, 4, hidden=(8, 6))
    for layer, (name, weights) in zip(peer.int_layers, own.layers.named_parameters(), strict=True):
        given = torch.cat([layer.W_Query, layer.W_key, layer.W_Value, layer.W_Res], dim=1)
        assert given.T.shape == weights.shape, name


@pytest.mark.parametrize("model", ["autoint", "dlrm"])
def test_a_peer_learns_the_tiny_log_and_repeats_with_the_seed(model):
    need(PEERS[model])
    log = load(TINY, 0, None)
    # Wide enough that no layer of ReLUs begins dead.
    settings = Settings(model=model, **SMALL_MODEL | {"hidden": (32, 16)}, **TRAINED)
    first, again, other = (run_contender(PEERS[model], log, settings, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert 0.55 < first["test"]["auc"] < log.best


class Ran(Runs):
    """Counts what it runs instead of running it."""

    def __init__(self, cache):
        super().__init__(cache, is_here=True)
        self.ran = []

    def _run(self, jobs):
        self.ran += jobs
        for job in jobs:
            line = {"job": {}, "scores": scores_of(job.settings.lr or 0.5)}
            self._found[self._key(job)] = line["scores"]
            if self._cache is not None:
                (self._cache / f"{self._key(job)}.json").write_text(json.dumps(line))


def job(seed=0, contender="hps", **settings):
    return Job(contender=contender, log="x", seed=seed, settings=Settings(**settings))


def test_a_run_that_was_kept_is_not_run_again(tmp_path):
    first = Ran(tmp_path)
    jobs = [job(0), job(1), job(0, lr=0.7), job(0)]
    assert [one["test"]["auc"] for one in first.scores(jobs)] == [0.5, 0.5, 0.7, 0.5]
    assert len(first.ran) == 3
    again = Ran(tmp_path)
    again.scores([*jobs, job(2)])
    assert again.ran == [job(2)]


@pytest.mark.parametrize("hidden", [None, (8, 4)])
def test_a_job_goes_through_json(hidden):
    asked = job(3, hidden=hidden, lr=0.1)
    assert job_from(json.loads(json.dumps(asdict(asked)))) == asked


def test_a_run_of_hps_is_of_one_commit_and_a_peer_s_is_not(tmp_path, monkeypatch):
    Ran(tmp_path).scores([job(), job(contender="linear")])
    monkeypatch.setattr("benchmarks.quality.runs.commit", lambda: "another")
    later = Ran(tmp_path)
    later.scores([job(), job(contender="linear")])
    assert later.ran == [job()]


def test_tuning_takes_what_validates_best():
    runs = Ran(None)
    tuning = Tuning(runs, job(), seeds=2)
    tried = [Settings(lr=rate) for rate in (0.1, 0.9, 0.4)]
    assert tuning.best(tried) == tried[1]
    assert [one.seed for one in runs.ran] == [0, 0, 0]
    found = tuning.scores(tried[:2])
    assert [[one["test"]["auc"] for one in scores] for scores in found] == [[0.1] * 2, [0.9] * 2]
    assert runs.ran[-1].seed == 1


def test_a_small_log_is_tuned_on_all_of_its_seeds_and_has_more():
    options = {"model": "fm", "examples": 0, "criteo": None, "seeds": 2, "is_smoke": False}
    more = 2 * MORE_SEEDS
    for num_train, tuned_on, measured in ((SMALL - 1, more, more), (SMALL, 1, 2)):
        runs = Ran(None)
        tuning = tuning_of("x", num_train, runs, options)
        tuning.best([Settings()])
        assert [one.seed for one in runs.ran] == list(range(tuned_on))
        assert [len(scores) for scores in tuning.scores([Settings()])] == [measured]


class ByLog(Runs):
    """Runs nothing: the first seed validates best at a rate of 0.1, all of them at 0.05."""

    def __init__(self):
        super().__init__(None, is_here=True)

    def scores(self, jobs):
        found = []
        for one in jobs:
            rate = one.settings.lr or 0.02
            best = 0.1 if one.seed == 0 else 0.05
            auc = 0.8 - abs(rate - best) - 0.001 * one.seed
            found.append({"test": {"auc": auc - 0.1, "logloss": 0.5}, "valid": {"auc": auc}})
        return found


def test_tuning_on_more_seeds_takes_what_is_best_in_the_mean():
    tried = [Settings(lr=rate) for rate in (0.05, 0.1)]
    assert Tuning(ByLog(), job(), seeds=3).best(tried) == tried[1]
    assert Tuning(ByLog(), job(), seeds=3, tuned_on=3).best(tried) == tried[0]


def test_rows_of_defaults_stand_beside_what_was_tuned():
    options = {"model": "fm", "is_smoke": False, "wide": False, "candidates": True}
    rows = rows_of(Tuning(ByLog(), job(), 3, 3), {"data": "x"}, 80_000, options)
    assert [row["settings"] for row in rows] == ["the defaults", *CANDIDATES] * len(PASSES)
    assert [row["passes"] for row in rows] == [
        n for n in PASSES for _ in range(1 + len(CANDIDATES))
    ]
    for row in rows:  # of a rate of 0.02, all of them; 0.05 is best
        assert row["difference"] == pytest.approx(-0.03) and not row["reaches"]
        assert "lr 0.05" in row["tuned"] and row["repetitions"] == 3
        assert ("epochs 4, patience 1" in row["tuned"].replace("lr 0.05, ", "")) == (
            row["passes"] == 4
        )


class OfDefaults(ByLog):
    """Runs nothing: what asks for nothing is best."""

    def scores(self, jobs):
        found = super().scores(jobs)
        for one, scores in zip(jobs, found, strict=True):
            if one.settings.lr is None and one.settings.dense_lr is None:
                scores["test"]["auc"] = 0.9
        return found


def test_defaults_that_are_ahead_reach_the_bar():
    options = {"model": "fm", "is_smoke": False, "wide": False, "candidates": False}
    rows = rows_of(Tuning(OfDefaults(), job(), 3, 3), {"data": "x"}, 80_000, options)
    assert [(row["settings"], row["reaches"]) for row in rows] == [("the defaults", True)] * 2
    assert rows[0]["difference"] > 0.19


def test_trials_differ_and_fit_the_log():
    tried = trials("deepfm", 80_000, is_smoke=False, is_wide=False)
    assert {one.lr for one in tried} == set(RATES)
    assert {one.batch_size for one in tried} == {128, 256, 512}
    assert {one.initial_accumulator for one in tried} == {None, 0.0}
    wide = trials("deepfm", 80_000, is_smoke=False, is_wide=True)
    assert len(wide) == len(set(wide)) >= 19 and set(wide) > set(tried)
    assert {one.batch_size for one in wide} == {128, 256, 512}
    assert batch_of(0, 100) == 32


def test_settings_of_several_passes_are_validated():
    one = Settings(model="fm", lr=0.1)
    assert in_passes(one, 1, 80_000) == one
    few = in_passes(one, 4, 80_000)
    assert few == replace(one, epochs=4, patience=PATIENCE, batch_size=256)
    assert in_passes(replace(one, batch_size=32), 4, 80_000).batch_size == 32


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(), "none"),
        (Settings(model="fm", lr=0.1), "lr 0.1"),
        (Settings(lr=0.1, initial_accumulator=0.0), "lr 0.1, initial_accumulator 0"),
        (Settings(initial_accumulator=0.5, epochs=4), "epochs 4, initial_accumulator 0.5"),
    ],
)
def test_settings_in_words_say_what_is_given(settings, text):
    assert text_of(settings) == text


def test_generated_logs_have_the_shape_that_is_asked_for():
    assert set(DATA_SETS) < set(ALL_DATA_SETS) and {*GENERATED, *GENERATED_RARE} == set(SHAPES)
    wide = generated("generated_wide_rare", 900)
    assert (len(wide.columns("features")), len(wide.columns("dense"))) == (26, 13)
    assert wide.num_test == 450 and len(wide.table) == 900 + 900 // 8 + 450
    bags = generated("generated_bags_rare", 400)
    assert len(bags.columns("bags")) == 8 and not bags.columns("features")
    lengths = [bags.table[name].combine_chunks().value_lengths() for name in bags.columns("bags")]
    assert 6 < np.mean([np.mean(column.to_numpy()) for column in lengths]) < 14
    with pytest.raises(KeyError):
        generated("generated_7")


def test_a_data_set_that_is_not_installed_is_named(monkeypatch):
    with pytest.raises(AbsentData, match="no_such_package is not installed"):
        folder_of("no_such_package")
    assert list(absent_data(Choice(names=("criteo", TINY)))) == ["criteo"]
    with pytest.raises(SystemExit, match=r"no data set \['moon'\]; there are: movielens"):
        choice_of({"data": ["moon"], "examples": 0, "criteo": None})
