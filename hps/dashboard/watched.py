"""Watched: the targets of `--watch` by their words, each with a name of its own and a source.

Above it: hps/cli/dashboard.py, collector.py. Below it: sources.py, fetch.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hps.common.url_text import hidden_url
from hps.dashboard.fetch import Credentials, Fetcher
from hps.dashboard.sources import EndpointSource, RunSource, Source, StoreSource
from hps.errors import ConfigError, StoreError
from hps.report.history import FIGURES, LINES
from hps.service.messages.addresses import is_loopback, split_address
from hps.ssd_store import engine_of
from hps.ssd_store.cluster.catalog import Catalog

MOST_TARGETS = 64
_SCHEMES = {"http": False, "https": True}
_EXAMPLE = "127.0.0.1:9100"
_ADDRESS = re.compile(r"(?:\[[^\]/]+\]|[^/:\[\]]+):\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How targets are asked.

    Args:
        credentials: that they are shown.
        seconds: that an answer may take.
        allow_insecure: send the token to other machines in the clear.
    """

    credentials: Credentials
    seconds: float = 3.0
    allow_insecure: bool = False


@dataclass(frozen=True)
class Watched:
    """One target.

    Args:
        name: short, and no other's.
        where: what was given.
        open: makes its source; raises as `Source.read` while it is not there.
    """

    name: str
    where: str
    open: Callable[[], Source]


def parse_watched(words: Sequence[str], asking: Asking) -> list[Watched]:
    """The targets of the words of `--watch`: addresses, folders of runs, stores.

    Args:
        words: each with commas between several.
        asking: how they are asked.

    Raises:
        ConfigError: none, too many, one that is named twice or can be none of the three, or a token
            that would travel in the clear.

    >>> asking = Asking(credentials=Credentials())
    >>> [one.name for one in parse_watched(["127.0.0.1:9100,runs/a", "runs/b"], asking)]
    ['127.0.0.1:9100', 'a', 'b']
    """
    parts = [part.strip() for word in words for part in word.split(",")]
    targets = [part for part in parts if part]
    if not targets:
        raise ConfigError(f"--watch names nothing; give {_EXAMPLE}, a run's folder or a store")
    if len(targets) > MOST_TARGETS:
        raise ConfigError(f"--watch names {len(targets)} targets; {MOST_TARGETS} at most")
    made = [(_of_address(one, asking) or _of_folder(one)) for one in targets]
    seen: dict[str, str] = {}
    for (same, _), target in zip(made, targets, strict=True):
        if same in seen:
            also = "" if seen[same] == target else f", also as {seen[same]}"
            raise ConfigError(f"--watch names {target} twice{also}; leave one out")
        seen[same] = target
    names = _names(targets)
    return [
        Watched(name, target, open_source)
        for name, target, (_, open_source) in zip(names, targets, made, strict=True)
    ]


Made = tuple[str, Callable[[], Source]]  # what is the same of equal targets, and the source


def _of_address(text: str, asking: Asking) -> Made | None:
    """None of what is no address."""
    scheme, found, rest = text.partition("://")
    if found and scheme not in _SCHEMES:
        raise ConfigError(
            f"--watch {hidden_url(text)}: nobody watches {scheme}://; give HOST:PORT or "
            "https://HOST:PORT of figures for Prometheus, a run's folder or a store"
        )
    address = rest.removesuffix("/").removesuffix("/metrics") if found else text
    if not found and (Path(text).exists() or not _ADDRESS.fullmatch(text)):
        return None
    host, port = split_address("--watch", address, _EXAMPLE)
    has_tls = _SCHEMES[scheme] if found else False
    shown = asking.credentials
    is_exposed = shown.token is not None and not has_tls and not is_loopback(host)
    if is_exposed and not asking.allow_insecure:
        raise ConfigError(
            f"--watch {text}: the token of --watch-token would travel in the clear; give "
            f"https://{address}, or --allow-insecure if the network is trusted"
        )
    context = shown.context() if has_tls else None
    fetcher = Fetcher(host, port, context=context, token=shown.token, seconds=asking.seconds)
    return f"{host}:{port}", lambda: EndpointSource(fetcher.get)


def _of_folder(text: str) -> Made:
    path = Path(text).absolute()
    if path.exists():
        _source_at(path)  # which says what is neither

    def open_source() -> Source:
        try:
            return _source_at(path)
        except ConfigError as error:
            raise StoreError(0, str(error)) from error

    return str(path.resolve()), open_source


def _source_at(path: Path) -> Source:
    """Of what lies there now.

    Raises:
        ConfigError: neither a run's folder nor a store. StoreError: nothing lies there.
    """
    if not path.exists():
        raise StoreError(0, "there is no such file or folder yet")
    if path.is_dir():
        if (path / LINES).exists() or (path / FIGURES).exists():
            return RunSource(path)
        if engine_of(path) is not None or Catalog.load(path) is not None:
            return StoreSource(path)
        if not any(path.iterdir()):
            raise StoreError(0, "the folder is empty so far")
    raise ConfigError(
        f"--watch {path}: it is neither the folder of a run ({LINES}, which 'hps train --report' "
        f"writes) nor a store; or give HOST:PORT, such as {_EXAMPLE}"
    )


def _names(targets: Sequence[str]) -> list[str]:
    """Short ones where they tell targets apart, else what was given."""
    short = [text if _is_address(text) else Path(text).absolute().name for text in targets]
    return [
        name if short.count(name) == 1 and name else text
        for name, text in zip(short, targets, strict=True)
    ]


def _is_address(text: str) -> bool:
    return "://" in text or _ADDRESS.fullmatch(text) is not None
