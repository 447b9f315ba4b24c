"""A run of a user's own model: trained, gone on with, measured; and its file moved or changed.

Above it: pytest. Below it: `hps train --model file.py:Class`, hps/models/own.py.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_remote, train
from hps.train.reading import StoredModel
from hps.train.recipe import recipe_of
from hps.train.start import facts_of, start_together
from tests.cluster.ranks import run_ranks
from tests.logs import write_criteo
from tests.service.client.client_lab import service

RUN: dict[str, Any] = {"batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
WORDS = ["--dram", "8MiB", "--batch-size", "64"]
KIND = "mine.py:Mine"
# DeepFM by another name: what is the same then is the same as it has.
AS_DEEPFM = "from hps.models import DeepFM\n\nclass Mine(DeepFM): ...\n"
BROKEN = """
import torch
from hps.models import LogisticRegression, DLRM

class Wide(LogisticRegression):
    def forward(self, batch):
        return super().forward(batch).unsqueeze(1)

class NoBias(LogisticRegression):
    output_bias = LogisticRegression.__base__.output_bias

class Bare(NoBias):
    def _build(self, hidden, dropout): ...
    def forward(self, batch):
        return self.embed(batch).sum(dim=(1, 2))

class Stumbles(DLRM):
    def _build(self, hidden, dropout):
        self.first = hidden["first"]
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log, beside the model's file, in the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(AS_DEEPFM)
    return write_criteo(tmp_path / "log", 256)


def run(log: Path, store: str, **changes: Any) -> dict[str, Any]:
    values = {"model": KIND, "dim": 4, "hidden": (8,), **RUN, **changes}
    return train(TrainOptions(data=[log], store=store, **values))


def go_on(log: Path, store: str, **changes: Any) -> dict[str, Any]:
    return run(log, store, resume=True, **{"model": None, "dim": None, "hidden": None, **changes})


def told(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What the command says as it refuses, which is one line."""
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("hps: error: ") and said.count("\n") == 1, said
    return said


def test_an_own_model_is_trained_gone_on_with_measured_and_scored_as_one_of_hps(
    tmp_path: Path, log: Path
) -> None:
    out = tmp_path / "out.json"
    shape = ["--dim", "4", "--hidden", "8", *WORDS, "--threads", "1"]
    figures = {}
    for kind, store in (("deepfm", "known"), (KIND, "own")):
        where = ["--store", store, "--json", str(out)]
        assert main(["train", str(log), "--model", kind, *shape, "--limit", "128", *where]) == 0
        assert main(["train", str(log), "--resume", *WORDS, "--threads", "1", *where]) == 0
        figures[store] = json.loads(out.read_text())
        assert main(["evaluate", str(log), *where]) == 0
        figures[store] |= json.loads(out.read_text())
        assert main(["predict", str(log), "--store", store, "--out", f"{store}.npy"]) == 0
    assert figures["own"]["model"] == KIND
    for name in ("digests", "loss_digest", "auc", "logloss", "total_examples", "resumed_from"):
        assert figures["own"][name] == figures["known"][name], name
    assert np.array_equal(np.load("own.npy"), np.load("known.npy"))
    with hps.open("own") as server:
        recipe = server.checkpoint_state("final")[0]["recipe"]
    assert recipe["kind"] == KIND and "class" not in str(recipe)


def test_a_store_with_an_own_model_is_looked_into_without_its_file(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(log, "store")
    (tmp_path / "mine.py").unlink()
    assert main(["models", "store"]) == 0
    assert KIND in capsys.readouterr().out
    assert main(["models", "store", "--show", "final"]) == 0
    assert main(["lookup", "store", "--key", "5"]) == 0
    assert "no row" in capsys.readouterr().out


def test_a_run_that_goes_on_takes_the_path_otherwise_written_and_no_other_class(
    tmp_path: Path, log: Path
) -> None:
    run(log, "store", limit=128)
    for same in ("./mine.py:Mine", f"{tmp_path}/mine.py:Mine"):
        figures = go_on(log, "store", model=same, new_data=True, limit=64)
        assert figures["model"] == KIND
    (tmp_path / "other.py").write_text(AS_DEEPFM)
    for other in ("other.py:Mine", "deepfm", "mine.py:DeepFM"):
        with pytest.raises(hps.ConfigError, match=r"model='mine.py:Mine', .* \(--model\)"):
            go_on(log, "store", model=other)
    with pytest.raises(hps.ConfigError, match=r"dim=4, .* asks for 8 \(--dim\)"):
        go_on(log, "store", dim=8)


def test_a_file_that_was_moved_is_told_with_what_to_do(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(log, "store", limit=128)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store = ["--store", str(tmp_path / "store")]
    commands = (
        ["train", str(log), "--resume", *WORDS, *store],
        ["evaluate", str(log), *store],
        ["predict", str(log), "--out", "p.csv", *store],
    )
    for words in commands:
        said = told(capsys, words)
        assert f"model '{KIND}': cannot read 'mine.py' from {Path.cwd()}: No such file" in said
        assert "run the command in the folder from which the path is right" in said
    with pytest.raises(hps.ConfigError, match="run the command in the folder"):
        hps.Model.load(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    for words in commands:
        assert main(words) == 0


def test_a_class_that_has_changed_is_refused_before_the_rows_go_back(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run(log, "store", limit=128)
    text = AS_DEEPFM.replace("DeepFM", "FactorizationMachine")
    (tmp_path / "mine.py").write_text(text.replace("...", "has_deep_part = True"))
    for words in (["train", str(log), "--resume", *WORDS], ["evaluate", str(log)]):
        said = told(capsys, [*words, "--store", "store"])
        assert "the stored weights are of another class than its file has now: stored deep." in said
        assert "now not there" in said
    # A row more or less is a table of another dim.
    (tmp_path / "mine.py").write_text(AS_DEEPFM.replace("...", "has_first_order = False"))
    told(capsys, ["train", str(log), "--resume", *WORDS, "--store", "store"])
    (tmp_path / "mine.py").write_text(AS_DEEPFM)
    rest = go_on(log, "store")
    assert rest["total_examples"] == 256 and rest["digests"] != figures["digests"]


def test_a_run_keeps_its_class_while_its_file_is_written_anew(tmp_path: Path, log: Path) -> None:
    """The file breaks itself as it is run: whoever read it again would fail."""
    text = AS_DEEPFM + "open(__file__, 'w').write('this is no Python')\n"
    (tmp_path / "mine.py").write_text(text)
    options = TrainOptions(data=[log], store="store", model=KIND, dim=4, **RUN)
    assert (tmp_path / "mine.py").read_text() == "this is no Python"
    assert options.table().dim == 5 and options.shape().model == KIND
    assert options.row_rate() == 0.05
    with pytest.raises(hps.ConfigError, match=r"line 1 of .*SyntaxError"):
        replace(options, dim=8)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wide", r"model mine.py:Wide: forward returned \[64, 1\] of 64 examples; .*, \[64\]$"),
        ("NoBias", r"NoBias has no property output_bias, .* \(--no-base-rate\)"),
        ("Bare", "it has no parameter of its own to train"),
        ("Stumbles", r"making the model failed at line 19 of .*mine.py: TypeError"),
    ],
)
def test_what_is_wrong_with_a_class_is_told_by_name(
    tmp_path: Path, log: Path, name: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    shape = {"dim": 4 if name == "Stumbles" else None, "hidden": None}
    rate = {"base_rate": name != "Bare"}
    with pytest.raises(hps.ConfigError, match=words):
        run(log, "store", model=f"mine.py:{name}", **shape, **rate)
    assert Path("store").exists() == (name != "NoBias")  # seen before anything is made


def test_a_model_without_an_output_bias_is_trained_without_a_base_rate(
    tmp_path: Path, log: Path
) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    shape = {"model": "mine.py:NoBias", "dim": None, "hidden": None}
    with pytest.raises(hps.ConfigError, match="--no-base-rate"):
        run(log, "store", **shape, resume_if_any=True)
    figures = run(log, "other", **shape, base_rate=False, limit=128)
    assert figures["base_rate"] is None
    assert go_on(log, "other")["total_examples"] == 256


def test_no_code_in_a_store_is_run(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a store whose checkpoint names a file that lies in it, say from elsewhere."""
    run(log, "store", limit=128)
    (tmp_path / "store" / "evil.py").write_text("open('was-run', 'w')\n" + AS_DEEPFM)
    with hps.ParameterServer(
        TrainOptions(data=[log], store="store", model=KIND, dim=4).server_config()
    ) as server:
        model, position = server.checkpoint_state("final")
        recipe = {**model["recipe"], "kind": "store/evil.py:Mine"}
        server.checkpoint(tag="final", model={**model, "recipe": recipe}, reader=position)
    where = ["--store", "store"]
    for words in (
        ["train", str(log), "--resume", *WORDS, *where],
        ["train", str(log), "--resume", "--model", "store/evil.py:Mine", *WORDS, *where],
        ["evaluate", str(log), *where],
        ["predict", str(log), "--out", "p.csv", *where],
    ):
        assert "from which no code is run" in told(capsys, words)
    assert not Path("was-run").exists()


def test_servers_hold_the_rows_of_an_own_model(tmp_path: Path, log: Path) -> None:
    with service(tmp_path / "service", 1, tables=()) as servers:
        config = ClientConfig(addresses=servers.addresses, client_id="trainer")
        remote = {"store": None, "remote": config}
        first = run(log, **remote)  # type: ignore[arg-type]
        second = go_on(log, **remote, new_data=True)  # type: ignore[arg-type]
        measured = evaluate_remote([log], config)
    assert first["rows"] == second["rows"] and second["total_examples"] == 512
    assert measured["model"] == KIND


def test_ranks_with_other_files_of_one_name_are_refused(tmp_path: Path, log: Path) -> None:
    options = TrainOptions(data=[log], store="store", model=KIND, dim=4, **RUN)
    reader = open_reader([log], tables=[options.table()], config=ReaderConfig(format="criteo"))
    facts = facts_of(options, reader, {})
    assert len(facts["model's file"]) == 64
    (tmp_path / "mine.py").write_text(f"{AS_DEEPFM}# of another text\n")
    other = facts_of(replace(options, seed=options.seed), reader, {})
    assert [name for name in facts if facts[name] != other[name]] == ["model's file"]
    for kind in ("deepfm", "lr"):
        plain = TrainOptions(data=[log], store="store", model=kind)
        assert facts_of(plain, reader, {})["model's file"] is None


def test_ranks_with_the_same_file_agree_on_what_they_train(tmp_path: Path, log: Path) -> None:
    def body(world: Any) -> Any:
        options = TrainOptions(data=[log], store="ranks", model=KIND, dim=4, **RUN)
        config = ReaderConfig(format="criteo", batch_size=64, part=(world.rank, world.size))

        def prepare() -> Any:
            return open_reader([log], tables=[options.table()], config=config), {}

        reader = start_together(world, options, prepare)
        return recipe_of(options, reader).kind

    assert run_ranks(2, body) == [KIND, KIND]


def test_a_stored_model_tells_its_shape_by_the_class(tmp_path: Path, log: Path) -> None:
    run(log, "store", limit=64)
    with hps.open("store") as server:
        stored = StoredModel.of(server.checkpoint_state("final")[0], list(server.tables.values()))
    flags = stored.flags()
    assert (flags["model"], flags["dim"], flags["hidden"]) == (KIND, 4, [8])
