"""The rule of the house style that needs the whole tree: implementation inheritance, one deep at
the most, and from one class.

Above it: tests/test_tidy.py. Below it: nothing. A class that is sliced over several files by
inheritance has no part that owns its fields or that can be tested alone.

What does not count as an inheritance of implementation: a base that lies outside of hps/ (torch,
enum, argparse), protocols, exceptions, dataclasses (configs that share fields), and bases without
code: every method of theirs is only declared.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAX_DEPTH = 1
_NO_CODE = {"Protocol", "NamedTuple", "TypedDict"}


@dataclass
class ClassOfTree:
    """A class of the tree.

    Args:
        name: as `path:Name`, which names it in the tree.
        bases: those of the tree likewise, those outside of it by their last word.
        is_shared_code: inheriting from it is inheriting an implementation.
    """

    name: str
    bases: list[str]
    is_shared_code: bool


def deep_classes(sources: Mapping[str, str]) -> Iterator[str]:
    """What is wrong in a tree.

    Args:
        sources: text of every Python file of the package by path, such as "hps/a/b.py".
    """
    trees = {path: ast.parse(text) for path, text in sources.items()}
    imports = {path: _imported(tree, trees) for path, tree in trees.items()}
    classes = {
        found.name: found for path, tree in trees.items() for found in _classes(path, tree, imports)
    }
    for name in sorted(classes):
        chain = _longest_chain(name, classes)
        if len(chain) - 1 > MAX_DEPTH:
            words = " < ".join(each.rpartition(":")[2] for each in chain)
            yield f"{name}: {words}: {len(chain) - 1} deep; the limit is {MAX_DEPTH}"
        bases = _code_bases(name, classes)
        if len(bases) > 1:
            words = ", ".join(each.rpartition(":")[2] for each in bases)
            yield f"{name}: inherits the code of {words}; of one class at the most"


def _longest_chain(name: str, classes: Mapping[str, ClassOfTree]) -> list[str]:
    """The class, one of its bases, one of that, and so on; only bases whose code is inherited."""
    chains = [_longest_chain(base, classes) for base in _code_bases(name, classes)]
    return [name, *max(chains, key=len, default=[])]


def _code_bases(name: str, classes: Mapping[str, ClassOfTree]) -> list[str]:
    return [
        base
        for base in classes[name].bases
        if base in classes and classes[base].is_shared_code and not _is_exception(base, classes)
    ]


def _is_exception(name: str, classes: Mapping[str, ClassOfTree]) -> bool:
    if name not in classes:
        return name.endswith(("Error", "Exception", "Interrupt", "Warning"))
    return any(_is_exception(base, classes) for base in classes[name].bases)


def _classes(
    path: str, tree: ast.Module, imports: Mapping[str, Mapping[str, str]]
) -> Iterator[ClassOfTree]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = {node.name for node in nodes}
    for node in nodes:
        words = [_last_word(base) for base in node.bases]
        is_code = _has_code(node) and not _is_dataclass(node) and not _NO_CODE & set(words)
        bases = [
            f"{path}:{word}" if word in own else _origin(path, word, imports) for word in words
        ]
        yield ClassOfTree(f"{path}:{node.name}", bases, is_code)


def _origin(path: str, name: str, imports: Mapping[str, Mapping[str, str]]) -> str:
    """Where a name comes from that a file imports, through files that only pass it on."""
    place = imports[path].get(name)
    if place is None:
        return name
    target, _, original = place.partition(":")
    return _origin(target, original, imports) if original in imports[target] else place


def _imported(tree: ast.Module, trees: Mapping[str, object]) -> dict[str, str]:
    """The names that a file imports from the tree, as `path:name`."""
    places = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            stem = node.module.replace(".", "/")
            for path in (f"{stem}.py", f"{stem}/__init__.py"):
                if path in trees:
                    for name in node.names:
                        places[name.asname or name.name] = f"{path}:{name.name}"
    return places


def _last_word(base: ast.expr) -> str:
    """The name of a base: `C` of `C`, `a.b.C`, `C[T]`."""
    if isinstance(base, ast.Subscript):
        return _last_word(base.value)
    return base.attr if isinstance(base, ast.Attribute) else ast.unparse(base)


def _is_dataclass(node: ast.ClassDef) -> bool:
    calls = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(_last_word(each) == "dataclass" for each in calls)


def _has_code(node: ast.ClassDef) -> bool:
    """True if a method does something, or a field is set."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not all(_is_declaration(each) for each in statement.body):
                return True
        elif not isinstance(statement, ast.AnnAssign) and not _is_declaration(statement):
            return True
    return False


def _is_declaration(statement: ast.stmt) -> bool:
    """A docstring, `...` or `pass`."""
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
