"""GradientExchange: a step of all ranks, from the gradients of each to its owner's share of them.

Above it: cluster/parameter_server.py, which applies what comes. Below it: `hps._C.ShardPlan` (sums
of this rank's occurrences), the control channel (what the ranks are about to send, and whether all
of it is finite), float_exchange.py. No gradient travels, and so no row changes, before every rank
knows that no rank refuses.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hps.cluster.exchange.cluster_rows import ClusterRows
from hps.cluster.exchange.device_pooling import spread_gradients
from hps.cluster.exchange.device_rows import sums_of
from hps.cluster.exchange.float_exchange import FloatExchange
from hps.cluster.exchange.key_exchange import ExchangedKeys, OwnKeys, swap_keys
from hps.cluster.exchange.residuals import Residuals
from hps.cluster.world.world import Counts, World
from hps.common.arrays import HOST, HostArray, on_host
from hps.common.bags import BagPooling
from hps.common.occurrences import Occurrences, Words
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Floats, Keys
from hps.common.wire import Wire, check_range, decode, encode
from hps.config import TableConfig
from hps.contracts.updates import RowUpdate, by_table, join_updates, joined_clicks
from hps.errors import ConfigError, HpsError, NonFiniteError, no_such_table

# Sums beyond it are refused as if they were infinite: divided by their number and rounded, those of
# up to 4096 ranks below it cannot add up to an infinity at their owner.
LARGEST_SUM = 2.0**128 * (1 - 2.0**-8)
_NOTHING, _BY_KEY = -1, 0  # what a rank sends of a table; above 0: the round of its pinned rows
_NO_TABLE = -1
_HEAD = 3  # words of a head before its tables: the refused table and key, what may overflow
_ORDINARY = 2.0**20  # gradients that overflow no row; see csrc/optimizer/safe_gradient.h
_WORDS = 3  # a table, of a head: what it sends, how many rows, the learning rate


@dataclass(eq=False, slots=True)
class Share:
    """One table's part of a step on this rank.

    Args:
        table: its name.
        kind: _NOTHING, _BY_KEY, or the round whose rows `rows` are.
        own: the keys.
        sums: float32 [N, D], owner after owner; already divided by the number of ranks.
        rows: of the round.
        refused: a place in `sums` of a row that must not travel, or -1.
        may_overflow: the ranks must agree that the step leaves all rows finite before one applies.
        counted: of a table with statistics uint32 [N, 2], shows and clicks of each key here.
    """

    table: str
    kind: int
    own: OwnKeys
    sums: torch.Tensor
    rows: ClusterRows | None = None
    refused: int = -1
    may_overflow: bool = False
    counted: Words | None = None


@dataclass(eq=False, slots=True)
class OwnedUpdate:
    """What came to this rank for the keys of one table that it owns.

    Args:
        keys: that the ranks sent gradients of, rank after rank.
        rows: pinned for exactly these keys, of the round; None: they are not pinned yet.
        counts: int64 [ranks], keys of each rank.
        share: what this rank sends.
    """

    keys: Keys
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
        wire: how gradients travel.
    """

    def __init__(
        self,
        world: World,
        tables: Mapping[str, TableConfig],
        rates: Mapping[str, float],
        device: str,
        wire: Wire,
    ) -> None:
        self._world = world
        self._tables = tables
        self._rates = rates
        self._device = device
        self._floats = FloatExchange(world.rows, wire)
        self.may_overflow = False  # what the ranks last agreed to send
        is_narrow = wire is not Wire.FLOAT32
        self._residuals = {
            name: Residuals(table.dim) for name, table in tables.items() if is_narrow
        }

    def forget_residuals(self) -> None:
        """At a checkpoint, and a restore, on every rank: what follows is then what follows it."""
        for residuals in self._residuals.values():
            residuals.clear()

    def shares(self, updates: Sequence[RowUpdate], plans: PlanPool) -> list[Share]:
        """This rank's sums, of every table; waits for no other rank.

        Raises:
            ConfigError: as `hps.ParameterServer.apply`.
        """
        groups = by_table(updates)
        for table in groups:
            if table not in self._tables:
                raise no_such_table(table, "there are", self._tables)
        return [self._share(table, groups.get(table, []), plans) for table in self._tables]

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
        for update in owned:
            self._keep_residual(update.share)
        outgoing = np.array([update.share.own.counts for update in owned]).T
        incoming = np.array([update.counts for update in owned]).T
        return self._floats.swap([update.share.sums for update in owned], outgoing, incoming)

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

    def _share(self, table: str, group: list[RowUpdate], plans: PlanPool) -> Share:
        dim = self._tables[table].dim
        if not group:
            none = torch.empty(0, dim, device=self._device)
            nothing = OwnKeys(np.empty(0, np.uint64), plans)
            share = Share(table, _NOTHING, nothing, none)
            if self._tables[table].statistics:
                share.counted = np.empty((0, 2), np.uint32)
            return share
        keys, grads, pooling = join_updates(group, dim, self._device)
        rows = self._pinned(group, keys)
        own = OwnKeys(on_host(keys), plans) if rows is None else rows.keys.own
        kind = _BY_KEY if rows is None else rows.keys.number
        sums = self._sum(own, grads, pooling, dim)
        if table in self._residuals:
            kept = torch.from_numpy(self._residuals[table].of(own.plan.unique_keys))
            sums.add_(kept.to(sums.device))
        held = rows if kind != _BY_KEY else None
        counted = None
        if self._tables[table].statistics:
            counted = np.stack(own.plan.count(joined_clicks(group)), axis=1)
        return Share(table, kind, own, sums, held, *self._look_at(sums), counted)

    def _pinned(self, group: list[RowUpdate], keys: Keys) -> ClusterRows | None:
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

    def _sum(
        self, own: OwnKeys, grads: Floats, pooling: BagPooling | None, dim: int
    ) -> torch.Tensor:
        """Sums by key, divided by the number of ranks."""
        plan, size = own.plan, self._world.size
        if not plan.num_unique:
            return torch.empty(0, dim, device=self._device)
        if isinstance(grads, torch.Tensor):
            if pooling is not None:
                grads = spread_gradients(grads, pooling, plan.num_occurrences)
            return sums_of(grads, own.places(self._device), plan.num_unique).div_(size)
        if pooling is None:
            plan.sum_gradients(grads)
        else:
            plan.sum_bag_gradients(*pooling.arguments(HOST), grads)
        return torch.from_numpy(plan.sums(dim) / np.float32(size)).to(self._device)

    def _keep_residual(self, share: Share) -> None:
        """What the format is about to round away."""
        residuals = self._residuals.get(share.table)
        if residuals is not None and len(share.sums):
            sums, wire = share.sums.cpu().numpy(), self._floats.wire
            sent = decode(encode(sums, wire), len(sums), sums.shape[1], wire)
            residuals.keep(share.own.plan.unique_keys, sums - sent)

    def _look_at(self, sums: torch.Tensor) -> tuple[int, bool]:
        """The place of the first row that must not travel, or -1; and whether one may overflow."""
        flat = sums.view(-1)
        # One pass and no array: a value that must be refused makes its own square infinite.
        square = float(torch.dot(flat, flat))
        may_overflow = not square <= (_ORDINARY / self._world.size) ** 2
        return self._first_refused(sums, is_any=not math.isfinite(square)), may_overflow

    def _first_refused(self, sums: torch.Tensor, is_any: bool) -> int:
        if is_any:
            is_bad = ~(sums.abs() <= LARGEST_SUM / self._world.size).all(dim=1)
            if bool(is_bad.any()):
                return int(is_bad.nonzero()[0])
        if self._floats.wire is Wire.FLOAT16:
            return check_range(sums.cpu().numpy(), self._floats.wire)
        return -1

    def _exchange_heads(self, shares: list[Share]) -> Counts:
        """Of every rank: what it refuses, then of each table what it sends here."""
        size = self._world.size
        heads = np.zeros((size, _HEAD + _WORDS * len(shares)), np.int64)
        heads[:, 0] = _NO_TABLE
        for index, share in enumerate(shares):
            if share.refused >= 0 and heads[0, 0] == _NO_TABLE:
                heads[:, 0] = index
                heads[:, 1] = share.own.plan.unique_keys.view(np.int64)[share.refused]
            first = _HEAD + _WORDS * index
            heads[:, 2] |= share.may_overflow
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
        by_key: dict[str, OwnKeys] = {}
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
        swapped = swap_keys(self._world.control, by_key, np.array(asked).T) if by_key else {}
        of_table = {share.table: share for share in shares}
        owned = []
        for table, counts in counts_of.items():
            rows = pinned.get(table)
            keys: ExchangedKeys = swapped[table] if rows is None else rows.keys
            owned.append(OwnedUpdate(keys.received, rows, counts, of_table[table]))
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
