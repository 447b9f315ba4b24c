"""`--valid-by files`: the last files of DATA are validated on, and nothing of them is trained on.

Above it: pytest. Below it: hps/train/held_out.py, and all of `hps.train` that reads DATA.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.reader.files import find_files
from hps.train import train
from tests.logs import write_criteo
from tests.parity.test_resume import options, same_bits

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BY_FILES: dict[str, Any] = {"valid_share": 0.3, "valid_by": "files"}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five files; a share of 0.3 is the last two."""
    folder = tmp_path_factory.mktemp("días")
    return [
        write_criteo(folder / f"day {day}.txt", 300 + day, num_keys=2000, seed=day)
        for day in range(5)
    ]


def both(days: list[Path], folder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures with the last files held out, and of the same files named by --valid."""
    held_out = train(options("", folder / "held", data=days, **BY_FILES, **more))
    named = train(options("", folder / "named", data=days[:3], valid=days[3:], **more))
    return held_out, named


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shuffle_files": True},
        {"batch_size": None, "optimizer": "adagrad", "eval_every": 5},
        {"negative_rate": 0.5, "depth": 2},
    ],
)
def test_the_bits_are_those_of_the_first_files_validated_on_the_last(
    tmp_path: Path, days: list[Path], more: dict[str, Any]
) -> None:
    held_out, named = both(days, tmp_path, **more)
    assert same_bits(held_out) == same_bits(named)
    assert held_out["evaluations"] == named["evaluations"] != []
    assert held_out["best"] == named["best"]
    assert held_out["scores"]["log"] == "--valid-by files"
    (measured,) = {entry["valid_examples"] for entry in held_out["evaluations"]}
    if "negative_rate" not in more:
        assert measured == 303 + 304 and held_out["examples"] == 2 * (300 + 301 + 302)


def test_a_run_that_a_limit_ends_goes_on_with_the_same_files_held_out(
    tmp_path: Path, days: list[Path]
) -> None:
    whole, _ = both(days, tmp_path)
    pattern = [days[0].parent / "day *.txt"]
    asked = {"data": pattern, **BY_FILES}
    part = train(options("", tmp_path / "part", limit=640, **asked))
    rest = train(options("", tmp_path / "part", resume=True, **asked))
    assert part["examples"] == 640 and rest["examples"] == whole["examples"] - 640
    assert same_bits(rest) == same_bits(whole)
    ends = [one["valid_examples"] for one in rest["evaluations"]]
    assert rest["evaluations"][-1] == whole["evaluations"][-1] and set(ends) == {607}
    for other in ({"valid_share": 0.6}, {"valid_by": "hash"}):
        with pytest.raises(hps.ConfigError):
            train(options("", tmp_path / "part", resume=True, epochs=3, **{**asked, **other}))


@pytest.mark.parametrize(
    ("share", "num_held"),
    [(1e-9, 1), (0.2, 1), (0.29, 1), (0.3, 2), (0.5, 2), (0.75, 4), (1 - 1e-9, 4)],
)
def test_the_share_is_rounded_to_files_and_leaves_one_to_train_on(
    days: list[Path], share: float, num_held: int
) -> None:
    cut = options("", "unused", data=days, valid_share=share, valid_by="files").with_last_files()
    assert cut.held_out is not None and cut.held_out.failure is None
    assert list(cut.data) == days[: 5 - num_held]
    assert list(cut.held_out.files) == days[5 - num_held :]


def test_the_batch_size_follows_from_the_files_trained_on_alone(
    tmp_path: Path, days: list[Path]
) -> None:
    """Of a log of 14,000 examples it is 64; less a share of 0.6 it would be 32."""
    large = write_criteo(tmp_path / "large.tsv", 14_000)
    asked: dict[str, Any] = {"data": [large, days[0]], "batch_size": None, "epochs": 1}
    asked |= {"valid_share": 0.6, "valid_by": "files"}
    figures = train(options("", tmp_path / "store", **asked))
    assert figures["total_batches"] == -(-14_000 // 64)


def test_a_pattern_is_cut_by_name_and_several_in_the_order_given(days: list[Path]) -> None:
    folder = days[0].parent
    for data in (
        [folder / "*.txt"],
        [folder / "day [34].txt", folder / "day [012].txt"],
        [days[4], folder / "day [0-3].txt"],
        days[::-1],
    ):
        read = find_files(data)
        cut = options("", "unused", data=data, **BY_FILES).with_last_files()
        assert cut.held_out is not None
        assert [*cut.data, *cut.held_out.files] == list(read) and len(cut.held_out.files) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": 1}, r"valid_share=0\.3.*--valid-by.*DATA is one file, '.*day 0\.txt'"),
        ({"valid_share": None}, r"valid_by='files' \(--valid-by\).*valid_share, --valid-share"),
        ({"valid_share": None, "valid": ["v"]}, r"--valid-share\) too, and leave valid .*out"),
        ({"valid": ["v"]}, "both name what to validate on"),
        ({"valid_by": "days"}, "valid_by='days' must be one of 'hash', 'files'"),
        ({"valid_by": None}, "valid_by"),
        ({"valid_by": ["files"]}, "valid_by"),
        ({"data": [0, 1, 0]}, r"--valid-by\) holds out '.*day 0\.txt', which DATA names once more"),
        ({"data": [0, "gone.txt"]}, "cannot read .*gone.txt"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_a_store_is_made(
    tmp_path: Path, days: list[Path], changes: dict[str, Any], reason: str
) -> None:
    named = changes.get("data", [0, 1, 2])
    data = [
        days[one] if isinstance(one, int) else one
        for one in (named if isinstance(named, list) else [0])
    ]
    with pytest.raises((hps.ConfigError, hps.StoreError), match=reason):
        train(options("", tmp_path / "store", **{**BY_FILES, **changes, "data": data}))
    assert not (tmp_path / "store").exists()


def test_a_held_out_file_without_examples_or_with_other_columns_is_refused_at_once(
    tmp_path: Path,
) -> None:
    for name, text in (("a", "label,x\n1,p\n0,q\n"), ("b", "label,x\n"), ("c", "label,y\n1,p\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    for last, reason in (("b", "--valid-by files has no example"), ("c", "does not have: ..x")):
        data = [tmp_path / "a.csv", tmp_path / f"{last}.csv"]
        with pytest.raises(hps.ConfigError, match=reason) as told:
            train(options("", tmp_path / "store", data=data, **BY_FILES))
        assert "this is --valid-by files" in told.value.__notes__[0]
        assert not (tmp_path / "store").exists()


def test_new_data_is_scored_with_the_files_held_out(tmp_path: Path, days: list[Path]) -> None:
    """As with a hash: all of DATA is new to the model."""
    asked = {"data": days[2:], "progressive": True, **BY_FILES}
    store = tmp_path / "store"
    train(options("", store, data=days[:2], valid_share=0.5, valid_by="files"))
    figures = train(options("", store, resume=True, new_data=True, **asked))
    assert figures["new_data"]["examples"] == 302 + 303 + 304
    assert {Path(entry["file"]).name for entry in figures["progressive"]} == {
        "day 2.txt",
        "day 3.txt",
    }


def test_a_checkpoint_keeps_what_was_asked(
    tmp_path: Path, days: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pattern, store = str(days[0].parent / "*.txt"), str(tmp_path / "store")
    words = ["train", pattern, "--store", store, "--batch-size", "64", "--json", "-"]
    flags = ["--valid-share", "0.3", "--valid-by", "files", "--dim", "4", "--hidden", "4"]
    assert main([*words, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 300 + 301 + 302
    assert main(["models", store, "--show", "final", "--json", "-"]) == 0
    kept = json.loads(capsys.readouterr().out)["options"]
    assert (kept["data"], kept["valid"]) == ([pattern], [])
    assert (kept["valid_share"], kept["valid_by"]) == (0.3, "files")
    assert "held_out" not in kept
