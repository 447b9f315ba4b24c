"""Links of a page as the site needs them, and the headings that they may point at.

Above it: hooks.py, tests/site/. Below it: nothing.

In the checkout a page names another one by its path: `docs/service.md`. On the site that becomes a
link under the other page's title; a heading that is quoted behind it becomes one, too. Pictures
beside docs/ are linked where hooks.py copies them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

PICTURES = "pictures"  # the site's folder of pictures from benchmarks/results/
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$\n?", re.MULTILINE | re.DOTALL)
# A page that is named, and a heading of it.
NAMED = re.compile(r'(?<!\[)`([\w./-]+\.md|docs/decisions/)`(?:, "([^"\n]+)")?')
_LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: *\{#([\w.-]+)[^}]*\})? *$", re.MULTILINE)


def outside_blocks(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a page in order, each with whether it is a block of code."""
    end = 0
    for block in _FENCE.finditer(text):
        yield text[end : block.start()], False
        yield block[0], True
        end = block.end()
    yield text[end:], False


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = re.sub(r"[^\w\s-]", "", plain).strip().lower()
    return re.sub(r"[-\s]+", "-", plain, flags=re.ASCII)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    found: set[str] = set()
    for part, is_code in outside_blocks(text):
        for heading, given in [] if is_code else _HEADING.findall(part):
            name = own = given or slug(heading)
            number = 1
            while name in found:  # as Python-Markdown numbers those that are equal
                name, number = f"{own}_{number}", number + 1
            found.add(name)
    return found


def links(text: str) -> list[str]:
    """The targets of a page's links, outside of code."""
    plain = (part for part, is_code in outside_blocks(text) if not is_code)
    return [target for part in plain for _, target in _LINK.findall(part)]


def resolved(place: str, target: str) -> str:
    """The place that a link of a page at a place points at; its anchor is left away."""
    return os.path.normpath(PurePosixPath(place).parent / target.partition("#")[0])


class Links:
    """The links of all pages.

    Args:
        places: source -> place, of every page that has a source.
        texts: place -> Markdown, of every page.
    """

    def __init__(self, places: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self._places = {**places, "docs/decisions/": "decisions/index.md"}
        self._titles = {place: _title(text) for place, text in texts.items()}
        self._anchors = {place: anchors(text) for place, text in texts.items()}

    def rewritten(self, place: str, source: str, text: str) -> str:
        """A page's text with the site's links."""
        return "".join(
            part if is_code else self._part(place, source, part)
            for part, is_code in outside_blocks(text)
        )

    def place_of(self, place: str, source: str, name: str) -> str | None:
        """The place of a page that another one names, from the checkout's root or from itself."""
        return self._places.get(name) or self._places.get(resolved(source or place, name))

    def _part(self, place: str, source: str, part: str) -> str:
        part = _LINK.sub(lambda found: self._link(place, source, found), part)
        return NAMED.sub(lambda found: self._named(place, source, found), part)

    def _link(self, place: str, source: str, found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, hash_, anchor = target.partition("#")
        file = resolved(source or place, path)
        if file.startswith("benchmarks/results/"):
            return f"{text}({_between(place, f'{PICTURES}/{Path(file).name}')})"
        is_drawing = file.startswith("docs/") and file.endswith(".svg")
        goal = file.removeprefix("docs/") if is_drawing else self._places.get(file)
        return f"{text}({_between(place, goal)}{hash_}{anchor})" if goal else found[0]

    def _named(self, place: str, source: str, found: re.Match[str]) -> str:
        name, heading = found.groups()
        goal = self.place_of(place, source, name)
        if goal is None:
            return found[0]
        quoted = f', "{heading}"' if heading else ""
        if goal == place:
            return f"this page{quoted}" if heading else found[0]
        to = _between(place, goal)
        if heading and slug(heading) in self._anchors[goal]:
            quoted = f', "[{heading}]({to}#{slug(heading)})"'
        return f"[{self._titles[goal]}]({to}){quoted}"


def _title(text: str) -> str:
    return next(line[2:] for line in text.splitlines() if line.startswith("# ")).replace("`", "")


def _between(place: str, goal: str) -> str:
    return os.path.relpath(goal, PurePosixPath(place).parent)
