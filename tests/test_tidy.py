"""The tree keeps the house style, and every rule of it has been seen to fail.

Below it: tests/tidy_rules.py and tests/tidy_inheritance.py, which hold the rules.
"""

import subprocess
from pathlib import Path

import pytest

from tests.tidy_inheritance import deep_classes
from tests.tidy_rules import RULES, Rule

ROOT = Path(__file__).resolve().parent.parent
TEXT_ENDINGS = (".py", ".pyi", ".cc", ".h", ".cu", ".cuh", ".sh", ".md", ".toml", ".json", ".txt")
TEXT_ENDINGS += (".proto", ".svg", "Makefile", "run")
TOP_LEVEL = {".ci", ".clang-format", ".gitignore", "ARCHITECTURE.md", "CMakeLists.txt", "LICENSE"}
TOP_LEVEL |= {".github", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy"}
TOP_LEVEL |= {
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "benchmarks",
    "constraints.txt",
    "csrc",
    "docs",
}
TOP_LEVEL |= {"examples", "hps", "proto", "pyproject.toml", "setup.py", "tests", "tools"}
GENERATED = ("_pb2.py", "_pb2.pyi")  # looks as its compiler likes it


# (rule, path, text that breaks it, text that keeps it)
LONG_BODY = "".join(f"    value = {number}\n" for number in range(70))
NATIVE_BODY = "".join(f"  Call({number});\n" for number in range(70))
MEMBER_BODY = "".join(f"    Call({number});\n" for number in range(70))
EXAMPLES = [
    ("file_length", "hps/a.py", "x = 1\n" * 601, "x = 1\n" * 600),
    ("file_length", "csrc/table/a.h", "// x\n" * 601, "// x\n" * 600),
    ("line_length", "hps/a.py", "#" * 101, "#" * 100),
    ("function_length", "hps/a.py", "def f():\n" + LONG_BODY, "def f():\n" + LONG_BODY[14:]),
    (
        "native_function_length",
        "csrc/common/a.cc",
        f"void F(\n    int a) {{\n{NATIVE_BODY}}}\n",
        "void F() {\n  Call();\n}\n\n" * 40,
    ),
    (
        "native_function_length",
        "csrc/common/a.h",
        f"class A {{\n  void F() {{\n{MEMBER_BODY}  }}\n}};\n",
        "class A {\n" + "  void F() {\n    Call();\n  }\n" * 40 + "};\n",
    ),
    (
        "parameter_count",
        "hps/a.py",
        "def f(a, b, c, d, *, e, f, g): pass",
        "def f(self, a, b, c, d, e, f): pass",
    ),
    ("unfinished_words", "csrc/common/a.h", "// TO" + "DO: later", "// Done, and todos too."),
    ("unfinished_words", "hps/a.py", "raise NotImplemented" + "Error", "raise ValueError"),
    ("unfinished_words", "hps/a.py", "# a St" + "ub for now", "# stubborn"),
    ("machine_paths", "README.md", "see /wo" + "rk/main", "see the/wo" + "rk/main and a/home/b"),
    ("machine_paths", "tools/a.sh", "pip -i https://pypi.o" + "rg/simple", "pip install numpy"),
    ("environment_reads", "hps/a.py", "os.env" + "iron['A']", "environment = 1"),
    ("environment_reads", "csrc/common/a.cc", "get" + 'env("A")', "forget_environment()"),
    ("swallowed_exceptions", "hps/a.py", "try:\n  f()\nexcept:\n  g()", "x = 1"),
    (
        "swallowed_exceptions",
        "hps/a.py",
        "try:\n  f()\nexcept Exception:\n  pass",
        "try:\n  f()\nexcept OSError:\n  pass",
    ),
    ("opening_words", "hps/a.py", "import os", '"""What it is."""'),
    ("opening_words", "csrc/common/a.h", "#pragma once", "// What it is.\n#pragma once"),
    ("python_in_the_core", "csrc/table/a.h", "#include <nanobind/nanobind.h>", "#include <vector>"),
    ("unstable_python", "csrc/bindings/a.cc", "PyFloat_AS_" + "DOUBLE(x)", "PyFloat_AsDouble(x)"),
]


def tracked_files() -> list[str]:
    """Files that git keeps or would keep; without git (an unpacked archive) all source files."""
    try:
        output = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        folders = ("hps", "csrc", "tests", "benchmarks", "tools", "examples", "docs")
        found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
        output = [path.relative_to(ROOT).as_posix() for path in found if path.is_file()]
        output.append("setup.py")
    kept = [path for path in output if path.endswith(TEXT_ENDINGS) and (ROOT / path).is_file()]
    return [path for path in kept if not path.endswith(GENERATED)]


def strangers(paths: list[str]) -> list[str]:
    """Files whose first folder, or own name, is not one of the tree's."""
    return [path for path in paths if path.split("/")[0] not in TOP_LEVEL]


def rule_named(name: str) -> Rule:
    return next(rule for rule in RULES if rule.__name__ == name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_rule(rule: Rule) -> None:
    problems = [
        f"{path}: {problem}"
        for path in tracked_files()
        for problem in rule(path, (ROOT / path).read_text(encoding="utf-8", errors="replace"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("name", "path", "bad", "good"), EXAMPLES)
def test_rule_tells_bad_from_good(name: str, path: str, bad: str, good: str) -> None:
    assert list(rule_named(name)(path, bad))
    assert not list(rule_named(name)(path, good))


def test_every_rule_has_been_seen_failing() -> None:
    assert {rule.__name__ for rule in RULES} == {example[0] for example in EXAMPLES}


def test_files_of_the_tree_are_found() -> None:
    assert {"setup.py", "hps/config.py", "csrc/common/status.h"} <= set(tracked_files())


def test_nothing_lies_beside_the_tree() -> None:
    """What a program wrote where it was run is easily committed with the rest."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    assert not strangers(listed.stdout.splitlines())  # an unpacked archive lists none
    beside = ["log.tsv", "store/CURRENT", "hps/cli/train.py", "README.md"]
    assert strangers(beside) == ["log.tsv", "store/CURRENT"]


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest knows a file by its name alone, and refuses the second one in a run of both."""
    names = [Path(path).name for path in tracked_files() if path.startswith("tests/")]
    tests = [name for name in names if name.startswith("test_") and name.endswith(".py")]
    assert len(tests) > 100
    assert sorted(tests) == sorted(set(tests))


def test_implementations_are_inherited_one_deep() -> None:
    sources = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in tracked_files()
        if path.startswith("hps/") and path.endswith(".py")
    }
    assert len(sources) > 100
    problems = list(deep_classes(sources))
    assert not problems, "\n".join(problems)


CODE = "def verb(self):\n        return 1\n"
BASE = {"hps/a.py": f"class A:\n    {CODE}"}
# (what, other files, last word of the class that is refused)
TOWERS = [
    (
        "over three files, one of which only passes a name on",
        {
            "hps/b/__init__.py": "from hps.b.b import B\n",
            "hps/b/b.py": f"from hps.a import A\nclass B(A):\n    {CODE}",
            "hps/c.py": f"from hps.b import B as Lower\nclass C(Lower):\n    {CODE}",
        },
        "C",
    ),
    (
        "in one file, of a generic base",
        {"hps/b.py": f"import hps.a\nclass B:\n    {CODE}\nclass C(B[int]):\n    {CODE}"
         f"\nclass D(C):\n    {CODE}"},
        "D",
    ),
    (
        "from two classes",
        {"hps/b.py": f"from hps.a import A\nclass B:\n    {CODE}\nclass C(A, B):\n    {CODE}"},
        "C",
    ),
]  # fmt: skip
HOUSES = {
    "one deep": f"from hps.a import A\nclass B(A):\n    {CODE}",
    "a protocol": "from typing import Protocol\nfrom hps.a import A\nclass P(Protocol):\n"
    f"    {CODE}\nclass B(A, P):\n    {CODE}",
    "a base that only declares": "from abc import ABC\nfrom hps.a import A\nclass D(ABC):\n"
    f'    """A contract."""\n    x: int\n    def f(self): ...\nclass B(A, D):\n    {CODE}',
    "exceptions": f"class E(ValueError):\n    {CODE}\nclass F(E):\n    {CODE}\nclass G(F):\n"
    f"    {CODE}",
    "configs": f"@dataclass(frozen=True)\nclass C:\n    {CODE}\n@dataclass\nclass D(C):\n"
    f"    {CODE}\nclass E(D):\n    {CODE}",
    "a base outside": f"from torch import nn\nclass M(nn.Module):\n    {CODE}\nclass N(M):\n"
    f"    {CODE}",
}


@pytest.mark.parametrize(("files", "refused"), [tower[1:] for tower in TOWERS])
def test_a_tower_of_classes_is_found(files: dict[str, str], refused: str) -> None:
    problems = list(deep_classes(BASE | files))
    assert [problem.split(": ")[0].rpartition(":")[2] for problem in problems] == [refused]


@pytest.mark.parametrize("what", HOUSES)
def test_what_is_no_tower_is_let_be(what: str) -> None:
    assert list(deep_classes(BASE | {"hps/b.py": HOUSES[what]})) == []
