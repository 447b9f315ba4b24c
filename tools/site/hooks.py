"""What mkdocs calls while it builds the site: pages that are made, links, navigation, drawings.

Above it: mkdocs.yml. Below it: pages.py, links.py, drawings.py.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.site import drawings
from tools.site.links import PICTURES, Links
from tools.site.pages import ROOT, Page, navigation, pages

_known: dict[str, Page] = {}


def on_config(config: Any) -> Any:
    """The navigation."""
    _known.clear()
    _known.update(pages())
    config.nav = navigation(_known)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Pages that are not in docs/, and the pictures of benchmarks."""
    for place, page in _known.items():
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, content=page.text))
    for picture in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        place = f"{PICTURES}/{picture.name}"
        files.append(File.generated(config, place, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The site's links and drawings in place of the checkout's."""
    place = page.file.src_uri
    places = {one.source: one.place for one in _known.values() if one.source}
    texts = {one.place: one.text for one in _known.values()}
    source = _known[place].source
    text = Links(places, texts).rewritten(place, source, markdown)
    return drawings.inlined(text, ROOT / "docs" / Path(place).parent)


def on_post_build(config: Any) -> None:
    """The index of words once more, as a script: pages that are opened as files may read no other
    kind of file (docs/assets/worker.js)."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def on_post_page(output: str, **_: Any) -> str:
    """The page with what the theme leaves out for those who hear it; more is in site.js."""
    output = output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", output)
