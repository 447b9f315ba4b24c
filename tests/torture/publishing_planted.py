"""Bugs planted in publishers and followers that get killed: the recipe must find each.

Above it: publishing_worker.py, publishing_kills.py. Below it: hps, of which each replaces a method
in the process that is killed. docs/reliability.md lists them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hps.publish import publisher
from hps.train import published_rows
from hps.train.follower import Follower

_LATE_SECONDS = 0.1


class LateData:
    """A destination whose files of data come to be a while after the version that names them."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._late: dict[str, bytearray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    @contextmanager
    def write(self, name: str) -> Iterator[Any]:
        self._late[name] = bytearray()
        late = self._late[name]

        class Memory:
            def write(self, data: Any) -> int:
                late.extend(memoryview(data).cast("B"))
                return len(data)

            def flush(self) -> None:
                pass

        yield Memory()

    def settle(self, names: Sequence[str]) -> None:
        """They are not there yet."""

    def create(self, name: str, data: bytes, after: Sequence[str] = ()) -> None:
        self._place.create(name, data)
        time.sleep(_LATE_SECONDS)
        for path, content in self._late.items():
            with self._place.write(path) as stream:
                stream.write(content)
        self._late.clear()


def _visible_first(worker: Any) -> None:
    """A version is seen before its data is there."""
    found = publisher.open_destination
    publisher.open_destination = lambda place: LateData(found(place))


def _acknowledged_early(worker: Any) -> None:
    """A version is told of before the call that makes it has returned."""
    publish_once = worker.publish_once

    def publish(server: Any, place: str, model: Any, number: int, ledger: Any) -> None:
        ledger.acknowledge(ledger.acknowledged[0] + 1, number)
        publish_once(server, place, model, number, ledger)

    worker.publish_once = publish


def _removals_forgotten(worker: Any) -> None:
    """A follower leaves keys that went as they were."""
    read = published_rows.Changes.read.__func__  # type: ignore[attr-defined]

    def without(cls: Any, version: Any, paths: Any) -> Any:
        found = read(cls, version, paths)
        found.removed = []
        return found

    published_rows.Changes.read = classmethod(without)  # type: ignore[method-assign,assignment]


def _swap_open(worker: Any) -> None:
    """Requests read the store's rows while a version's are put there."""
    published_rows.PublishedRows.overlays = lambda self, changes: {}  # type: ignore[method-assign]
    apply = published_rows.PublishedRows.apply

    def slowly(self: Any, version: Any, changes: Any, is_read: bool = False) -> None:
        time.sleep(0.02)
        apply(self, version, changes, is_read)

    published_rows.PublishedRows.apply = slowly  # type: ignore[method-assign]


def _cache_ahead(worker: Any) -> None:
    """The local copy says that it is of a version before it has its rows."""
    apply = published_rows.PublishedRows.apply

    def early(self: Any, version: Any, changes: Any, is_read: bool = False) -> None:
        mark = {"version": version.number, "sha256": version.sha256}
        self.server.checkpoint(reader=mark)
        apply(self, version, changes, is_read)

    published_rows.PublishedRows.apply = early  # type: ignore[method-assign]


def _rollback_stays(worker: Any) -> None:
    """A server says that it has gone back to a version, and has not."""
    Follower.go_to = lambda self, number: self.stop()  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class PublishingPlant:
    """A planted bug.

    Args:
        put_in: replaces methods; given the module of the worker.
        who: has it: "publisher" or "server".
    """

    put_in: Callable[[Any], None]
    who: str


PLANTED = {
    "visible-first": PublishingPlant(_visible_first, "publisher"),
    "version-acknowledged-early": PublishingPlant(_acknowledged_early, "publisher"),
    "removals-forgotten": PublishingPlant(_removals_forgotten, "server"),
    "swap-open": PublishingPlant(_swap_open, "server"),
    "cache-ahead": PublishingPlant(_cache_ahead, "server"),
    "rollback-stays": PublishingPlant(_rollback_stays, "server"),
}
