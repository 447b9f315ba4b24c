"""Pushes: gradients that are summed here and sent, outright and as steps of several tables.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
division.py, plans.py (which key goes where), rounds.py (changes committed to several shards), the
memory of messages. A key's gradients are summed by the core's own loops before they travel, or by
the shard where they travel as they are.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np

from hps import _C
from hps.common.arrays import HOST, AnyArray, HostArray, as_floats, as_keys, as_labels
from hps.common.forked import refuse_in_children
from hps.common.occurrences import Occurrences, Words
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Floats, Keys
from hps.common.wire import Bytes, Wire, check_range, encode
from hps.config import TableConfig
from hps.contracts.updates import RowUpdate, by_table, join_updates, joined_clicks
from hps.errors import ConfigError, NonFiniteError, RemoteError
from hps.service.client.connections import Connections
from hps.service.client.division import KeyDivision
from hps.service.client.options import ack_number, number_of
from hps.service.client.plans import RemoteRows
from hps.service.client.pulls import Pulls
from hps.service.client.rounds import Commit, commit
from hps.service.client.session import Session
from hps.service.client.shards import Shards
from hps.service.client.window import LOGGED, Draft
from hps.service.messages.in_place import MessagePool, OpenMessage
from hps.v1 import parameter_server_pb2 as pb


class Pushes:
    """Push and apply.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        division: of keys into messages.
        plans: of keys by shard.
        pulls: knows the rows that were pinned for a step.
    """

    def __init__(
        self,
        connections: Connections,
        shards: Shards,
        division: KeyDivision,
        plans: PlanPool,
        pulls: Pulls,
    ) -> None:
        self._connections = connections
        self._config = connections.config
        self._shards = shards
        self._division = division
        self._plans = plans
        self._pulls = pulls
        self._messages = MessagePool()
        refuse_in_children(self, connections.where, ("_plans", "_messages"), RemoteError)

    def push(
        self, table: str, keys: AnyArray, grads: AnyArray, ack: str, labels: AnyArray | None
    ) -> None:
        """As `RemoteParameterServer.push`."""
        self.finish(self.begin(table, keys, grads, ack, labels))

    def apply(
        self, updates: Sequence[RowUpdate], applied: Callable[[], object] | None = None
    ) -> None:
        """As `RemoteParameterServer.apply`."""
        groups = by_table(updates)
        what = f"step of tables {sorted(groups)}"
        plans: list[_C.ShardPlan] = []
        try:
            drafts: list[tuple[Session, Draft]] = []
            # Scores of another table admit as they were before the step: so that one comes later.
            for table in sorted(groups, key=self._names_no_other):
                drafts += self._drafts_of(table, groups[table], plans)
            with self._connections.waiting():
                sent = commit(drafts, self._connections.until(), what, applied) if drafts else None
        finally:  # the drafts were views of the plans
            for plan in plans:
                self._plans.give(plan)
        if sent is not None:
            with self._connections.waiting():
                sent.wait()
        elif applied is not None:
            applied()

    def _names_no_other(self, table: str) -> bool:
        rule = self._shards.table(table, "apply").admission
        return rule is None or rule.by is None

    def begin(
        self,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        ack: str,
        labels: AnyArray | None = None,
    ) -> Commit | None:
        """Sends a push; what waits for it, or None where there is no key."""
        config = self._shards.table(table, "push")
        dim = config.dim
        level = ack_number(ack)
        plans: list[_C.ShardPlan] = []
        array = as_keys(keys)
        floats = as_floats(grads, len(array), dim, "grads")
        flags = None if labels is None else as_labels(labels, len(array), "labels")
        clicks = flags if config.statistics else None
        is_exact = self._config.push_format is Wire.FLOAT32  # else what travels must be the sum
        try:
            if is_exact and self._division.go_whole(array, _key_bytes(config) + 4 * dim):
                counted = Occurrences.of_labels(clicks)
                drafts = [self._push_whole(table, array, floats, counted, level)]
            else:
                update = RowUpdate(table, array, floats, clicks=clicks)
                drafts = self._drafts_of(table, [update], plans, level)
            until = self._connections.until()
            return commit(drafts, until, f"push to table {table!r}") if drafts else None
        finally:  # the drafts were views of the plans
            for plan in plans:
                self._plans.give(plan)

    def finish(self, sent: Commit | None) -> None:
        """Waits until it is known what became of a push that was begun."""
        if sent is not None:
            sent.wait()

    def _drafts_of(
        self, table: str, group: list[RowUpdate], taken: list[_C.ShardPlan], level: int = LOGGED
    ) -> list[tuple[Session, Draft]]:
        """One table's updates, summed a key; adds the plans that it takes to `taken`."""
        config = self._shards.table(table, "apply")
        dim = config.dim
        array, floats, pooling = join_updates(group, dim, HOST)
        if not len(array):
            return []
        rows = group[0].rows
        with rows.lock if isinstance(rows, RemoteRows) else nullcontext():
            plan = self._plan_of(group, array)
            if plan is None:
                plan = self._plans.take(array)
                taken.append(plan)
            if pooling is None:
                bad = plan.sum_gradients(floats)
            else:
                bad = plan.sum_bag_gradients(*pooling.arguments(HOST), floats)
            if bad < 0:
                sums = plan.sums(dim)
                bad = check_range(sums, self._config.push_format)
            if bad >= 0:
                raise _non_finite(table, int(plan.unique_keys[bad]), self._config.push_format)
            counted = plan.count(joined_clicks(group)) if config.statistics else None
            return self._push_drafts(config, plan, sums, counted, level)

    def _plan_of(self, group: list[RowUpdate], keys: Keys) -> _C.ShardPlan | None:
        """The plan that was made ahead for exactly these keys."""
        rows = group[0].rows
        if len(group) > 1 or rows is None:
            return None
        if not isinstance(rows, RemoteRows) or not self._pulls.holds(rows) or rows.is_released:
            raise ConfigError(
                f"apply: the rows given for table {group[0].table!r} were released, or are those "
                "of another server; pass rows=None to have them looked up"
            )
        if rows.table != group[0].table or not rows.are_of(keys):
            raise ConfigError(f"apply: the rows given for table {rows.table!r} are of other keys")
        return rows.held_plan()

    def _push_drafts(
        self,
        table: TableConfig,
        plan: _C.ShardPlan,
        sums: Floats,
        counted: tuple[Words, Words] | None,
        level: int,
    ) -> list[tuple[Session, Draft]]:
        """Args: counted: shows and clicks of the plan's distinct keys, where the table counts."""
        wire, dim = self._config.push_format, sums.shape[1]
        drafts = []
        key_bytes = _key_bytes(table) + wire.num_bytes(1, dim)
        for session, keys, first in self._division.pieces(plan, key_bytes):
            occurrences = Occurrences()
            if counted is not None:
                parts = [part[first : first + len(keys)] for part in counted]
                occurrences = Occurrences.smallest(*parts)
            draft, grads = self._open_push(session, table.name, keys, occurrences, level)
            encode(sums[first : first + len(keys)], wire, grads)
            drafts.append((session, draft))
        return drafts

    def _push_whole(
        self, table: str, keys: Keys, grads: Floats, occurrences: Occurrences, level: int
    ) -> tuple[Session, Draft]:
        """A push of keys that go whole; the shard sums where one repeats."""
        session = self._connections.sessions[0]
        draft, out = self._open_push(session, table, keys, occurrences, level)
        with self._plans.lent() as plan:
            bad = plan.copy_gradients(grads, out)
        if bad >= 0:
            raise _non_finite(table, int(keys[bad]), Wire.FLOAT32)
        return session, draft

    def _open_push(
        self, session: Session, table: str, keys: Keys, occurrences: Occurrences, level: int
    ) -> tuple[Draft, Bytes]:
        """A push whose gradients are still to be written: to where it says, as they travel."""
        wire, dim = self._config.push_format, self._shards.tables[table].dim
        head = pb.PushRequest(
            table=table,
            ack=number_of(level),
            lr=self._shards.learning_rates[table],
            wire=number_of(wire),
            dim=dim,
            lineage=session.lineage,
        )
        arrays: list[tuple[int, HostArray | None]] = [
            (10, occurrences.shows),
            (11, occurrences.clicks),
            (14, keys),
        ]
        written = [(number, array) for number, array in arrays if array is not None]
        sizes = [(number, array.nbytes) for number, array in written]
        sizes.append((15, wire.num_bytes(len(keys), dim)))
        message = OpenMessage(head, sizes, self._messages)
        for place, (_, array) in zip(message.arrays, written, strict=False):
            place[:] = np.ascontiguousarray(array).view(np.uint8)
        what = f"push of {len(keys)} keys to table {table!r}"
        return Draft("Push", head, message, level, what), message.arrays[-1]


def _key_bytes(table: TableConfig) -> int:
    """Of a key in a push, and of what it may stand for."""
    return 16 if table.statistics else 8


def _non_finite(table: str, key: int, wire: Wire) -> NonFiniteError:
    where = f"table {table!r}, key {key}: the summed gradient is NaN or infinite"
    if wire is not Wire.FLOAT32:
        where += f", or too large for {wire.name.lower()}"
    return NonFiniteError(
        f"{where}; no row was changed. Look for a diverged loss, or skip the step as "
        "torch.amp.GradScaler does"
    )
