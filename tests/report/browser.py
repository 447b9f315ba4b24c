"""A page as a browser shows it: headless Chromium, and the tree of elements that its scripts leave.

Above it: test_page_in_browser.py, tests/site/. Below it: Chromium, where HPS_CHROMIUM or the PATH
has one.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tools.chromium_page import QUIET, browser_on_path

_LIMIT_SECONDS = 60
_PAGE_MILLISECONDS = 20_000  # of the page's own clock, which stands still while it computes
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"}
_FLAGS = (
    *QUIET,
    "--headless",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--enable-logging=stderr",
    "--window-size=1200,1000",
    f"--virtual-time-budget={_PAGE_MILLISECONDS}",
    "--dump-dom",
)


def find_browser() -> str | None:
    """Its path, if there is one."""
    given = os.environ.get("HPS_CHROMIUM")
    return shutil.which(given) if given else browser_on_path()


@dataclass
class Element:
    """One of a page.

    Args:
        tag: in small letters.
        attributes: by name.
        children: elements and texts, in order.
    """

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: "list[Element | str]" = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of it and all within, without the spaces around."""
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return "".join(parts).strip()

    def all(self, tag: str, name: str = "") -> "Iterator[Element]":
        """What lies within it with this tag, and this class if one is named, in order."""
        for child in self.children:
            if isinstance(child, Element):
                names = child.attributes.get("class", "").split()
                if child.tag == tag and (not name or name in names):
                    yield child
                yield from child.all(tag, name)


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in [element.tag for element in self._open]:
            while self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


@dataclass(frozen=True)
class Shown:
    """What a browser made of a page.

    Args:
        page: its elements after its scripts ran.
        console: what scripts and the browser said of the page; empty if all went well.
        asked: URLs that the page would have of a network, not those of the browser itself.
    """

    page: Element
    console: list[str]
    asked: list[str]


def show(browser: str, page: Path | str, scratch: Path) -> Shown:
    """Opens a page, with a network on which no name is found.

    Args:
        browser: as find_browser has it.
        page: its path, or its URL with a number for a host.
        scratch: an empty folder for what the browser keeps.
    """
    where = page if isinstance(page, str) else page.resolve().as_uri()
    log = scratch / "network.json"
    keeps = f"--user-data-dir={scratch / 'profile'}"
    out, said = _run([browser, *_FLAGS, keeps, f"--log-net-log={log}", where])
    tree = _Tree()
    tree.feed(out)
    tree.close()
    console = [line for line in said.splitlines() if ":CONSOLE:" in line]
    return Shown(tree.root, console, _asked(log))


def _asked(log: Path) -> list[str]:
    """What a page asked for, by the browser's record of its network."""
    record = json.loads(log.read_text(encoding="utf-8"))
    begin = record["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    found = [event.get("params", {}) for event in record["events"] if event["type"] == begin]
    own = [params for params in found if params.get("initiator") != "not an origin"]
    return [params["url"] for params in own if "url" in params]


def _run(command: list[str]) -> tuple[str, str]:
    """Both outputs; it and its children are ended when its time is up."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, said = process.communicate(timeout=_LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, said
    return out, said
