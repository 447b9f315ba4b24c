"""Generated logs are reproducible, follow their laws, and say truly how well they can be predicted.

Above it: pytest. Below it: hps.generate, hps.cli.generate.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from hps.cli.main import main
from hps.errors import ConfigError
from hps.generate import FORMATS, GeneratorConfig
from hps.generate.kernels import Block, fill_keys, token_of
from hps.generate.log import LogWriter
from hps.generate.planted import draw_block, plant
from hps.metrics import BinaryMetrics
from hps.reader.find_format import find_format

SMALL = {"examples": 9000, "keys": 2000, "features": 5, "dense": 3, "seed": 7}


def draw(config: GeneratorConfig, first: int, count: int) -> Block:
    """Examples of a log without bags, ids as [count, features]."""
    block = draw_block(plant(config), first, count)
    return block._replace(ids=block.ids.reshape(count, config.features))


def keys_of(config: GeneratorConfig, first: int, count: int) -> NDArray[np.uint64]:
    """The keys of the same, uint64 [count, features]."""
    model = plant(config)
    block = draw_block(model, first, count)
    keys = np.empty(len(block.ids), np.uint64)
    fill_keys(model, block, keys, np.empty(len(block.offsets), np.int64))
    return keys.reshape(config.features, count).T


@pytest.mark.parametrize("log_format", FORMATS)
def test_equal_config_gives_equal_bytes_for_any_thread_count(
    log_format: str, tmp_path: Path
) -> None:
    config = GeneratorConfig(**SMALL)
    contents = set()
    for num_threads in (1, 2, 4):
        path = tmp_path / f"log-{num_threads}"
        LogWriter(config, log_format, num_threads).write(path)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    other = GeneratorConfig(**(SMALL | {"seed": 8}))
    LogWriter(other, log_format, 1).write(tmp_path / "other")
    assert (tmp_path / "other").read_bytes() not in contents


DIGESTS = {
    "criteo": "dd621bb684c1a78c",
    "parquet": "726dbf9a0a01509c",
    "libsvm": "4105972c6c5e775d",
    "libffm": "a50688bda7615eaa",
    "slots": "acd0e81a01521e0d",
}


@pytest.mark.parametrize("log_format", FORMATS)
def test_logs_of_one_key_a_feature_are_those_of_earlier_versions(
    log_format: str, tmp_path: Path
) -> None:
    config = GeneratorConfig(**SMALL, drift=0.3)
    figures = LogWriter(config, log_format, 2).write(tmp_path / "log")
    digest = hashlib.sha256()
    if log_format == "parquet":  # whose bytes are also pyarrow's own
        table = pq.read_table(tmp_path / "log")
        digest.update(str(table.schema).encode())
        for column in table.columns:
            digest.update(column.combine_chunks().to_numpy().tobytes())
    else:
        digest.update((tmp_path / "log").read_bytes())
    assert digest.hexdigest()[:16] == DIGESTS[log_format]
    assert "bag" not in figures["config"] and "values" not in figures


def test_test_part_continues_the_log(tmp_path: Path) -> None:
    writer = LogWriter(GeneratorConfig(**SMALL, test_examples=1000), "criteo", 2)
    writer.write(tmp_path / "train")
    writer.write_test(tmp_path / "test")
    # Neither drift nor the length of the log has a part in the model, so a longer log's tail is it.
    longer = GeneratorConfig(**(SMALL | {"examples": 10000}))
    LogWriter(longer, "criteo", 2).write(tmp_path / "both")
    both = (tmp_path / "train").read_bytes() + (tmp_path / "test").read_bytes()
    assert both == (tmp_path / "both").read_bytes()


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.05, 2.0])
def test_ranks_follow_zipfs_law(alpha: float) -> None:
    config = GeneratorConfig(keys=400, features=1, dense=0, alpha=alpha)
    num_draws = 200_000
    ranks = draw(config, 0, num_draws).ids[:, 0]
    law = np.arange(1, 401, dtype=np.float64) ** -alpha
    expected = law / law.sum() * num_draws
    observed = np.bincount(ranks, minlength=400)
    is_frequent = expected >= 10
    observed = np.append(observed[is_frequent], observed[~is_frequent].sum())
    expected = np.append(expected[is_frequent], expected[~is_frequent].sum() + 1e-9)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    # Five standard deviations of the chi-square law; the draws are fixed by the seed.
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_cardinalities_sum_to_keys() -> None:
    for features, keys in [(1, 1), (26, 26), (26, 100_000), (40, 10_000_000), (3, 2**33)]:
        sizes = GeneratorConfig(features=features, keys=keys).cardinalities()
        assert sizes.sum() == keys and sizes.min() >= 1 and len(sizes) == features


def test_tokens_and_keys_are_one_to_one() -> None:
    config = GeneratorConfig(keys=50_000, features=2, dense=0)
    model = plant(config)
    size = int(config.cardinalities().max())
    feature = int(config.cardinalities().argmax())
    assert len({int(token_of(model, feature, identity)) for identity in range(size)}) == size
    keys = keys_of(config, 0, 1000)
    ids = draw(config, 0, 1000).ids
    assert len(np.unique(keys)) == sum(len(np.unique(column)) for column in ids.T) > 80
    assert 0.2 < (keys >> np.uint64(63)).mean() < 0.8  # the upper half of the range is used too


def test_reported_auc_is_the_planted_models_own(tmp_path: Path) -> None:
    config = GeneratorConfig(**SMALL)
    figures = LogWriter(config, "criteo", 2).write(tmp_path / "log")
    block = draw(config, 0, config.examples)
    metrics = BinaryMetrics()
    metrics.update(block.logits, block.labels)
    assert figures["best_auc"] == metrics.compute()["auc"]
    assert figures["best_logloss"] == metrics.compute()["logloss"]
    assert figures["clicks"] == block.labels.sum()
    ids = block.ids + plant(config).bases
    assert figures["distinct_keys"] == len(np.unique(ids))
    assert json.loads((tmp_path / "log.json").read_text()) == figures


@pytest.mark.parametrize("keys", [1000, 100_000, 10_000_000])
def test_planted_auc_and_click_rate_hold_for_any_number_of_keys(keys: int) -> None:
    block = draw(GeneratorConfig(keys=keys, click_rate=0.25), 0, 30_000)
    metrics = BinaryMetrics()
    metrics.update(block.logits, block.labels)
    assert 0.78 < metrics.compute()["auc"] < 0.85
    assert block.labels.mean() == pytest.approx(0.25, abs=0.015)
    assert metrics.compute()["calibration"] == pytest.approx(1.0, abs=0.03)


def test_drift_moves_the_popular_set_and_keeps_the_law() -> None:
    config = GeneratorConfig(examples=40_000, keys=2000, features=2, dense=0, drift=0.5)
    block = draw(config, 0, config.examples)
    feature = int(config.cardinalities().argmax())
    size = config.cardinalities()[feature]
    early, late = block.ids[:2000, feature], block.ids[-2000:, feature]
    popular = 100
    assert (early < popular).mean() > 0.5
    kept = (late < popular).mean() / (early < popular).mean()
    assert 0.2 < kept < 0.8
    assert (late >= size - popular).mean() > 10 * (early >= size - popular).mean()
    ranks = np.minimum(late, size - 1 - late)
    assert (ranks < popular).mean() == pytest.approx((early < popular).mean(), abs=0.06)


def test_criteo_lines_hold_what_was_drawn(tmp_path: Path) -> None:
    config = GeneratorConfig(**SMALL)
    LogWriter(config, "criteo", 2).write(tmp_path / "log")
    block, model = draw(config, 0, config.examples), plant(config)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == config.examples
    for row, line in enumerate(lines[:300]):
        fields = line.split("\t")
        assert int(fields[0]) == block.labels[row]
        assert [int(field or -1) for field in fields[1:4]] == list(block.dense[row])
        tokens = [f"{int(token_of(model, f, block.ids[row, f])):08x}" for f in range(5)]
        assert fields[4:] == tokens
    assert (block.dense == -1).any() and (block.dense == 0).any()


@pytest.mark.parametrize("log_format", ["libsvm", "libffm", "slots"])
def test_token_formats_hold_what_was_drawn(log_format: str, tmp_path: Path) -> None:
    config = GeneratorConfig(**SMALL)
    LogWriter(config, log_format, 2).write(tmp_path / "log")
    block, model = draw(config, 0, config.examples), plant(config)
    keys = keys_of(config, 0, config.examples)
    for row, line in enumerate((tmp_path / "log").read_text().splitlines()[:300]):
        label, *tokens = line.split(" ")
        logs = [f"{np.floor(np.log1p(x) * 1e4) / 1e4:.4f}" for x in block.dense[row].clip(0)]
        present = [(c, logs[c]) for c in range(3) if block.dense[row, c] >= 0]
        index = [3 + model.bases[f] + block.ids[row, f] for f in range(5)]
        if log_format == "slots":
            expected = [f"dense_feature:{log}" for log in logs]
            expected += [f"{f + 1}:{keys[row, f]}" for f in range(5)]
            label = label.removeprefix("click:")
        elif log_format == "libsvm":
            expected = [f"{c}:{log}" for c, log in present] + [f"{i}:1" for i in index]
        else:
            expected = [f"{c}:{c}:{log}" for c, log in present]
            expected += [f"{3 + f}:{i}:1" for f, i in enumerate(index)]
        assert int(label) == block.labels[row] and tokens == expected


@pytest.mark.parametrize("log_format", FORMATS)
def test_readers_read_every_format(log_format: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import hps
    from hps.reader import ReaderConfig, open_reader

    config = GeneratorConfig(examples=1000, features=26, dense=13, keys=5000)
    path = tmp_path / f"log.{log_format}"
    figures = LogWriter(config, log_format, 1).write(path)
    tables = [hps.TableConfig(name="all", dim=1)]
    options = ReaderConfig(format=log_format, batch_size=256)
    batches = list(open_reader(path, tables=tables, config=options))
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    assert labels.sum() == figures["clicks"] and len(labels) == 1000
    keys = np.concatenate([batch.features["all"].keys_L.numpy() for batch in batches])
    num_dense = 13 if log_format in ("libsvm", "libffm") else 0  # there, columns are keys as well
    assert len(np.unique(keys)) == figures["distinct_keys"] + num_dense
    if not num_dense:
        dense = np.concatenate([batch.dense.numpy() for batch in batches])
        counts = draw(config, 0, 1000).dense
        drawn = np.log1p(counts.clip(0))
        if log_format == "criteo":  # there a missing count is told from 0
            assert (counts == -1).any()
            drawn[counts == -1] = -0.5
        np.testing.assert_allclose(dense, drawn, atol=1.1e-4)


def test_command_writes_both_parts_and_prints_the_best_auc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = tmp_path / "a.tsv", tmp_path / "b.tsv"
    words = ["generate", str(train), "--examples", "500", "--keys", "300"]
    assert main([*words, "--test", str(test), "--test-examples", "100"]) == 0
    assert capsys.readouterr().out.count("best possible AUC 0.") == 2
    assert len(test.read_text().splitlines()) == 100
    assert main([*words, "--test-examples", "100"]) == 1
    assert "give both" in capsys.readouterr().err


def test_flags_that_the_log_needs_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a log of another shape than criteo's; without them it is not known for one."""
    log = tmp_path / "log"
    words = ["generate", str(log), "--examples", "200", "--keys", "100"]
    assert main([*words, "--dense", "2", "--features", "3"]) == 0
    assert "'hps train' takes it with --dense 2\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"tabs it is criteo, and --dense says how many"):
        find_format([log])
    assert find_format([log], 2) == "criteo"
    assert main([*words, "--features", "3"]) == 0
    assert "hps train" not in capsys.readouterr().out
    assert find_format([log]) == "criteo"


@pytest.mark.parametrize(
    ("field", "value"),
    [("keys", 3), ("examples", 0), ("drift", 1.5), ("alpha", -1.0), ("spread", float("nan"))],
)
def test_numbers_outside_their_limits_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        GeneratorConfig(**{field: value})
