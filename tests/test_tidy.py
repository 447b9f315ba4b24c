"""The tree keeps the house style, and every rule of it has been seen to fail.

Below it: tests/tidy_rules.py, which holds the rules.
"""

import subprocess
from pathlib import Path

import pytest

from tests.tidy_rules import RULES, Rule

ROOT = Path(__file__).resolve().parent.parent
TEXT_ENDINGS = (".py", ".pyi", ".cc", ".h", ".cu", ".cuh", ".sh", ".md", ".toml", ".json", ".txt")
TEXT_ENDINGS += (".proto", ".svg", "Makefile", "run")
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
    (
        "python_layers",
        "hps/dram_cache/a.py",
        "from hps.ssd_store import store",
        "from hps.tier import RowTier\nfrom hps import _C\nimport numpy",
    ),
    ("python_layers", "hps/ssd_store/a.py", "import hps.pipeline", "import hps.errors"),
    ("python_layers", "hps/ssd_store/a.py", "from hps import embedding", "from hps import types"),
    (
        "native_layers",
        "csrc/dram_cache/a.cc",
        '#include "ssd_store/segment.h"',
        '#include "table/row_layout.h"',
    ),
    ("native_layers", "csrc/table/a.h", "#include <nanobind/nanobind.h>", "#include <vector>"),
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
