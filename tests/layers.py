"""The layers of hps, read from ARCHITECTURE.md, and the arrows between its files.

Above it: tests/test_layers.py. Below it: the two tables of ARCHITECTURE.md, "## Layers" of hps/ and
"## Native layers" of csrc/, lowest layer first; a row may name several folders, which then know
nothing of one another.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Arrows = Mapping[str, frozenset[str]]  # a file, to the files that it imports or includes

# Names that are resolved at first use, so that `import hps` loads none of them.
LAZY = "hps/__init__.py"


def layer_table(page: str, heading: str) -> list[list[str]]:
    """The layers of the table under a heading, lowest first: the names in each first cell."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([\w/.]+)`", cell) for cell in cells]


def python_arrows(root: Path) -> Arrows:
    """Of each file under root/hps, the files of it that it imports, also inside of functions and
    for types alone."""
    files = {path.relative_to(root).as_posix() for path in (root / "hps").rglob("*.py")}
    arrows = {}
    for file in sorted(files):
        tree = ast.parse((root / file).read_text())
        targets = {target for name in _imports(tree) if (target := _file_of(name, files))}
        arrows[file] = frozenset(targets - {file})
    return arrows


def _imports(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that may be a module; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def _file_of(name: str, files: set[str]) -> str | None:
    """The file that gives a dotted name: a module, or the module or package that it is from; None
    of what is not Python of hps."""
    if name.startswith("hps._C"):
        return None
    path = name.replace(".", "/")
    package = path.rsplit("/", 1)[0]
    for file in (f"{path}.py", f"{path}/__init__.py", f"{package}.py", f"{package}/__init__.py"):
        if file in files:
            return file
    return None


def native_arrows(root: Path) -> Arrows:
    """Of each file under root/csrc, the files of it that it includes."""
    files = {p.relative_to(root).as_posix() for p in (root / "csrc").rglob("*") if p.is_file()}
    include = re.compile(r'^#include "([\w/.]+)"', re.MULTILINE)
    return {
        file: frozenset(
            f"csrc/{name}"
            for name in include.findall((root / file).read_text())
            if f"csrc/{name}" in files
        )
        for file in sorted(files)
    }


def layer_of(file: str, layers: list[list[str]]) -> tuple[int, str]:
    """(number of its layer, name of its folder) by the longest name that the file lies under.

    Raises:
        KeyError: no layer has the file.
    """
    inner = file.split("/", 1)[1].removesuffix(".py")
    best: tuple[int, str] | None = None
    for number, names in enumerate(layers):
        for name in names:
            is_in = inner == name or inner.startswith(f"{name}/")
            if is_in and (best is None or len(name) > len(best[1])):
                best = (number, name)
    if best is None:
        raise KeyError(f"{file} lies in no layer of ARCHITECTURE.md")
    return best


def upward(arrows: Arrows, layers: list[list[str]]) -> list[str]:
    """The arrows that run to a higher layer, or to another folder of the same one."""
    found = []
    for file, targets in arrows.items():
        if file == LAZY:
            continue
        number, folder = layer_of(file, layers)
        for target in sorted(targets):
            other, other_folder = layer_of(target, layers)
            if other > number or (other == number and other_folder != folder):
                found.append(f"{file} -> {target}")
    return found


def circles(arrows: Arrows) -> list[list[str]]:
    """Groups of files that reach one another (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        order[file] = low[file] = len(order)
        stack.append(file)
        for target in sorted(arrows.get(file, ())):
            if target not in order:
                visit(target)
                low[file] = min(low[file], low[target])
            elif target in stack:
                low[file] = min(low[file], order[target])
        if low[file] == order[file]:
            place = stack.index(file)
            group = stack[place:]
            del stack[place:]
            if len(group) > 1 or file in arrows.get(file, ()):
                found.append(sorted(group))

    for file in arrows:
        if file != LAZY and file not in order:
            visit(file)
    return found
