"""Logs whose features hold bags: their lengths, their keys in each format, and their planted model.

Above it: pytest. Below it: hps.generate.
"""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("numba")

from hps.cli.main import main
from hps.errors import ConfigError
from hps.generate import GeneratorConfig, kernels, log
from hps.generate.bags import length_law, longest_bag
from hps.generate.config import BAG_FORMATS
from hps.generate.log import LogWriter
from hps.generate.planted import draw_block, plant
from hps.metrics import BinaryMetrics

SMALL = {"examples": 3000, "keys": 2000, "features": 5, "dense": 3, "seed": 7, "drift": 0.2}
Bags = list[list[list[int]]]  # of each example and feature


def drawn_bags(config: GeneratorConfig, log_format: str) -> Bags:
    """The numbers by which a format names the keys that are drawn, example by example."""
    model = plant(config)
    block = draw_block(model, 0, config.examples)
    bags: Bags = []
    for row in range(config.examples):
        bags.append([])
        for feature in range(config.features):
            begin, end = block.offsets[row * config.features + feature :][:2]
            ids = block.ids[begin:end]
            if log_format in ("libsvm", "libffm"):
                numbers = [int(config.dense + model.bases[feature] + one) for one in ids]
            else:
                numbers = [int(kernels.key_of(model, feature, int(one))) for one in ids]
            bags[-1].append(numbers)
    return bags


def written_bags(path: Path, log_format: str, config: GeneratorConfig) -> Bags:
    """The same from the file; libsvm's one bag of all features."""
    num_features = 1 if log_format == "libsvm" else config.features
    if log_format == "parquet":
        table = pq.read_table(path)
        columns = [table[f"C{feature + 1}"].to_pylist() for feature in range(num_features)]
        return [[[key % 2**64 for key in bag] for bag in row] for row in zip(*columns, strict=True)]
    bags: Bags = []
    for line in path.read_text().splitlines():
        bags.append([[] for _ in range(num_features)])
        for token in line.split(" ")[1:]:
            parts = token.split(":")
            if log_format == "slots" and parts[0] != "dense_feature":
                bags[-1][int(parts[0]) - 1].append(int(parts[1]))
            elif log_format == "libffm" and int(parts[0]) >= config.dense:
                assert parts[2] == "1"
                bags[-1][int(parts[0]) - config.dense].append(int(parts[1]))
            elif log_format == "libsvm" and int(parts[0]) >= config.dense:
                bags[-1][0].append(int(parts[0]))
    return bags


@pytest.mark.parametrize("log_format", BAG_FORMATS)
def test_formats_hold_the_bags_that_were_drawn_for_any_blocks(
    log_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GeneratorConfig(**SMALL, bag=2.5)
    expected = drawn_bags(config, log_format)
    if log_format == "libsvm":
        expected = [[[key for bag in row for key in bag]] for row in expected]
    monkeypatch.setattr(log, "ROW_GROUP_EXAMPLES", 900)
    contents = set()
    for num_threads, block_examples in ((1, 4096), (3, 700)):
        monkeypatch.setattr(log, "BLOCK_EXAMPLES", block_examples)
        path = tmp_path / f"log-{num_threads}"
        figures = LogWriter(config, log_format, num_threads).write(path)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    assert written_bags(path, log_format, config) == expected
    assert figures["values"] == sum(len(bag) for row in expected for bag in row)
    assert figures["mean_bag"] == figures["values"] / (3000 * 5)
    assert figures["distinct_keys"] == len({key for row in expected for bag in row for key in bag})


@pytest.mark.parametrize(
    ("mean", "lengths", "longest"),
    [(1.0, "zipf", 1), (1.2, "zipf", 10), (4.0, "zipf", 32), (20.0, "zipf", 160), (7, "fixed", 7)],
)
def test_lengths_have_the_mean_and_the_bound(mean: float, lengths: str, longest: int) -> None:
    config = GeneratorConfig(keys=50, features=4, dense=0, bag=mean, bag_lengths=lengths)
    drawn = np.diff(draw_block(plant(config), 0, 20_000).offsets).reshape(-1, 4)
    assert drawn.min() >= 1 and drawn.max() <= longest == longest_bag(mean, lengths)
    if lengths == "fixed":
        assert (drawn == mean).all()
        return
    law = np.diff(length_law(mean, lengths), prepend=0.0)
    sizes = np.arange(1, longest + 1)
    assert law @ sizes == pytest.approx(mean, rel=1e-9) and (np.diff(law) <= 1e-12).all()
    deviation = np.sqrt(law @ (sizes - mean) ** 2)
    # Of each feature; the draws are fixed by the seed.
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * deviation / np.sqrt(20_000))
    shares = np.bincount(drawn.ravel(), minlength=longest + 1)[1:] / drawn.size
    np.testing.assert_allclose(shares, law, atol=0.01)


def test_log_odds_are_those_of_the_sums_of_a_bags_keys() -> None:
    config = GeneratorConfig(keys=900, features=8, dense=2, bag=3.0)
    model = plant(config)
    block = draw_block(model, 50, 4000)
    sums = np.zeros((4000, 8, 2))
    for bag in range(4000 * 8):
        row, feature = divmod(bag, 8)
        for one in block.ids[block.offsets[bag] : block.offsets[bag + 1]]:
            best = kernels.best_rank(model, feature, one)
            sums[row, feature, 0] += kernels.category_effect(model, feature, one, best)
            sums[row, feature, 1] += kernels.factor(model, feature, one)
        length = block.offsets[bag + 1] - block.offsets[bag]
        sums[row, feature] -= model.centers[feature, :2] * length
        sums[row, feature, 1] += model.centers[feature, 2]
    factors = sums[:, model.mixing, 1]
    pairs = 0.5 * (factors.sum(axis=1) ** 2 - (factors**2).sum(axis=1))
    np.testing.assert_allclose(block.parts[:, 0], sums[:, :, 0].sum(axis=1), atol=1e-9)
    np.testing.assert_allclose(block.parts[:, 2], pairs, atol=1e-9)
    logits = model.scales[3] + block.parts @ model.scales[:3]
    np.testing.assert_allclose(block.logits, logits, atol=1e-9)
    assert model.centers[:, 2] == pytest.approx(model.centers[:, 1] * np.sqrt(3.0))
    # A longer bag is not for that alone a better one.
    lengths = np.diff(block.offsets).reshape(4000, 8).sum(axis=1)
    assert abs(np.corrcoef(lengths, block.parts[:, 0])[0, 1]) < 0.08


@pytest.mark.parametrize(
    ("bag", "lengths", "drift"),
    [(2.0, "zipf", 0.0), (10.0, "zipf", 0.0), (10.0, "fixed", 0.0), (10.0, "zipf", 0.5)],
)
def test_planted_auc_and_click_rate_are_those_of_logs_without_bags(
    bag: float, lengths: str, drift: float, tmp_path: Path
) -> None:
    laws = {"bag": bag, "bag_lengths": lengths, "drift": drift}
    config = GeneratorConfig(examples=20_000, keys=100_000, **laws)
    figures = LogWriter(config, "parquet", 2).write(tmp_path / "log")
    block = draw_block(plant(config), 0, config.examples)
    metrics = BinaryMetrics()
    metrics.update(block.logits, block.labels)
    best = metrics.compute()
    assert figures["best_auc"] == best["auc"] and figures["best_logloss"] == best["logloss"]
    assert 0.78 < best["auc"] < 0.85
    assert block.labels.mean() == pytest.approx(0.25, abs=0.015)
    assert best["calibration"] == pytest.approx(1.0, abs=0.03)


def test_bags_begin_with_the_key_of_a_log_without_bags_and_of_one_are_that_log(
    tmp_path: Path,
) -> None:
    LogWriter(GeneratorConfig(**SMALL), "slots", 1).write(tmp_path / "none")
    LogWriter(GeneratorConfig(**SMALL, bag=1.0), "slots", 1).write(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "none").read_bytes()
    plain = draw_block(plant(GeneratorConfig(**SMALL)), 0, 500)
    bags = draw_block(plant(GeneratorConfig(**SMALL, bag=2.5)), 0, 500)
    assert (bags.ids[bags.offsets[:-1]] == plain.ids).all() and len(bags.ids) > 2 * len(plain.ids)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bag": 0.5}, r"bag=0\.5 \(--bag\) must be from 1"),
        ({"bag": float("nan")}, "bag=nan"),
        ({"bag": 2.5, "bag_lengths": "fixed"}, "must be a whole number"),
        ({"bag": 2.0, "bag_lengths": "even"}, "--bag-lengths"),
        ({"bag_lengths": "fixed"}, r"give their mean length \(--bag\)"),
        ({"bag": 1000.0, "features": 200}, "1600000 values of an example"),
    ],
)
def test_bags_that_cannot_be_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GeneratorConfig(**fields)


def test_a_format_without_bags_names_those_that_have_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one value.* parquet, libsvm, libffm or slots"):
        LogWriter(GeneratorConfig(bag=2.0), "criteo", 1)


def test_command_writes_bags_and_says_how_long_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(tmp_path / "log"), "--examples", "50", "--keys", "300", "--bag", "3"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "--format parquet, libsvm, libffm or slots" in said and not list(tmp_path.iterdir())
    assert main([*words, "--format", "slots", "--bag-lengths", "fixed"]) == 0
    assert " 3,900 keys in bags of 3.00 on average, " in capsys.readouterr().out
    line = (tmp_path / "log").read_text().splitlines()[0]
    assert len(line.split(" ")) == 1 + 13 + 3 * 26
