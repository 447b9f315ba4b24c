"""Bugs planted in a server process: each must make a recipe of the service fail.

Above it: service_nursery.py, which puts one into a process that it has forked. Below it: the parts
of hps that each replaces there, so that no line of hps knows of it. docs/reliability.md lists them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from hps.checkpoint.blobs import described_tables
from hps.config import TableConfig
from hps.errors import StoreError
from hps.parameter_server import opening
from hps.parameter_server.logged import LoggedMutations
from hps.service.messages.framing import Frame, FramingError
from hps.service.shard import location
from hps.service.shard.core import ServedStore
from hps.service.shard.mutations import Mutations
from hps.service.shard.sessions import SessionOpener
from hps.update_log import History, Kind

_HELD_RECORDS = 3


class ChangedLog:
    """The update log, but for what a subclass does otherwise."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


class LateLog(ChangedLog):
    """Says that records are logged while it still holds the last few of them back."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self._held: list[list[bytes]] = []

    @property
    def appended(self) -> int:
        return int(self.log.appended) + len(self._held)

    logged = durable = appended

    def append(self, parts: Sequence[Any]) -> int:
        self._held.append([bytes(memoryview(part).cast("B")) for part in parts])
        self._let_go(_HELD_RECORDS)
        return self.appended

    def wait(self, number: int, durable: bool, timeout: float) -> bool:
        return True

    def cut(self, number: int) -> None:
        self._let_go(0)
        self.log.cut(number)

    def close(self) -> None:
        self._let_go(0)
        self.log.close()

    def _let_go(self, most: int) -> None:
        while len(self._held) > most:
            self.log.append(self._held.pop(0))


class ForgetfulLog(ChangedLog):
    """A replay that never sees the last record."""

    def read(self, max_bytes: int) -> list[tuple[int, bytes]]:
        return list(self.log.read(max_bytes)[:-1])


class DeafLog(ChangedLog):
    """Does not hear that a sync has failed."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self._invented = 0

    @property
    def appended(self) -> int:
        return max(int(self.log.appended), self._invented)

    logged = durable = appended

    def append(self, parts: Sequence[Any]) -> int:
        try:
            return int(self.log.append(parts))
        except StoreError:
            self._invented = self.appended + 1
            return self._invented

    def wait(self, number: int, durable: bool, timeout: float) -> bool:
        if number <= self._invented:
            return True
        try:
            return bool(self.log.wait(number, durable, timeout))
        except StoreError:
            return True


def _change_log(kind: type[ChangedLog]) -> None:
    """Every log that is opened is one of that kind."""
    open_log = History.open_log

    def opened(history: History, open_update_log: Any) -> Any:
        history.log = kind(open_log(history, open_update_log))
        return history.log

    History.open_log = opened  # type: ignore[method-assign]


def _forget_marks() -> None:
    """Marks are those of the checkpoint, whatever was replayed after it."""
    replay_log = opening.replay_log

    def replayed(parts: Any, history: History, *arguments: Any) -> None:
        marks = {name: session.mark for name, session in history.sessions}
        replay_log(parts, history, *arguments)
        for name, session in history.sessions:
            session.mark = marks.get(name, 0)

    opening.replay_log = replayed


def _tear_batches() -> None:
    """A replay applies the first half of a push."""
    change = LoggedMutations.change

    def changed(logged: LoggedMutations, mutation: Any, *log: Any) -> Any:
        if not log and len(mutation.keys) > 1:
            half = len(mutation.keys) // 2
            halves = {name: getattr(mutation, name)[:half].copy() for name in ("keys", "floats")}
            mutation = replace(mutation, **halves)
        return change(logged, mutation, *log)

    LoggedMutations.change = changed  # type: ignore[method-assign]


def _change_mutations(before: Callable[[ServedStore, Any, Any], None]) -> None:
    """Something is done before a change of a session that is known."""
    mutate = Mutations._mutate

    def mutated(mutations: Mutations, mutation: Any, *terms: Any) -> Any:
        store = mutations._store
        with store.gate.change(monotonic() + 60):
            session = store.history.sessions.get(mutation.identity.client_id)
            if session is not None:
                before(store, mutation, session)
        return mutate(mutations, mutation, *terms)

    Mutations._mutate = mutated  # type: ignore[method-assign]


def _apply_repeats(store: ServedStore, mutation: Any, session: Any) -> None:
    if mutation.identity.sequence <= session.mark:
        store.server.parts.logged.change(mutation)


def _apply_gaps(store: ServedStore, mutation: Any, session: Any) -> None:
    session.mark = max(session.mark, mutation.identity.sequence - 1)


def _lower_marks() -> None:
    """A client that asks how far it is hears, and gets, a mark that is one too low."""
    open_session = SessionOpener.open

    def opened(opener: SessionOpener, client_id: str, incarnation: int | None, *rest: Any) -> Any:
        store = opener._store
        with store.gate.change(monotonic() + 60):
            session = store.history.sessions.get(client_id)
            if incarnation is not None and session is not None:
                session.mark = max(0, session.mark - 1)
        return open_session(opener, client_id, incarnation, *rest)

    SessionOpener.open = opened  # type: ignore[method-assign]


def _expect_no_damage() -> None:
    """A message that cannot be read is taken for a fault of the program."""
    split = Frame.split

    def careless(frame: Any, data: bytes) -> Any:
        try:
            return split(frame, data)
        except FramingError as error:
            raise KeyError("a field") from error

    Frame.split = careless  # type: ignore[method-assign]


def _replay_pushes_alone() -> None:
    """A replay passes over assigns, erases and creates, but moves the marks."""
    change = LoggedMutations.change

    def changed(logged: LoggedMutations, mutation: Any, *log: Any) -> Any:
        if not log and mutation.kind != Kind.PUSH:
            return np.zeros(len(mutation.keys), np.uint8)
        return change(logged, mutation, *log)

    LoggedMutations.change = changed  # type: ignore[method-assign]


def _forget_tables() -> None:
    """An opening knows the tables of its checkpoint alone."""

    def known(path: Path, store: Any) -> tuple[list[TableConfig], list[TableConfig]]:
        return described_tables(store.extras(None)), []

    location.known_tables = known


@dataclass(frozen=True)
class Plant:
    """A planted bug: what puts it into the process."""

    put_in: Callable[[], None]


PLANTED = {
    "acknowledged-unlogged": Plant(lambda: _change_log(LateLog)),
    "replay-forgets": Plant(lambda: _change_log(ForgetfulLog)),
    "marks-forgotten": Plant(_forget_marks),
    "replay-torn": Plant(_tear_batches),
    "repeats-applied": Plant(lambda: _change_mutations(_apply_repeats)),
    "marks-told-low": Plant(_lower_marks),
    "gaps-applied": Plant(lambda: _change_mutations(_apply_gaps)),
    "pushes-alone": Plant(_replay_pushes_alone),
    "tables-forgotten": Plant(_forget_tables),
    "damage-unexpected": Plant(_expect_no_damage),
    "failed-sync-ignored": Plant(lambda: _change_log(DeafLog)),
}
