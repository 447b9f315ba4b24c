"""Which pages the site has, in which order, and the Markdown of each.

Above it: hooks.py, which hands them to mkdocs; tests/site/, which needs no mkdocs. Below it:
api.py, commands.py and messages.py, which make the pages that nobody writes by hand; links.py.

A page has a source (its path in the checkout, or "" where it is made) and a place (its path on the
site). Each page of docs/ has a place: one that NAVIGATION does not name is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.site import api, commands, messages

ROOT = Path(__file__).resolve().parents[2]
# Files beside docs/ that are pages, too: source -> place.
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "measuring.md",
}
# Title -> place, or a section of such. A pattern is all pages that match, under their own titles.
Section = dict[str, "str | Section"]
NAVIGATION: Section = {
    "Home": "index.md",
    "Get started": {
        "Install": "install.md",
        "Start in five minutes": "start.md",
    },
    "Tutorials": {
        "*": "tutorials/*.md",
    },
    "How to": {
        "Train": {
            "Training": "training.md",
            "Models": "models.md",
            "Features files": "features.md",
            "Formats of logs": "formats.md",
            "The life of a row": "life_cycle.md",
            "Narrow rows": "narrow_rows.md",
            "From TorchRec to hps": "from_torchrec.md",
        },
        "Publish and serve": {
            "Publish a model": "publishing.md",
            "Score requests": "serving.md",
        },
        "Servers and ranks": {
            "Run servers": "service.md",
            "Clients in other languages": "clients.md",
            "Train on several ranks": "cluster.md",
            "Size a cluster": "cluster_sizing.md",
        },
        "Run it": {
            "Dashboard": "dashboard.md",
            "Containers and clusters": "deployment.md",
        },
    },
    "Reference": {
        "Command line": "reference/commands.md",
        "Options of hps train": "options.md",
        "Python": {"*": "reference/python/*.md"},
        "Messages": {"*": "reference/messages/*.md"},
        "Versions and compatibility": "compatibility.md",
        "Figures": "benchmarks.md",
        "How figures are measured": "measuring.md",
    },
    "Explanations": {
        "Tiers": "explanation/tiers.md",
        "Exactness": "explanation/exactness.md",
        "Exactly once": "exactly_once.md",
        "The life of a row over servers": "life_cycle_kept.md",
        "What is promised, and proven": "reliability.md",
        "Architecture": "architecture.md",
        "Decisions": {
            "All decisions": "decisions/index.md",
            "*": "decisions/0*.md",
        },
    },
    "Internals": {
        "Files of a store": "ssd_store_format.md",
        "Files of the update log": "update_log_format.md",
        "Files of a cluster": "cluster_format.md",
        "Messages between ranks": "cluster_protocol.md",
        "The engine over RocksDB": "rocksdb_engine.md",
    },
    "Project": {
        "Contributing": "contributing.md",
        "Changes": "changelog.md",
        "What is next": "roadmap.md",
        "Security": "security.md",
    },
}
# The order in which tutorials are read; others follow by their names.
TUTORIALS = (
    "train_from_csv",
    "improve_a_model",
    "larger_than_memory",
    "daily_training",
    "publish_and_serve",
    "servers",
    "ranks",
    "gpu",
)


@dataclass(frozen=True)
class Page:
    """One page.

    Args:
        place: on the site, below its root.
        source: in the checkout; "" of a page that is made.
        text: Markdown, with links as the source has them.
    """

    place: str
    source: str
    text: str

    @property
    def title(self) -> str:
        """Its first heading."""
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))


def pages(root: Path = ROOT) -> dict[str, Page]:
    """Place -> page, of all pages of the site."""
    sources = {path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")}
    places = {source: source.removeprefix("docs/") for source in sorted(sources)} | OUTSIDE
    found = [Page(place, source, (root / source).read_text()) for source, place in places.items()]
    made = {
        "reference/commands.md": commands.page(),
        **{f"reference/python/{name}.md": text for name, text in api.pages().items()},
        **{f"reference/messages/{name}.md": text for name, text in messages.pages(root).items()},
    }
    found += [Page(place, "", text) for place, text in made.items()]
    return {page.place: page for page in found}


def navigation(known: dict[str, Page], section: Section | None = None) -> list[dict[str, object]]:
    """The site's navigation as mkdocs takes it: a list of {title: place or list}.

    Raises:
        ValueError: a place that there is no page for.
    """
    entries: list[dict[str, object]] = []
    for title, what in (NAVIGATION if section is None else section).items():
        if isinstance(what, dict):
            entries.append({title: navigation(known, what)})
        elif "*" in what:
            names = sorted((place for place in known if Path(place).match(what)), key=_order)
            entries += [{known[name].title: name} for name in names]
        elif what in known:
            entries.append({title: what})
        else:
            raise ValueError(f"the navigation names {what}, and there is no such page")
    return [entry for entry in entries if all(entry.values())]


def _order(place: str) -> tuple[int, str]:
    stem = Path(place).stem
    return (TUTORIALS.index(stem) if stem in TUTORIALS else len(TUTORIALS), place)


def places(entries: list[dict[str, object]]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in entries:
        for what in entry.values():
            if isinstance(what, list):
                yield from places(what)
            else:
                yield str(what)
