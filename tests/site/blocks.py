"""The blocks of code in pages, and what can be said of each without running it.

Above it: test_blocks.py. Below it: the parsers of hps, the Makefile, pyproject.toml.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from hps.cli.main import COMMANDS, make_parser

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# Programs whose words are not looked at: they are not of hps.
_NAMES = """
cat cd chmod cp curl diff docker echo eval export grep grpcurl head jq kill kubectl ls mkdir openssl
protoc rm sbatch sed seq sleep sort source systemctl tail test useradd wait wc
"""
OTHERS = frozenset(_NAMES.split())
_KEYWORDS = frozenset(["!", "do", "done", "else", "fi", "if", "then", "until", "while"])
_ERRORS = re.compile(r"\b2>(?:&1|\s*\S+)")
# What pages write for something of the reader's own -> what parsers take for it.
_PLACEHOLDERS = {"HOST:PORT": "127.0.0.1:50051", "DIR": "dir", "...": ""}


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Args:
        source: the page, from the checkout's root.
        line: of the page, at which it begins.
        kind: the language that it names.
        text: without its indent.
    """

    source: str
    line: int
    kind: str
    text: str


def blocks_of(source: str, text: str) -> Iterator[Block]:
    """Those of a page, in order."""
    for found in _BLOCK.finditer(text):
        indent, kind, body = found.groups()
        lines = (line.removeprefix(indent) for line in body.splitlines(keepends=True))
        yield Block(source, text[: found.start()].count("\n") + 1, kind, "".join(lines))


def commands_of(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell's text: pipes, lists and redirections are taken apart."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(_ERRORS.sub("", line), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        skips = False
        for word in lexer:
            if set(word) <= set("|&;"):
                yield from [words] if words else []
                words = []
            elif not words and word in _KEYWORDS:
                continue
            elif set(word) <= set("<>&"):
                skips = True
            elif skips:
                skips = False
            else:
                words.append(word)
        yield from [words] if words else []


def problem_of(block: Block) -> str:
    """What is wrong with a block, or "" where nothing is."""
    check = CHECKS.get(block.kind)
    if check is None:
        return f"a block of {block.kind or 'no language'}: name one of {', '.join(CHECKS)}"
    try:
        return check(block.text)
    except (ValueError, SyntaxError) as error:
        return str(error)


def _python(text: str) -> str:
    import hps

    compile(text, "block", "exec")
    names = re.findall(r"\bhps\.([A-Za-z_]+)\b", re.sub(r"#.*", "", text))
    missing = [name for name in names if not hasattr(hps, name) and not _is_module(name)]
    return f"hps has no {missing}" if missing else ""


def _is_module(name: str) -> bool:
    folder = ROOT / "hps"
    return (folder / name).is_dir() or (folder / f"{name}.py").exists()


def _shell(text: str) -> str:
    problems = (_command(words) for words in commands_of(text))
    return next((problem for problem in problems if problem), "")


def _command(words: list[str]) -> str:
    while re.match(r"^[A-Z_]+=", words[0]):  # settings before a command
        words = words[1:]
        if not words:
            return ""
    program = words[0].rpartition("/")[2]
    if program == "torchrun":
        where = words.index("-m") if "-m" in words else len(words)
        return _script(words[where:]) if words[where:] else ""
    if program in OWN:
        return OWN[program](words[1:])
    return "" if program in OTHERS else f"{program!r} is a program that no test knows"


def _hps(words: list[str]) -> str:
    words = [_filled(word) for word in words if word != "..."]
    if words in (["--help"], ["--version"]):
        return ""
    if "--config" in words:  # of a file that the page has made; its values are the page's test's
        where = words.index("--config")
        words = [*words[:where], *words[where + 2 :], "log.csv"]
    try:
        make_parser(words[0] if words[0] in COMMANDS else None).parse_args(words)
    except SystemExit as error:
        return f"hps refuses {shlex.join(words)}" if error.code else ""
    return ""


def _filled(word: str) -> str:
    for name, value in _PLACEHOLDERS.items():
        word = word.replace(name, value)
    return word


def _make(words: list[str]) -> str:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    missing = [word for word in words if "=" not in word and word not in targets]
    return f"the Makefile has no {missing}" if missing else ""


def _pip(words: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
    missing = {one for found in extras for one in found.split(",")}
    missing -= set(project["optional-dependencies"])
    return f"hps has no extra {sorted(missing)}" if missing else ""


def _script(words: list[str]) -> str:
    if words[0] == "-m":
        module = words[1]
        if module == "pip":
            return _pip(words[2:])
        if module == "hps":
            return _hps(words[2:])
        is_own = module.partition(".")[0] in ("hps", "tests", "tools", "benchmarks", "examples")
        path = ROOT / module.replace(".", "/")
        is_there = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        return "" if is_there or not is_own else f"there is no module {module}"
    is_file = words[0].endswith(".py") and "/" in words[0]
    return f"there is no {words[0]}" if is_file and not (ROOT / words[0]).exists() else ""


def _toml(text: str) -> str:
    tomllib.loads(text)
    return ""


def _json(text: str) -> str:
    json.loads(text)
    return ""


def _yaml(text: str) -> str:
    try:
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        return str(error)
    return ""


def _plain(_: str) -> str:
    return ""


OWN: dict[str, Callable[[list[str]], str]] = {
    "hps": _hps,
    "make": _make,
    "pip": _pip,
    "python": _script,
    "python3": _script,
}
CHECKS: dict[str, Callable[[str], str]] = {
    "python": _python,
    "sh": _shell,
    "bash": _shell,
    "toml": _toml,
    "json": _json,
    "yaml": _yaml,
    "text": _plain,  # what a command prints, or a drawing
    "ini": _plain,
    "diff": _plain,  # of two files; tests/test_torchrec.py compares them
}
