"""The pages of messages: services, messages and enums of proto/, made of the files' comments.

Above it: pages.py. Below it: proto/. A comment above a line, or behind it, describes it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

_OPENING = re.compile(r"^(service|message|enum|oneof) (\w+) \{(\})?$")
_RPC = re.compile(r"^rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\)")
_FIELD = re.compile(r"^(?:(repeated|optional) )?([\w.]+(?:<[^>]*>)?) (\w+) = (\d+)(?: \[.*\])?;$")
_VALUE = re.compile(r"^(\w+) = (-?\d+);$")
_KINDS = {"service": "Service", "message": "Message", "enum": "Enum"}


@dataclass
class Block:
    """A service, message, enum or oneof.

    Args:
        kind: which of the four.
        name: with those around it, as `Outer.Inner`.
        about: its comment.
        rows: cells of each line in it.
    """

    kind: str
    name: str
    about: list[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)


def pages(root: Path) -> dict[str, str]:
    """Name -> page, in Markdown, of every .proto file.

    Raises:
        ValueError: a line that is none of what is known; names file and line.
    """
    files = sorted((root / "proto").rglob("*.proto"))
    return {path.stem: _page(path.relative_to(root / "proto").as_posix(), path) for path in files}


def _page(name: str, path: Path) -> str:
    about, blocks = parse(path.read_text(), name)
    text = f"# {name}\n\n{_prose(about)}\n"
    for block in blocks:
        text += f"\n## {_KINDS[block.kind]} {block.name} {{#{block.name}}}\n\n"
        text += f"{_prose(block.about)}\n" if block.about else ""
        text += _table(block)
    return text


def parse(text: str, name: str) -> tuple[list[str], list[Block]]:
    """The comment at a file's head, and its blocks in order, inner ones behind their own.

    Args:
        text: of the file.
        name: for errors.
    """
    reading = _Reading(name)
    for number, line in enumerate(text.splitlines(), 1):
        reading.take(number, line)
    return reading.head, reading.blocks


class _Reading:
    """A file, line by line."""

    def __init__(self, name: str) -> None:
        self.head: list[str] = []
        self.blocks: list[Block] = []
        self._name = name
        self._open: list[Block] = []
        self._above: list[str] = []  # comments that the next line is described by
        self._behind = -1  # where the comment behind the line before began

    def take(self, number: int, line: str) -> None:
        """The next line."""
        code, mark, said = line.partition("//")
        code, said = code.strip(), said.removeprefix(" ").rstrip()
        if mark and not code:
            if line.index("//") == self._behind:  # goes on with the comment behind the line before
                *cells, about = self._open[-1].rows[-1]
                self._open[-1].rows[-1] = (*cells, f"{about} {said}")
            else:
                self._above.append(said)
            return
        self._behind = line.index("//") if mark else -1
        if not code:
            if not self.head:
                self.head, self._above = self._above, []
            return
        about, self._above = self._above + ([said] if mark else []), []
        if not code.startswith(("syntax", "package", "import", "option ")):
            self._statement(number, code, about)

    def _statement(self, number: int, code: str, about: list[str]) -> None:
        row: tuple[str, ...]
        if (opening := _OPENING.match(code)) is not None:
            self._begin(*opening.groups(), about)
        elif code == "}":
            self._open.pop()
        elif (rpc := _RPC.match(code)) is not None:
            call, asks, request, answers, reply = rpc.groups()
            row = (call, f"{asks or ''}{request}", f"{answers or ''}{reply}")
            self._open[-1].rows.append((*row, _prose(about)))
        elif (one := _FIELD.match(code)) is not None:
            many, kind, own, tag = one.groups()
            outer = self._open[-1]
            if outer.kind == "oneof":
                about = [f"Of `{outer.name}`, one is given.", *outer.about, *about]
                outer = self._open[-2]
            outer.rows.append((own, f"{many} {kind}" if many else kind, tag, _prose(about)))
        elif (value := _VALUE.match(code)) is not None:
            self._open[-1].rows.append((value[1], value[2], _prose(about)))
        else:
            raise ValueError(f"{self._name}, line {number}: {code!r} is none of what is read here")

    def _begin(self, kind: str, own: str, closes: str | None, about: list[str]) -> None:
        outer = [one.name for one in self._open[-1:]]
        block = Block(kind, own if kind == "oneof" else ".".join([*outer, own]), about)
        if kind != "oneof":
            self.blocks.append(block)
        if not closes:
            self._open.append(block)


def _prose(lines: list[str]) -> str:
    """A comment as Markdown; a list in it stays one."""
    text = "\n".join(lines).strip()
    text = re.sub(r"\n+(?=- )", "\n\n", text, count=1)
    return re.sub(r"(?<!`)(docs/\w+\.md)(?!`)", r"`\1`", re.sub(r"([<>_*])", r"\\\1", text))


def _table(block: Block) -> str:
    if not block.rows:
        return "No fields.\n" if block.kind == "message" else ""
    head = {
        "service": ("call", "takes", "answers", "what it does"),
        "message": ("field", "type", "number", "what it is"),
        "enum": ("value", "number", "what it means"),
    }[block.kind]
    text = f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}\n"
    for *cells, about in block.rows:
        shown = [f"`{cell}`" if not cell.lstrip("-").isdigit() else cell for cell in cells]
        told = " ".join(about.split()).replace("|", "\\|")
        text += f"| {' | '.join([*shown, told])} |\n"
    return text
