"""The house style as functions: each takes a file's path and text and returns what is wrong in it.

Above it: tests/test_tidy.py, which runs them over the tree and shows that each can fail.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePosixPath

MAX_FILE_LINES = 600
MAX_KERNEL_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100
MAX_PARAMETERS = 6

PYTHON = (".py", ".pyi")
NATIVE = (".cc", ".h", ".cu", ".cuh")
CODE = (*PYTHON, *NATIVE, ".sh", ".txt", ".toml", ".proto", "Makefile", "run")

# Split, so that this file passes its own rules.
UNFINISHED = re.compile(
    "|".join(["TO" + "DO", "FIX" + "ME", r"\bXX" + r"X\b", r"\bHA" + r"CK\b"])
    + "|NotImplemented"
    + "Error|"
    + r"(?i:\bplace"
    + r"holder|\bst"
    + r"ub\b)"
)
MACHINE_PATH = re.compile(r"(?<![\w.\-/])/(?:root|home|work|Users)\b")
REGISTRY = re.compile(r"pypi\.o" + r"rg|pythonhost" + r"ed|debian\.o" + r"rg|npmjs\.")
ENVIRONMENT = re.compile(r"os\.env" + r"iron|\bget" + r"env\b")


def file_length(path: str, text: str) -> Iterator[str]:
    is_kernel = "kernel" in PurePosixPath(path).name or path.endswith((".cu", ".cuh"))
    limit = MAX_KERNEL_LINES if is_kernel else MAX_FILE_LINES
    num_lines = len(text.splitlines())
    if path.endswith(PYTHON + NATIVE) and num_lines > limit:
        yield f"{num_lines} lines; the limit is {limit}"


def line_length(path: str, text: str) -> Iterator[str]:
    if path.endswith(CODE) and path != "constraints.txt":
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"line {number}: {len(line)} columns; the limit is {MAX_COLUMNS}"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that a module, or another statement, has within, without the expressions."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        within = getattr(node, name, ())
        for each in within if isinstance(within, list) else ():
            yield each
            yield from statements(each)


@lru_cache(maxsize=4096)  # more than the tree has files: several rules ask for the same ones
def parsed(text: str) -> tuple[str | None, list[Function], list[ast.ExceptHandler]]:
    """The docstring of a module, its functions and its handlers of exceptions."""
    module = ast.parse(text)
    functions: list[Function] = []
    handlers: list[ast.ExceptHandler] = []
    for node in statements(module):
        if isinstance(node, Function):
            functions.append(node)
        elif isinstance(node, ast.ExceptHandler):
            handlers.append(node)
    return ast.get_docstring(module), functions, handlers


def python_functions(path: str, text: str) -> list[Function]:
    return parsed(text)[1] if path.endswith(".py") else []


def function_length(path: str, text: str) -> Iterator[str]:
    for function in python_functions(path, text):
        num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if num_lines > MAX_FUNCTION_LINES:
            yield f"{function.name} has {num_lines} lines; the limit is {MAX_FUNCTION_LINES}"


def native_function_length(path: str, text: str) -> Iterator[str]:
    """Relies on clang-format: a body's end stands in the column where its signature starts."""
    if not path.endswith(NATIVE):
        return
    lines = text.splitlines()
    for indent in ("", "  "):
        start = 0
        for number, line in enumerate(lines, 1):
            rest = line[len(indent) :]
            if not line.startswith(indent) or not rest or rest[0] in " #":
                continue
            if rest == "}":
                if number - start + 1 > MAX_FUNCTION_LINES:
                    yield f"line {start}: a function of {number - start + 1} lines"
            elif rest[0] != "}":
                start = number


def parameter_count(path: str, text: str) -> Iterator[str]:
    if path.startswith(("tests/", "benchmarks/")):
        return
    for function in python_functions(path, text):
        arguments = function.args
        names = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MAX_PARAMETERS:
            yield f"{function.name} takes {count} parameters; the limit is {MAX_PARAMETERS}"


def unfinished_words(path: str, text: str) -> Iterator[str]:
    if path.endswith(CODE):
        for number, line in enumerate(text.splitlines(), 1):
            if match := UNFINISHED.search(line):
                yield f"line {number}: {match[0]!r} marks unfinished work"


def machine_paths(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line) or REGISTRY.search(line):
            yield f"line {number}: a path of one machine, or the host of a package registry"


def environment_reads(path: str, text: str) -> Iterator[str]:
    is_exempt = path in ("hps/config.py", "setup.py") or path.startswith("tests/")
    if path.endswith(PYTHON + NATIVE) and not is_exempt:
        for number, line in enumerate(text.splitlines(), 1):
            if ENVIRONMENT.search(line):
                yield f"line {number}: only hps/config.py reads the environment"


def swallowed_exceptions(path: str, text: str) -> Iterator[str]:
    if not path.endswith(".py"):
        return
    for node in parsed(text)[2]:
        is_broad = isinstance(node.type, ast.Name) and node.type.id.endswith("Exception")
        does_nothing = all(isinstance(statement, ast.Pass) for statement in node.body)
        if node.type is None or (is_broad and does_nothing):
            yield f"line {node.lineno}: an except that hides every error"


def opening_words(path: str, text: str) -> Iterator[str]:
    if path.endswith(".py") and not (parsed(text)[0] or "").strip():
        yield "no docstring says what this file is"
    if path.endswith(NATIVE) and not text.startswith("//"):
        yield "no opening comment says what this file is"


def python_in_the_core(path: str, text: str) -> Iterator[str]:
    if path.startswith("csrc/") and not path.startswith("csrc/bindings/"):
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"#include <(nanobind/|Python\.h)", line):
                yield f"line {number}: only csrc/bindings knows Python"


def unstable_python(path: str, text: str) -> Iterator[str]:
    if path.startswith("csrc/bindings/"):
        for number, line in enumerate(text.splitlines(), 1):
            found = re.search(r"\bPy\w+_(?:AS|GET)_[A-Z]+", line)
            if found:
                yield f"line {number}: Python's stable ABI, and so the wheel, lacks {found[0]}"


Rule = Callable[[str, str], Iterator[str]]
RULES: tuple[Rule, ...] = (
    file_length,
    line_length,
    function_length,
    native_function_length,
    parameter_count,
    unfinished_words,
    machine_paths,
    environment_reads,
    swallowed_exceptions,
    opening_words,
    python_in_the_core,
    unstable_python,
)
