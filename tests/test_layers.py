"""No import circle and no arrow that runs upwards, in hps/ and csrc/.

Above it: pytest. Below it: layers.py, the tables of ARCHITECTURE.md.
"""

from pathlib import Path

import pytest

from tests.layers import (
    Arrows,
    circles,
    layer_of,
    layer_table,
    native_arrows,
    python_arrows,
    upward,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
TREES = {
    "hps": (python_arrows(ROOT), layer_table(PAGE, "Layers")),
    "csrc": (native_arrows(ROOT), layer_table(PAGE, "Native layers")),
}


@pytest.mark.parametrize("tree", TREES)
def test_no_arrow_runs_upwards(tree: str) -> None:
    arrows, layers = TREES[tree]
    assert sum(len(targets) for targets in arrows.values()) > 100
    assert upward(arrows, layers) == []


@pytest.mark.parametrize("tree", TREES)
def test_no_circle(tree: str) -> None:
    assert circles(TREES[tree][0]) == []


@pytest.mark.parametrize("tree", TREES)
def test_every_layer_of_the_page_has_files(tree: str) -> None:
    arrows, layers = TREES[tree]
    used = {layer_of(file, layers)[1] for file in arrows}
    assert {name for names in layers for name in names} - used == set()


def test_an_upward_arrow_and_a_sibling_are_found() -> None:
    arrows: Arrows = {
        "hps/low/a.py": frozenset({"hps/high/b.py"}),
        "hps/high/b.py": frozenset({"hps/beside/c.py", "hps/low/a.py"}),
        "hps/beside/c.py": frozenset(),
    }
    layers = [["low"], ["high", "beside"]]
    assert upward(arrows, layers) == [
        "hps/low/a.py -> hps/high/b.py",
        "hps/high/b.py -> hps/beside/c.py",
    ]
    assert circles(arrows) == [["hps/high/b.py", "hps/low/a.py"]]


def test_a_file_without_a_layer_is_found() -> None:
    with pytest.raises(KeyError, match=r"hps/new\.py lies in no layer"):
        layer_of("hps/new.py", [["low"]])


def test_imports_for_types_and_within_functions_count(tmp_path: Path) -> None:
    folder = tmp_path / "hps" / "low"
    folder.mkdir(parents=True)
    (tmp_path / "hps" / "__init__.py").write_text("")
    (tmp_path / "hps" / "top.py").write_text("")
    (tmp_path / "hps" / "side.py").write_text("")
    (folder / "a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from hps.top import Name\n"
        "def late():\n    from hps import side\n"
    )
    assert python_arrows(tmp_path)["hps/low/a.py"] == {"hps/top.py", "hps/side.py"}
