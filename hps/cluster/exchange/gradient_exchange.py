"""GradientExchange: a step of all ranks, from the gradients of each to its owner's share of them.

Above it: cluster/parameter_server.py, which applies what comes. Below it: sums.py (of this rank's
occurrences, on the host; device_sums.py where rows lie on a device), the control channel (what the
ranks are about to send, and whether all of it is finite). No gradient travels, and so no row
changes, before every rank knows that no rank refuses.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hps.cluster.exchange.cluster_rows import ClusterRows
from hps.cluster.exchange.key_exchange import (
    AnyOwnKeys,
    Division,
    ExchangedKeys,
    OwnKeys,
    swap_keys,
)
from hps.cluster.exchange.sums import Summed, Sums
from hps.cluster.world.world import Counts, World, counts_by_rank
from hps.common.arrays import AnyArray, HostArray
from hps.common.bags import BagPooling
from hps.common.occurrences import Occurrences, Words
from hps.config import TableConfig
from hps.contracts.updates import RowUpdate, by_table, join_updates, joined_clicks
from hps.errors import ConfigError, HpsError, NonFiniteError, no_such_table

_NOTHING, _BY_KEY = -1, 0  # what a rank sends of a table; above 0: the round of its pinned rows
_NO_TABLE = -1
_HEAD = 3  # words of a head before its tables: the refused table and key, what may overflow
_WORDS = 3  # a table, of a head: what it sends, how many rows, the learning rate


@dataclass(eq=False, slots=True)
class Share:
    """One table's part of a step on this rank.

    Args:
        kind: _NOTHING, _BY_KEY, or the round whose rows `rows` are.
        part: keys, sums, and what is to be told of them.
        rows: of the round.
        counted: of a table with statistics uint32 [N, 2], shows and clicks of each key here.
    """

    kind: int
    part: Summed
    rows: ClusterRows | None = None
    counted: Words | None = None

    @property
    def table(self) -> str:
        """Its name."""
        return self.part.table

    @property
    def own(self) -> AnyOwnKeys:
        """The keys."""
        return self.part.own


@dataclass(eq=False, slots=True)
class OwnedUpdate:
    """What came to this rank for the keys of one table that it owns.

    Args:
        keys: that the ranks sent gradients of, rank after rank; where the rows lie.
        rows: pinned for exactly these keys, of the round; None: they are not pinned yet.
        counts: int64 [ranks], keys of each rank.
        share: what this rank sends.
    """

    keys: AnyArray
    rows: ClusterRows | None
    counts: Counts
    share: Share


class GradientExchange:
    """Sums, agrees and sends; every rank calls the same verbs in the same order.

    Args:
        world: the ranks.
        tables: of the server.
        rates: learning rates by table.
        device: where gradients lie, as torch names it.
        division: of keys that no round has.
        sums: of gradients, where they lie.
    """

    def __init__(
        self,
        world: World,
        tables: Mapping[str, TableConfig],
        rates: Mapping[str, float],
        device: str,
        division: Division,
        sums: Sums,
    ) -> None:
        self._world = world
        self._tables = tables
        self._rates = rates
        self._device = device
        self._division = division
        self.sums = sums
        self.may_overflow = False  # what the ranks last agreed to send

    def forget_residuals(self) -> None:
        """At a checkpoint, and a restore, on every rank: what follows is then what follows it."""
        self.sums.forget()

    def shares(self, updates: Sequence[RowUpdate]) -> list[Share]:
        """This rank's sums, of every table; waits for no other rank.

        Raises:
            ConfigError: as `hps.ParameterServer.apply`.
        """
        groups = by_table(updates)
        for table in groups:
            if table not in self._tables:
                raise no_such_table(table, "there are", self._tables)
        given = {table: self._given(table, group) for table, group in groups.items()}
        bare = {table: keys for table, (keys, *_, rows) in given.items() if rows is None}
        bare |= {table: np.empty(0, np.uint64) for table in self._tables if table not in groups}
        divided = self._division.divide(bare) if bare else {}
        shares = []
        for table in self._tables:
            if table not in groups:
                shares.append(self._nothing(table, divided[table]))
                continue
            _, grads, pooling, rows = given[table]
            own = divided[table] if rows is None else rows.keys.own
            kind = _BY_KEY if rows is None else rows.keys.number
            held = rows if kind != _BY_KEY else None
            share = Share(kind, Summed(table, own, grads, pooling), held)
            if self._tables[table].statistics:
                assert isinstance(own, OwnKeys), "tables with statistics lie on the host"
                share.counted = np.stack(own.plan.count(joined_clicks(groups[table])), axis=1)
            shares.append(share)
        self.sums.add_up([share.part for share in shares if share.kind != _NOTHING])
        return shares

    def _given(
        self, table: str, group: list[RowUpdate]
    ) -> tuple[AnyArray, AnyArray, BagPooling | None, ClusterRows | None]:
        """Keys, gradients, bags and pinned rows of one table's updates."""
        keys, grads, pooling = join_updates(group, self._tables[table].dim, self._device)
        return keys, grads, pooling, self._pinned(group, group[0].keys)

    def _nothing(self, table: str, own: AnyOwnKeys) -> Share:
        """Of a table of which this rank has no gradient."""
        none = np.empty((0, self._tables[table].dim), np.float32)
        share = Share(_NOTHING, Summed(table, own, none, None))
        if self._tables[table].statistics:
            share.counted = np.empty((0, 2), np.uint32)
        return share

    def agree(self, shares: list[Share]) -> list[OwnedUpdate]:
        """What all ranks are about to send; nothing has changed yet.

        Raises:
            NonFiniteError: a sum of a rank is NaN or infinite; on every rank, of the lowest one.
            ConfigError: the learning rates differ, on every rank.
        """
        heads = self._exchange_heads(shares)
        self._raise_refused(heads)
        self.may_overflow = bool(heads[:, 2].any())
        return self._owned(shares, heads)

    def send(self, owned: list[OwnedUpdate]) -> list[torch.Tensor]:
        """The gradients that came for each of `owned`, float32 [n, D], rank after rank."""
        if not owned:
            return []
        outgoing = counts_by_rank([update.share.own.counts for update in owned])
        incoming = counts_by_rank([update.counts.tolist() for update in owned])
        return self.sums.send([update.share.part for update in owned], outgoing, incoming)

    def send_occurrences(self, owned: list[OwnedUpdate]) -> list[Occurrences | None]:
        """What came for the keys of each of `owned`, rank after rank: how many occurrences, whole
        numbers, each stands for; None of a table without statistics.

        Cost: one message a rank for all tables that count, 8 bytes a key; none without any.
        """
        counting = [update for update in owned if update.share.counted is not None]
        if not counting:
            return [None] * len(owned)
        size = self._world.size
        parts = [
            np.split(_words_of(update.share), np.cumsum(update.share.own.counts)[:-1])
            for update in counting
        ]
        sent = np.concatenate([of[rank] for rank in range(size) for of in parts])
        outgoing = np.array([update.share.own.counts for update in counting]).sum(axis=0)
        incoming = np.array([update.counts for update in counting])  # [tables, ranks]
        came = self._world.control.exchange(
            torch.from_numpy(sent), outgoing.tolist(), incoming.sum(axis=0).tolist()
        ).numpy()
        pieces = np.split(came, np.cumsum(incoming.T.reshape(-1))[:-1])  # rank after rank
        words = {
            update.share.table: np.concatenate(pieces[place :: len(counting)])
            for place, update in enumerate(counting)
        }
        found = [words.get(update.share.table) for update in owned]
        return [None if of is None else _occurrences_of(of) for of in found]

    def _pinned(self, group: list[RowUpdate], keys: AnyArray) -> ClusterRows | None:
        rows = group[0].rows
        if len(group) > 1 or rows is None:
            return None
        is_known = isinstance(rows, ClusterRows) and rows.table == group[0].table
        if is_known and not rows.is_released and rows.are_of(keys):
            assert isinstance(rows, ClusterRows)
            return rows
        raise ConfigError(
            f"apply: the rows given for table {group[0].table!r} were released, or are those of "
            "other keys or of another server; pass rows=None to have them looked up"
        )

    def _exchange_heads(self, shares: list[Share]) -> Counts:
        """Of every rank: what it refuses, then of each table what it sends here."""
        size = self._world.size
        heads = np.zeros((size, _HEAD + _WORDS * len(shares)), np.int64)
        heads[:, 0] = _NO_TABLE
        for index, share in enumerate(shares):
            if share.part.refused >= 0 and heads[0, 0] == _NO_TABLE:
                heads[:, 0] = index
                heads[:, 1] = share.own.unique_keys.view(np.int64)[share.part.refused]
            first = _HEAD + _WORDS * index
            heads[:, 2] |= share.part.may_overflow
            rate = struct.pack("<d", self._rates[share.table])
            heads[:, first] = share.kind
            heads[:, first + 1] = share.own.counts
            heads[:, first + 2] = struct.unpack("<q", rate)[0]
        single = [1] * size
        return self._world.control.exchange(torch.from_numpy(heads), single, single).numpy()

    def _raise_refused(self, heads: Counts) -> None:
        names = list(self._tables)
        for rank, head in enumerate(heads):
            if head[0] != _NO_TABLE:
                key = int(np.int64(head[1]).view(np.uint64))
                refusal: HpsError = NonFiniteError(
                    f"rank {rank}, table {names[head[0]]!r}, key {key}: the summed gradient is NaN "
                    "or infinite (or too large for the format it travels in); no row was changed "
                    "on any rank. Look for a diverged loss, or skip the step as "
                    "torch.amp.GradScaler does"
                )
                refusal.is_shared = True
                raise refusal
        for index, table in enumerate(names):
            bits = heads[:, _HEAD + 2 + _WORDS * index]
            if (bits != bits[0]).any():
                rates = [struct.unpack("<d", struct.pack("<q", word))[0] for word in bits.tolist()]
                refusal = ConfigError(
                    f"table {table!r}: the ranks' learning rates differ: {rates} (by rank); run "
                    "the same program, with the same options, on every rank"
                )
                refusal.is_shared = True
                raise refusal

    def _owned(self, shares: list[Share], heads: Counts) -> list[OwnedUpdate]:
        """The tables that a rank has gradients of, with the keys they are of."""
        by_key: dict[str, AnyOwnKeys] = {}
        counts_of = {}
        pinned: dict[str, ClusterRows] = {}
        for index, share in enumerate(shares):
            first = _HEAD + _WORDS * index
            kinds, counts = heads[:, first], heads[:, first + 1]
            if (kinds == _NOTHING).all():
                continue
            counts_of[share.table] = counts
            if share.rows is not None and (kinds == share.kind).all():
                pinned[share.table] = share.rows
            else:
                by_key[share.table] = share.own
        asked = [counts_of[table] for table in by_key]
        swapped: dict[str, ExchangedKeys] = {}
        if by_key:
            came = swap_keys(self._world.control, by_key, np.array(asked).T)
            swapped = self._division.at_rows(came)
        of_table = {share.table: share for share in shares}
        owned = []
        for table, counts in counts_of.items():
            rows = pinned.get(table)
            keys: ExchangedKeys = swapped[table] if rows is None else rows.keys
            owned.append(OwnedUpdate(keys.at_rows, rows, counts, of_table[table]))
        return owned


def _words_of(share: Share) -> HostArray:
    """Shows and clicks of a share's keys as they travel: int64 [N]."""
    assert share.counted is not None
    words: HostArray = np.ascontiguousarray(share.counted).view(np.int64).reshape(-1)
    return words


def _occurrences_of(words: HostArray) -> Occurrences:
    """What words that came say."""
    counted = np.ascontiguousarray(words).view(np.uint32).reshape(-1, 2)
    return Occurrences.smallest(counted[:, 0].copy(), counted[:, 1].copy())
