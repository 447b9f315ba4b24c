"""Each verb of a client, called with arguments by chance, and what must come of it.

Above it: service_machine.py, which is one. Below it: hps.RemoteParameterServer, service_model.py.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import hps
from hps.checkpoint.names import text_of
from hps.contracts.updates import RowUpdate
from hps.service.messages.table_messages import to_message
from hps.v1 import parameter_server_pb2 as pb
from tests.torture.service_model import (
    Floats,
    Keys,
    KnownCheckpoint,
    Model,
    ModelViolation,
    Table,
    table_named,
    universe,
)

_NAMES = tuple(f"t{number}" for number in range(5))
_TAGS = (None, None, "a", "b", "c")
_ACKS = ("memory", "logged", "durable")
_MOST_KEYS = 24

CHANGES = (
    "push", "push_async", "apply", "assign", "erase", "pull_create", "create_table", "checkpoint",
    "delete_checkpoint", "restore", "half_create", "half_restore", "advance_period",
)  # fmt: skip
READS = (
    "pull", "pull_async", "contains", "num_rows", "items", "digest", "stats", "checkpoints",
    "checkpoint_state", "flush", "flush_all", "reopen", "refused", "statistics",
)  # fmt: skip
VERBS = CHANGES + READS


class Verbs(ABC):
    """The calls.

    Args:
        model: what the service must hold.
        chance: of all arguments.
        tallies: gets what happened.
    """

    def __init__(self, model: Model, chance: random.Random, tallies: Counter[str]) -> None:
        self.model, self.chance, self.tallies = model, chance, tallies
        self.is_killed = False
        self.is_in_memory = False  # a change since the last flush was acknowledged there
        self._universe = universe()
        self._digests: dict[Any, str] = {}
        self._count = 0

    @abstractmethod
    def client(self) -> Any:
        """A client to call; another one each time, perhaps."""

    @abstractmethod
    def note(self, words: str) -> None:
        """Says what is being called."""

    @abstractmethod
    def others(self, client: Any) -> list[Any]:
        """The clients that are open, but for one."""

    @abstractmethod
    def let_others_go(self, client: Any) -> None:
        """All clients but one are closed, whatever becomes of that."""

    @abstractmethod
    def await_shards(self) -> None:
        """Until nothing dies any more, and all shards listen."""

    def call(self, verb: str) -> None:
        """Calls one; nothing if there is no table yet for it."""
        if not self.model.tables and verb not in ("create_table", "reopen", "stats"):
            verb = "create_table"
        self.tallies[verb] += 1
        getattr(self, f"_{verb}")(self.client())

    # Arguments.

    def _table(self) -> Table:
        table = self.model.tables[self.chance.choice(list(self.model.tables))]
        self.note(table.config.name)
        return table

    def _keys(self, least: int = 1) -> Keys:
        """Some keys, a few of them twice."""
        count = self.chance.randint(least, _MOST_KEYS)
        places = [self.chance.randrange(len(self._universe)) for _ in range(count)]
        return self._universe[places]

    def _whole(self, rows: int, width: int, least: int = -3) -> Floats:
        numbers = [self.chance.randint(least, 3) for _ in range(rows * width)]
        return np.array(numbers, np.float32).reshape(rows, width)

    def _labels(self, count: int) -> Floats | None:
        if self.chance.random() < 0.3:
            return None
        return np.array([self.chance.randint(0, 1) for _ in range(count)], np.float32)

    def _ack(self) -> str:
        ack = self.chance.choice(_ACKS)
        self.is_in_memory |= ack == "memory"
        return ack

    def _expect(self, found: Any, expected: Any, what: str) -> None:
        if not np.array_equal(np.asarray(found), np.asarray(expected)):
            raise ModelViolation(f"{what}: {found}, must be {expected}")

    # Changes.

    def _push(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        grads = self._whole(len(keys), table.config.dim)
        labels = self._labels(len(keys))
        client.push(table.config.name, keys, grads, ack=self._ack(), labels=labels)
        table.push(keys, grads, labels)

    def _advance_period(self, client: Any) -> None:
        by_one, period = self.chance.random() < 0.5, self.model.period
        to = period + 1 if by_one else period + self.chance.randint(1, 3)
        self.note(str(to))
        self._expect(client.advance_period(None if by_one else to), to, "advance_period")
        self.model.begin_period(to)
        self._expect(client.period, to, "period")

    def _push_async(self, client: Any) -> None:
        sent = []
        for _ in range(self.chance.randint(2, 6)):
            table, keys = self._table(), self._keys()
            grads = self._whole(len(keys), table.config.dim)
            name, labels = table.config.name, self._labels(len(keys))
            sent.append(client.push_async(name, keys, grads, ack=self._ack(), labels=labels))
            table.push(keys, grads, labels)
        for one in sent:
            one.result()

    def _apply(self, client: Any) -> None:
        names = self.chance.sample(list(self.model.tables), min(2, len(self.model.tables)))
        updates = []
        for name in names:
            keys = self._keys()
            grads = self._whole(len(keys), self.model.tables[name].config.dim)
            labels = self._labels(len(keys))
            clicks = None if labels is None else labels.astype(np.uint8)
            updates.append(RowUpdate(name, keys, grads, clicks=clicks))
        told: list[str] = []
        client.apply(updates, lambda: told.append("applied"))
        self._expect(told, ["applied"], "apply")
        for update in updates:
            self.model.tables[update.table].push(update.keys, update.grads, update.clicks)

    def _assign(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        rows = self._whole(len(keys), table.config.dim)
        states = None
        if self.chance.random() < 0.5:
            states = self._whole(len(keys), table.state_floats, least=1)
        client.assign(table.config.name, keys, rows, states, ack=self._ack())
        table.assign(keys, rows, states)

    def _erase(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        expected = table.erase(keys)
        try:
            found = client.erase(table.config.name, keys, ack=self._ack())
        except hps.RemoteError as error:
            if not (self.is_killed and "was lost" in str(error)):
                raise
            self.tallies["answers of erases lost"] += 1
            return
        self._expect(found, expected, "erase")

    def _pull_create(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        table.create(keys)
        found = client.pull(table.config.name, keys, create=True)
        self._expect(found, table.pull(keys), "pull(create=True)")

    def _create_table(self, client: Any) -> None:
        asked = table_named(self.chance.choice(_NAMES), self.chance.random() < 0.3)
        self.note(f"{asked.name}, dim {asked.dim}")
        held = self.model.tables.get(asked.name)
        if held is not None and held.config != asked:
            words = f"its dim is {held.config.dim}, requested is {asked.dim}"
            self._expect_refusal(lambda: client.create_table(asked), hps.RemoteError, words)
            self.tallies["tables refused"] += 1
            return
        is_new = client.create_table(asked)
        if is_new is not (held is None) and not (self.is_killed and held is None):
            raise ModelViolation(f"create_table said {is_new} of {asked.name}")
        if held is None:
            self._take_in(client, asked)

    def _take_in(self, client: Any, asked: hps.TableConfig) -> None:
        rows = client.pull(asked.name, self._universe)
        initial = dict(zip(self._universe.tolist(), rows, strict=True))
        self.model.tables[asked.name] = Table(asked, initial, period=self.model.period)
        self.let_others_go(client)

    def _checkpoint(self, client: Any) -> None:
        self._count += 1
        tag = self.chance.choice(_TAGS)
        model = {"step": self._count} if self.chance.random() < 0.3 else None
        # Always one: without both, a checkpoint takes over those that fit its rows.
        reader = {"batch": self._count}
        self.note(str(tag))
        for other in self.others(client):
            other.flush()
        client.checkpoint(tag, model=model, reader=reader)
        self.model.checkpoint(tag, (model, reader))
        self.model.check_checkpoints(client.checkpoints())

    def _name_of(self, checkpoint: KnownCheckpoint) -> str | int | None:
        is_by_id = checkpoint.tag is None or self.chance.random() < 0.5
        return checkpoint.id if is_by_id else checkpoint.tag

    def _delete_checkpoint(self, client: Any) -> None:
        if not self.model.checkpoints:
            return
        checkpoint = self.chance.choice(self.model.checkpoints)
        named = self._name_of(checkpoint)
        self.note(str(named))
        client.delete_checkpoint(named)
        self.model.checkpoints.remove(checkpoint)
        self.model.check_checkpoints(client.checkpoints())

    def _restore(self, client: Any) -> None:
        if not self.model.checkpoints:
            return
        checkpoint = self.chance.choice(self.model.checkpoints)
        if self.chance.random() < 0.5:
            checkpoint = min(self.model.checkpoints, key=lambda one: len(one.rows))
        if self.model.is_unnamed(checkpoint) and self.chance.random() < 0.5:
            named: Any = None
        else:
            named = self._name_of(checkpoint)
        self.note(str(named))
        if client.restore(named) != checkpoint.dense:
            raise ModelViolation(
                f"restore({named!r}) gave another dense side than {checkpoint.dense}"
            )
        self.tallies["restored"] += 1
        self.tallies["tables emptied"] += self.model.restore(checkpoint)
        for other in self.others(client):
            self._expect_end(other)
        self.let_others_go(client)

    def _expect_end(self, client: Any) -> None:
        """The session of a client has ended with another one's restore, if it had one."""
        table, keys = self._table(), self._keys()
        if not any(session.window.incarnation for session in client._connections.sessions):
            return
        try:
            client.push(table.config.name, self._universe, self._whole(60, table.config.dim))
        except hps.RemoteError:
            self.tallies["sessions ended"] += 1
            return
        raise ModelViolation(f"a push of {len(keys)} keys was taken after another's restore")

    def _half_create(self, client: Any) -> None:
        """A client makes a table on shard 0 and dies; the next one is told, and repairs it."""
        names = [name for name in _NAMES if name not in self.model.tables]
        if not names:
            return
        asked = table_named(names[0], self.chance.random() < 0.3)
        self.note(f"{asked.name}, dim {asked.dim}")
        request = pb.CreateTableRequest(table=to_message(asked))
        client._connections.ask_all(
            "CreateTable", request, pb.CreateTableReply, client._connections.sessions[:1]
        )
        self.let_others_go(None)
        client = self.client()
        self._expect_refusal(
            lambda: client.pull(asked.name, self._universe), hps.ConfigError, "not on all shards"
        )
        other = table_named(asked.name, asked.dim == 4)
        self._expect_refusal(
            lambda: client.create_table(other),
            hps.RemoteError,
            f"its dim is {asked.dim}, requested",
        )
        if not client.create_table(asked) and not self.is_killed:
            raise ModelViolation(f"{asked.name} was on shard 0 alone, and was not made on shard 1")
        self.tallies["tables half made"] += 1
        self._take_in(client, asked)

    def _half_restore(self, client: Any) -> None:
        """A client restores one shard and dies; nobody can use them until all are restored."""
        if not self.model.checkpoints:
            return
        checkpoint = client._checkpoints.parts.find(self.chance.choice(self.model.checkpoints).id)
        number = self.chance.randrange(2)
        info, session = checkpoint.parts[number], client._connections.sessions[number]
        request = pb.RestoreRequest(
            tag=text_of(info.id), group=info.group, lineage=f"half-{info.id}"
        )
        self.note(f"{info.id} of shard {number}")
        client.flush()
        client._connections.ask_each("Restore", [request], pb.RestoreReply, [session])
        if number == 0:  # which tells what the rows descend from
            self.model.current = next(one for one in self.model.checkpoints if one.id == info.id)
        self.let_others_go(None)
        client = self.client()
        self._expect_refusal(
            lambda: client.num_rows(self._table().config.name),
            hps.RemoteError,
            "different checkpoints",
        )
        self._restore(client)
        self.tallies["half restored"] += 1

    def _expect_refusal(self, call: Callable[[], Any], kind: type[Exception], words: str) -> None:
        try:
            call()
        except kind as error:
            if words in str(error):
                return
            raise
        raise ModelViolation(f"it was not refused as {words!r}")

    # Reads.

    def _pull(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        self._expect(client.pull(table.config.name, keys), table.pull(keys), "pull")

    def _pull_async(self, client: Any) -> None:
        asked = [(self._table(), self._keys()) for _ in range(3)]
        sent = [client.pull_async(table.config.name, keys) for table, keys in asked]
        for (table, keys), one in zip(asked, sent, strict=True):
            self._expect(one.result(), table.pull(keys), "pull_async")

    def _contains(self, client: Any) -> None:
        table, keys = self._table(), self._keys()
        expected = [key in table.rows for key in keys.tolist()]
        self._expect(client.contains(table.config.name, keys), expected, "contains")

    def _num_rows(self, client: Any) -> None:
        table = self._table()
        self._expect(client.num_rows(table.config.name), len(table.rows), "num_rows")

    def _items(self, client: Any) -> None:
        self.check_table(client, self._table().config.name)

    def _statistics(self, client: Any) -> None:
        self._expect(client.period, self.model.period, "period")
        counting = [table for table in self.model.tables.values() if table.config.statistics]
        for table in counting:
            keys = self._keys()
            found = client.statistics(table.config.name, keys)
            told = [found[name] for name in ("show", "click", "last_period")]
            self._expect(told, table.statistics(keys), f"statistics of {table.config.name}")

    def check_table(self, client: Any, name: str) -> None:
        """All rows of a table, with their states."""
        batch = self.chance.choice([1, 7, 65536])
        table = self.model.tables[name]
        counts = table.config.statistics
        pieces = self.until_read(
            lambda: list(client.items(name, batch=batch, state=True, statistics=counts))
        )
        table.check_items(pieces)

    def until_read(self, read: Callable[[], Any]) -> Any:
        """A stream that a kill has broken is begun again, as a user would."""
        try:
            return read()
        except hps.RemoteError:
            if not self.is_killed:
                raise
        self.tallies["streams broken"] += 1
        self.await_shards()
        return read()

    def _digest(self, client: Any) -> None:
        table = self._table()
        found = client.digest(table.config.name)
        frozen = table.frozen()
        if self._digests.setdefault(frozen, found) != found:
            raise ModelViolation(f"digest of {table.config.name} is {found}, was another")
        if len(set(self._digests.values())) < len({one[1:] for one in self._digests}):
            raise ModelViolation(
                f"digest {found} of {table.config.name} is that of other rows, too"
            )

    def count_automatic(self, stats: dict[str, Any]) -> None:
        """Counts checkpoints that the servers took by themselves since they started."""
        self.tallies["automatic checkpoints"] += stats["service"]["checkpoints"]

    def _stats(self, client: Any) -> None:
        stats = client.stats()
        self.count_automatic(stats)
        self._expect(sorted(stats["tables"]), sorted(self.model.tables), "stats")
        self._expect(stats["service"]["failure"], "", "failure")

    def _checkpoints(self, client: Any) -> None:
        self.model.check_checkpoints(client.checkpoints())

    def _checkpoint_state(self, client: Any) -> None:
        expected: tuple[Any, Any] = (None, None)
        named = None
        if self.model.checkpoints:
            checkpoint = self.chance.choice(self.model.checkpoints)
            expected, named = checkpoint.dense, checkpoint.id
        if client.checkpoint_state(named) != expected:
            raise ModelViolation(f"checkpoint_state({named}) is not {expected}")

    def _flush(self, client: Any) -> None:
        client.flush(durable=self.chance.random() < 0.5)

    def _flush_all(self, client: Any) -> None:
        client.flush_all(durable=self.chance.random() < 0.5)

    def _reopen(self, client: Any) -> None:
        client.close()
        self.let_others_go(None)

    def _refused(self, client: Any) -> None:
        """Bad calls change nothing."""
        table, keys = self._table(), self._keys()
        bad = np.full((len(keys), table.config.dim), np.nan, np.float32)
        for call, error in (
            (lambda: client.push(table.config.name, keys, bad), hps.NonFiniteError),
            (lambda: client.push("nothing", keys, bad), hps.ConfigError),
            (lambda: client.push(table.config.name, keys, bad[:, 1:]), hps.ConfigError),
            (lambda: client.restore("nothing"), hps.ConfigError),
            (lambda: client.delete_checkpoint("nothing"), hps.ConfigError),
        ):
            self._expect_refusal(call, error, "")
