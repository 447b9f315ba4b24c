"""The documents name files that exist; their examples, and those in docstrings, run as they stand.

Above it: pytest. Below it: README.md, ARCHITECTURE.md, docs/.
"""

import doctest
import importlib
import json
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import hps
import hps.models
import hps.reader
import hps.train
from hps.cli.main import main
from hps.models import MODELS
from tests.logs import write_criteo

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
DOCUMENTS += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PATH = re.compile(
    r"`((?:hps|csrc|tests|tools|docs|deploy|examples|benchmarks)/[\w./]*"
    r"|\w+\.(?:md|txt|py)|Makefile)`"
)


# A name without a folder may be that of a file beside one that the page has named.
NAMES = {path.name for top in ("hps", "tests", "tools") for path in (ROOT / top).rglob("*.py")}
WRITTEN = {"summary.txt"}  # by a run, of which a page tells


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    named = set(PATH.findall((ROOT / document).read_text())) - NAMES - WRITTEN
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_first_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "2\n"


def test_the_training_of_the_readme_runs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_criteo(tmp_path / "log.tsv", 2000)
    train, go_on = (
        block.split("```")[0]
        for block in (ROOT / "README.md").read_text().split("```python\n")[2:4]
    )
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(train, "README.md", "exec"), names)
    with hps.open("net", checkpoint="day-1") as server:
        assert server.num_rows("ads") > 1000
    trained = names["model"].linear.weight.clone()
    exec(compile(go_on, "README.md", "exec"), names)
    assert names["model"].linear.weight.equal(trained)
    assert len(names["dense_optimizer"].state_dict()["state"]) == 2
    assert list(names["reader"]) == []  # it had read all


def test_the_example_of_the_life_cycle_prints_what_the_page_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs/life_cycle.md").read_text()
    exec(compile(page.split("```python\n")[1].split("```")[0], "life_cycle.md", "exec"), {})
    assert f"prints\n\n```text\n{capsys.readouterr().out}```\n" in page


def test_the_example_of_narrow_rows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/narrow_rows.md").read_text()
    exec(compile(page.split("```python\n")[1].split("```")[0], "narrow_rows.md", "exec"), {})


PAGE_OF_MODELS = (ROOT / "docs/models.md").read_text()


def test_the_page_of_models_says_of_each_what_its_class_says() -> None:
    columns = {(True, True): "dim + 1", (True, False): "dim", (False, True): "1"}
    lines = [line for line in PAGE_OF_MODELS.splitlines() if line.startswith("| `")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    kinds = [row[0].strip("`") for row in rows]
    assert sorted(kinds) == sorted([*MODELS, "--model"] * 2)
    for row in rows:
        if len(row) == 5 and row[0].strip("`") in MODELS:
            model = MODELS[row[0].strip("`")]
            assert row[2] == columns[model.has_vectors, model.has_first_order], row
            assert row[3] == ("yes" if model.has_vectors else "no"), row
            assert row[4].split(";")[0] == ("yes" if model.has_deep_part else "no"), row


def test_the_own_model_of_the_page_of_models_is_trained_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_criteo(tmp_path / "log.tsv", 2000)
    write_criteo(tmp_path / "test.tsv", 500, seed=1)
    (tmp_path / "nfm.py").write_text(PAGE_OF_MODELS.split("```python\n")[1].split("```")[0])
    commands = PAGE_OF_MODELS.split("```sh\n")[1].split("```")[0].splitlines()
    assert [line.split()[:2] for line in commands] == [["hps", "train"], ["hps", "evaluate"]]
    for line in commands:
        assert main([*line.split()[1:], "--json", "out.json"]) == 0
    figures = json.loads(Path("out.json").read_text())
    assert figures["model"] == "nfm.py:NFM" and figures["auc"] > 0.5
    with hps.open("ctr") as server:
        assert server.tables["features"].dim == 9
        # As the page has it of a store that is not one's own.
        assert server.checkpoint_state()[0]["recipe"]["kind"] == "nfm.py:NFM"


MODULES = [module.name for module in pkgutil.walk_packages(hps.__path__, "hps.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    if name.endswith("__main__") or name == "hps._C":
        pytest.skip("runs the command, or is native")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


PUBLIC = [getattr(hps, name) for name in hps.__all__]
PUBLIC += [*hps.models.MODELS.values(), hps.train.TrainOptions, hps.reader.open_reader]


@pytest.mark.parametrize("item", PUBLIC, ids=lambda item: item.__name__)
def test_public_names_have_an_example(item: type) -> None:
    if _is_error(item):
        pytest.skip("an error")
    assert ">>>" in (item.__doc__ or "")


def _is_error(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, Exception)


def test_extra_bench_pins_the_peers_as_the_benchmarks_do() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "benchmarks" / "requirements-peers.txt").read_text().splitlines()
    peers = {line for line in pinned if "==" in line}
    assert peers and peers <= set(project["optional-dependencies"]["bench"])
