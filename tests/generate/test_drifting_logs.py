"""Logs of several periods: a file each, in which keys are born, rise, fade and die.

Above it: pytest. Below it: hps.generate, `hps generate`, the readers.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from hps.cli.main import main
from hps.errors import ConfigError
from hps.generate import FORMATS, GeneratorConfig, kernels
from hps.generate.log import LogWriter
from hps.generate.planted import draw_block, plant
from hps.generate.tally import Part, period_parts

SMALL = {"examples": 3001, "keys": 3000, "features": 4, "dense": 2, "seed": 5}
Holders = NDArray[np.int64]


def holders(config: GeneratorConfig, feature: int) -> Holders:
    """The id that holds each rank in each period, int64 [periods, ranks]."""
    model, size = plant(config), int(config.cardinalities()[feature])
    rows = [
        [kernels.holder(model, feature, rank, period) for rank in range(size)]
        for period in range(config.periods)
    ]
    return np.array(rows)


def test_ranks_always_have_different_keys_and_a_share_of_them_is_new_each_period() -> None:
    config = GeneratorConfig(keys=4001, features=1, dense=0, periods=12, drift=0.15)
    found = holders(config, 0)
    assert (found[0] == np.arange(4001)).all() and found.max() < config.spans()[0]
    for before, after in pairwise(found):
        assert len(np.unique(after)) == len(after)
        num_new = len(np.setdiff1d(after, before))
        assert num_new / len(after) == pytest.approx(0.15, abs=0.01)
    model = plant(config)
    for period in (0, 11):
        for rank in range(4001):
            best = kernels.best_rank(model, 0, int(found[period, rank]))
            assert best == kernels.lane_of(model, 0, rank) <= rank
    assert (found[:, -1] == 4000).all()  # 4001 keys are 1000 lanes and one rank that stays


def test_a_key_is_born_rises_fades_dies_and_never_comes_back() -> None:
    config = GeneratorConfig(keys=400, features=1, dense=0, periods=60, drift=0.05)
    found = holders(config, 0)
    lives = 0
    for identity in range(400, int(found.max()) + 1):
        periods, ranks = np.nonzero(found == identity)
        quarters = ranks // 100
        if not len(periods) or periods[-1] == 59:
            continue
        lives += 1
        assert (np.diff(periods) == 1).all()  # without a gap
        stages = np.array([1, 0, 2, 3])[quarters]
        assert stages[0] == 0 and stages[-1] == 3 and (np.diff(stages) >= 0).all()
        assert len(periods) in (19, 20, 21)  # 1 / drift
        assert len(set(ranks % 100)) == 1
    assert lives > 100


def test_without_drift_the_files_together_are_the_log_of_one_period(tmp_path: Path) -> None:
    LogWriter(GeneratorConfig(**SMALL), "criteo", 1).write(tmp_path / "whole")
    config = GeneratorConfig(**SMALL, periods=7)
    figures = LogWriter(config, "criteo", 2).write(tmp_path / "log.tsv")
    names = [f"log-00{number}.tsv" for number in range(7)]
    texts = [(tmp_path / name).read_bytes() for name in names]
    assert b"".join(texts) == (tmp_path / "whole").read_bytes()
    assert [text.count(b"\n") for text in texts] == [429, 429, 429, 428, 429, 429, 428]
    assert [period["path"] for period in figures["periods"]] == names
    assert not (tmp_path / "log.tsv").exists()
    assert json.loads((tmp_path / "log.tsv.json").read_text()) == figures


@pytest.mark.parametrize("log_format", FORMATS)
def test_every_format_has_the_keys_of_each_period_for_any_thread_count(
    log_format: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    import hps
    from hps.features.features import Features
    from hps.features.open import open_with_features
    from hps.reader import ReaderConfig, open_reader

    config = GeneratorConfig(**SMALL, periods=3, drift=0.2)
    figures = LogWriter(config, log_format, 2).write(tmp_path / "log")
    LogWriter(config, log_format, 1).write(tmp_path / "again" / "log")
    seen: set[int] = set()
    for number, period in enumerate(figures["periods"]):
        path = tmp_path / f"log-00{number}"
        if log_format != "parquet":
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
        tables = [hps.TableConfig(name="all", dim=1)]
        reading = ReaderConfig(format=log_format, dense=2 if log_format == "criteo" else None)
        if "features" in figures:
            features = Features.load(tmp_path / figures["features"])
            reader = open_with_features(path, tables=tables, config=reading, features=features)
        else:
            reader = open_reader(path, tables=tables, config=reading)
        batches = list(reader)
        keys = {key for batch in batches for key in batch.features["all"].keys_L.tolist()}
        assert sum(len(batch) for batch in batches) == period["examples"]
        assert sum(int(batch.labels.sum()) for batch in batches) == period["clicks"]
        assert len(keys) == period["distinct_keys"]
        assert len(keys - seen) == period["new_keys"]
        seen |= keys
    assert len(seen) == figures["distinct_keys"]
    assert figures["examples"] == sum(period["examples"] for period in figures["periods"]) == 3001


def test_best_auc_is_told_of_each_period_and_its_examples_are_of_it(tmp_path: Path) -> None:
    config = GeneratorConfig(**SMALL, periods=3, drift=0.2)
    figures = LogWriter(config, "slots", 1).write(tmp_path / "log")
    model = plant(config)
    for number, part in enumerate(period_parts(tmp_path / "log", config)):
        for example in (part.first, part.first + part.count - 1):
            assert kernels.period_of(model, example) == number
        alone = LogWriter(config, "slots", 1)
        told = alone._write(Part(tmp_path / f"alone-{number}", part.first, part.count), None)
        period = figures["periods"][number]
        assert told["best_auc"] == period["best_auc"] != figures["best_auc"]
        assert (tmp_path / f"alone-{number}").read_bytes() == part.path.read_bytes()


def test_bags_keep_the_mean_effects_of_their_features(tmp_path: Path) -> None:
    config = GeneratorConfig(keys=400, features=2, dense=0, bag=3, periods=20, drift=0.2)
    model = plant(config)
    for feature in range(2):
        found = holders(config, feature)
        effects = [
            [
                kernels.category_effect(
                    model, feature, int(one), kernels.best_rank(model, feature, int(one))
                )
                for one in row
            ]
            for row in found
        ]
        assert (np.array(effects) == effects[0]).all()
    block = draw_block(model, config.examples - 2000, 2000)
    size = config.cardinalities()[1]
    assert (block.ids[block.offsets[1] : block.offsets[2]] >= 0).all()
    assert block.ids.max() >= size  # some were born later


def test_the_test_part_is_of_the_last_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(tmp_path / "log"), "--examples", "3000", "--keys", "500"]
    words += ["--periods", "3", "--drift", "0.5", "--features", "2"]
    words += ["--test", str(tmp_path / "test"), "--test-examples", "1000"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("best possible AUC 0.") == 3 + 2

    def tokens(path: Path) -> set[str]:
        return {line.split("\t")[-1] for line in path.read_text().splitlines()}

    last, first = tokens(tmp_path / "log-002"), tokens(tmp_path / "log-000")
    test = tokens(tmp_path / "test")
    assert len(test & last) > 2 * len(test & first)


def test_periods_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"examples=5 .* 6 of them"):
        GeneratorConfig(examples=5, periods=6)
    with pytest.raises(ConfigError, match=r"drift=1\.0 .* 30 periods .* limit is 4294967296"):
        GeneratorConfig(examples=50, periods=30, drift=1.0, features=1, keys=2**32)
    words = ["generate", str(tmp_path / "log.tsv"), "--examples", "60", "--keys", "50"]
    assert main([*words, "--periods", "4"]) == 0
    assert main([*words, "--periods", "4"]) == 0  # its own files are written again
    capsys.readouterr()
    assert main([*words, "--periods", "3"]) == 1
    assert "log-003.tsv would be read as another period" in capsys.readouterr().err
