"""A user's own model is found by `file.py:Class`, and what is wrong with it is told by name.

Above it: pytest. Below it: hps/models/own.py, hps/models/kinds.py.
"""

import re
import sys
from pathlib import Path

import pytest
import torch

import hps
from hps.models import MODELS, ClickModel, class_of
from hps.models.kinds import are_same, load_class
from hps.models.own import code_digest
from tests.front import open_server

GOOD = """
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
        return self.bias + self.embed(batch).sum(dim=(1, 2))
"""
OTHERS = """
from hps.models import ClickModel, DeepFM
number = 7
class Plain: ...
class Bare(ClickModel): ...
class Flag(DeepFM):
    has_first_order = "yes"
class Columns(DeepFM):
    has_first_order = has_vectors = False
class Takes(DeepFM):
    def __init__(self, server, width): ...
class Broken(DeepFM):
    def _build(self, hidden, dropout):
        self.layers = hidden["first"]
"""


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def refused(kind: str, *words: str, **how: object) -> str:
    """What is said of a model that cannot be loaded; it names the model and all of the words."""
    with pytest.raises(hps.ConfigError) as caught:
        load_class(kind, **how)  # type: ignore[arg-type]
    said = str(caught.value)
    assert repr(kind) in said
    for word in words:
        assert word in said, said
    return said


def test_a_class_is_found_from_here_and_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, GOOD, "mödels v1:0.py")
    monkeypatch.chdir(tmp_path)
    for kind in ("mödels v1:0.py:Mine", "./mödels v1:0.py:Mine", f"{file}:Mine"):
        found = load_class(kind)
        assert issubclass(found, ClickModel) and found.__name__ == "Mine"
        assert class_of(kind) is found and found.row_columns(4) == 5


def test_a_file_is_run_once_for_each_text_of_it(tmp_path: Path) -> None:
    count = "import builtins\nbuiltins.hps_runs = getattr(builtins, 'hps_runs', 0) + 1\n"
    kind = f"{write(tmp_path, count + GOOD)}:Mine"
    try:
        first = load_class(kind)
        assert load_class(kind) is first and __builtins__["hps_runs"] == 1  # type: ignore[index]
        digest = code_digest(kind)
        write(tmp_path, count + GOOD.replace("= True", "= False"))
        assert class_of(kind) is first  # a run goes on with what it began with
        second = load_class(kind)
        assert second is not first and second.row_columns(4) == 4 and first.row_columns(4) == 5
        assert class_of(kind) is second and code_digest(kind) != digest
        write(tmp_path, "this is no Python")
        refused(kind, "line 1")
        assert class_of(kind) is second
    finally:
        del __builtins__["hps_runs"]  # type: ignore[attr-defined]


def test_what_lies_beside_the_file_can_be_imported_and_the_path_stays_as_it_was(
    tmp_path: Path,
) -> None:
    write(tmp_path, "scale = 3.0\n", "hps_test_beside.py")
    kind = f"{write(tmp_path, 'from hps_test_beside import scale' + GOOD)}:Mine"
    before = list(sys.path)
    assert sys.modules[load_class(kind).__module__].scale == 3.0
    assert sys.path == before
    write(tmp_path, "import hps_test_nowhere" + GOOD)
    refused(kind, "importing it failed at line 1 of", "ModuleNotFoundError", "hps_test_nowhere")
    assert sys.path == before
    del sys.modules["hps_test_beside"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (1,\n", ["line 1 of", "SyntaxError"]),
        ("x = 1\nx.y()\n", ["line 2 of", "AttributeError: 'int' object has no attribute 'y'"]),
        ("import sys\n\nsys.exit(3)\n", ["line 3 of", "SystemExit: 3"]),
        ("raise ValueError\n", ["line 1 of", "ValueError"]),
        ("import hps\nraise hps.ConfigError('so')\n", ["line 2 of", "so"]),
        ("x = '\0'\n", ["importing it failed"]),
        ("# coding: nonesuch\n", ["importing it failed", "SyntaxError"]),
        ("", ["has no 'Mine'", "are []"]),
        (GOOD.replace("Mine", "Yours"), ["has no 'Mine'", "are ['Yours']"]),
    ],
)
def test_a_file_that_cannot_be_run_is_told_with_its_line(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    file = write(tmp_path, text)
    for _ in range(2):  # nothing is left of the first try
        refused(f"{file}:Mine", file, *words)
    write(tmp_path, GOOD)
    assert load_class(f"{file}:Mine").__name__ == "Mine"


def test_a_file_that_is_not_there_is_told_with_the_folder_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new = refused("gone/mine.py:Mine", f"from {tmp_path}", "No such file", "correct --model")
    assert "checkpoint" not in new
    refused("mine.py:Mine", "run the command in the folder", is_stored=True)
    refused(f"{tmp_path}/mine.py:Mine", "No such file")
    (tmp_path / "mine.py").mkdir()
    refused("mine.py:Mine", "Is a directory")
    refused("mi\0ne.py:Mine", "null")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number", "no subclass of hps.models.ClickModel"),
        ("Plain", "no subclass of hps.models.ClickModel"),
        ("Nothing", "are ['Bare', 'Flag', 'Columns', 'Takes', 'Broken']"),
        ("ClickModel", "no method forward(batch)"),
        ("Bare", "no method forward(batch)"),
        ("Flag", "has_first_order='yes'; it must be True or False"),
        ("Columns", "its rows would have no column"),
        ("Takes", "(server, features, num_dense, hidden, dropout) is: too many"),
    ],
)
def test_a_class_that_is_no_model_is_refused_with_the_reason(
    tmp_path: Path, name: str, words: str
) -> None:
    file = write(tmp_path, OTHERS)
    refused(f"{file}:{name}", repr(name), file, words)
    assert load_class(f"{file}:DeepFM") is MODELS["deepfm"]


def test_nothing_in_a_store_is_run(tmp_path: Path) -> None:
    with open_server(tmp_path):
        pass
    store = tmp_path / "store"
    (store / "deep").mkdir()
    inside = write(store / "deep", "raise SystemExit('run')\n")
    (tmp_path / "link.py").symlink_to(inside)
    for kind in (f"{inside}:Mine", f"{tmp_path}/link.py:Mine", f"{store}/../store/deep/mine.py:A"):
        refused(kind, "from which no code is run", store=store)
    assert load_class(f"{write(tmp_path, GOOD)}:Mine", store=store).__name__ == "Mine"


@pytest.mark.parametrize(
    "kind",
    ["", "x", "mine.py", "mine.py:", ":Mine", "mine.py:a.b", "mine.py:a b", "mine.txt:Mine",
     "deepfm:", "DeepFM", "mine.py: Mine", None, 7, Path("mine.py:Mine"), ["deepfm"]],
)  # fmt: skip
def test_what_is_no_name_of_a_model_is_refused_with_all_that_there_are(kind: object) -> None:
    with pytest.raises(hps.ConfigError, match=re.escape(f"model={kind!r} must be one of ")) as said:
        load_class(kind)  # type: ignore[arg-type]
    assert "'autoint'" in str(said.value) and "as file.py:Class" in str(said.value)


def test_two_paths_of_one_file_name_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert are_same("a.py:A", "./a.py:A") and are_same("a.py:A", f"{tmp_path}/a.py:A")
    assert not are_same("a.py:A", "a.py:B") and not are_same("a.py:A", "b/a.py:A")
    assert are_same("lr", "lr") and not are_same("lr", "fm") and not are_same("lr", "lr.py:lr")


def test_an_own_model_is_one_of_the_library_in_every_way(tmp_path: Path) -> None:
    kind = f"{write(tmp_path, GOOD)}:Mine"
    with open_server(tmp_path, dim=3) as server:
        model = class_of(kind)(server, {"ads": 2}, 0)
        assert model.dim == 2
        ids = hps.Ids(torch.arange(4), offsets=torch.arange(5))
        batch = hps.Batch({"ads": ids}, torch.zeros(2, 0), torch.ones(2))
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        torch.testing.assert_close(compiled(batch), model(batch))
        model.set_base_rate(-1.0)
        assert float(model.bias.detach()) == -1.0  # type: ignore[union-attr]
