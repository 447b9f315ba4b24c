"""The drawings of docs/: each NAME.svg is drawn of NAME.dot, whose digest it holds.

Above it: `make docs`, hooks.py, tests/site/. Below it: graphviz's `dot`, which is needed only where
a drawing has changed: python -m tools.site.drawings.

Lines and letters have the colour of the text around them, and areas are half transparent, so that a
drawing is readable on a light page and on a dark one.
"""

import hashlib
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PICTURE = re.compile(r"^!\[([^\]]+)\]\(([\w./-]+\.svg)\)$", re.MULTILINE)
_STYLE = (
    "svg.drawing{color:var(--md-default-fg-color,#222)}"
    "@media(prefers-color-scheme:dark){svg.drawing{color:var(--md-default-fg-color,#ddd)}}"
)


class StaleDrawing(Exception):
    """A drawing is not that of its source, and cannot be drawn here."""


def digest_of(source: Path) -> str:
    """What a drawing holds of its source: it is stale where they differ."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def is_stale(source: Path) -> bool:
    """Whether the drawing beside a source is of another text, or not there."""
    drawing = source.with_suffix(".svg")
    return not drawing.exists() or digest_of(source) not in drawing.read_text()


def sources(root: Path = ROOT) -> list[Path]:
    """Of all drawings."""
    return sorted((root / "docs").rglob("*.dot"))


def draw(source: Path) -> None:
    """Draws one anew.

    Raises:
        StaleDrawing: there is no graphviz.
    """
    dot = shutil.which("dot")
    if dot is None:
        raise StaleDrawing(f"{source} has changed: apt-get install graphviz, then `make docs`")
    done = subprocess.run([dot, "-Tsvg", str(source)], capture_output=True, text=True, check=True)
    source.with_suffix(".svg").write_text(cleaned(done.stdout, digest_of(source)))


def cleaned(drawn: str, digest: str) -> str:
    """What dot has drawn, in the colours of a page and of the page's width at most.

    Args:
        drawn: SVG of dot.
        digest: of the source.
    """
    box = re.search(r'viewBox="([^"]+)"', drawn)
    assert box is not None
    width = float(box[1].split()[2])
    inner = drawn[drawn.index("<g id") : drawn.rindex("</svg>")]
    inner = re.sub(r"<title>.*?</title>\n|<!--.*?-->\n", "", inner, flags=re.DOTALL)
    inner = re.sub(r' id="[^"]*"', "", inner)
    inner = inner.replace('"black"', '"currentColor"')
    inner = re.sub(r"<text ", '<text fill="currentColor" ', inner)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="{box[1]}" '
        f'width="{width * 4 / 3:.0f}" style="max-width:100%;height:auto">\n'
        f"<!-- of {digest} -->\n<style>{_STYLE}</style>\n{inner}</svg>\n"
    )


def inlined(text: str, folder: Path) -> str:
    """A page's text in which each drawing lies itself, so that it takes the page's colours.

    Args:
        text: Markdown; `![what it shows](NAME.svg)`, alone on a line, is a drawing.
        folder: of the page.
    """

    def put(found: re.Match[str]) -> str:
        svg = (folder / found[2]).read_text()
        label = html.escape(found[1], quote=True)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        lines = [line for line in svg.splitlines() if line.strip()]
        return f'<div class="drawing" markdown="0">\n{chr(10).join(lines)}\n</div>'

    return _PICTURE.sub(put, text)


def main() -> int:
    """Draws what is stale; 1 if it cannot be."""
    try:
        for source in filter(is_stale, sources()):
            draw(source)
    except StaleDrawing as error:
        print(f"drawings: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
