"""KeyExchange: rounds in which every rank divides its batch's keys by owner and tells each owner
which of its keys the batch uses.

Above it: cluster/exchanges.py, rounds.py; the pipeline's network stage, which asks for a round a
batch. Below it: the world's keys channel; common/sharding.py (the rule: which key is whose), which
`hps._C.ShardPlan` applies on the host, and gpu_cache/peers.py where rows lie on a device.
docs/cluster_protocol.md says what a round carries and how all ranks leave a pipeline after the same
batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.cluster.world.world import Channel, Counts
from hps.common.arrays import HOST, AnyArray, as_keys, on_host
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Keys
from hps.errors import ClusterError, ConfigError
from hps.gpu_cache.peer_keys import PeerKeys

# What a rank says in its head of a round: a batch follows; no other does; its loop is over.
_READS, _ENDS, _LEAVES = 0, 1, 2
_ABSENT = -1  # keys of a table that the batch does not have
MAX_IDLE_PLANS = 16  # that are kept for later


class OwnKeys:
    """The keys of one table of this rank's batch, deduplicated and divided over their owners.

    Args:
        keys: uint64 [L].
        plans: where the plan comes from, and goes with this object.
    """

    _plan: _C.ShardPlan | None = None  # where an interrupt ended the making

    def __init__(self, keys: Keys, plans: PlanPool) -> None:
        self._plans = plans
        self._plan = plans.take(keys)

    @property
    def plan(self) -> _C.ShardPlan:
        """The distinct keys, owner after owner."""
        assert self._plan is not None
        return self._plan

    @property
    def counts(self) -> list[int]:
        """Distinct keys of each owner."""
        starts = self.plan.starts
        return [end - start for start, end in pairwise(starts)]

    def of_rank(self, rank: int) -> Keys:
        """A view of the distinct keys of one owner."""
        starts = self.plan.starts
        return self.plan.unique_keys[starts[rank] : starts[rank + 1]]

    @property
    def num_occurrences(self) -> int:
        """L, keys with their repetitions."""
        return self.plan.num_occurrences

    @property
    def num_unique(self) -> int:
        """N, distinct keys."""
        return self.plan.num_unique

    @property
    def unique_keys(self) -> Keys:
        """Distinct keys, uint64 [N], owner after owner; a view."""
        return self.plan.unique_keys

    def matches(self, keys: AnyArray) -> bool:
        """True if these are the keys, byte for byte, in their order."""
        device = str(keys.device) if isinstance(keys, torch.Tensor) else HOST
        return self.plan.matches(on_host(as_keys(keys, device)))

    def places(self) -> NDArray[np.int64]:
        """Of each occurrence the place of its key, int64 [L]."""
        numbers = np.arange(self.num_unique, dtype=np.int64).view(np.float32).reshape(-1, 2)
        starts = self.plan.starts
        # The plan copies rows of floats; what bits they hold does not matter to it.
        places = np.empty((self.num_occurrences, 2), np.float32)
        self.plan.scatter([numbers[first:end] for first, end in pairwise(starts)], places)
        return places.view(np.int64).reshape(-1)

    def __del__(self) -> None:
        if self._plan is not None:
            self._plans.give(self._plan)


# Deduplicated and divided where the rows lie.
AnyOwnKeys = OwnKeys | PeerKeys


@dataclass(eq=False, slots=True)
class ExchangedKeys:
    """What one round says of one table.

    Args:
        number: of the round, from 1, the same on every rank; 0 outside the rounds of a pipeline.
        own: this rank's keys.
        received: uint64 [n], those that the ranks sent here because this one owns them: rank after
            rank, of each without repetitions.
        counts: received keys of each rank.
        there: the received keys on the device where the rows lie; None on the host.
    """

    number: int
    own: AnyOwnKeys
    received: Keys
    counts: list[int]
    there: torch.Tensor | None = None

    @property
    def at_rows(self) -> AnyArray:
        """The received keys where the rows lie."""
        return self.received if self.there is None else self.there


class Division(Protocol):
    """Where keys are deduplicated, divided, and looked up."""

    def divide(self, keys: Mapping[str, AnyArray]) -> dict[str, AnyOwnKeys]:
        """The keys of each table, deduplicated and divided over their owners."""

    def at_rows(self, exchanged: dict[str, ExchangedKeys]) -> dict[str, ExchangedKeys]:
        """What came, brought to where the rows lie."""


class HostDivision:
    """Keeps the contract on the host.

    Args:
        plans: of keys.
    """

    def __init__(self, plans: PlanPool) -> None:
        self._plans = plans

    def divide(self, keys: Mapping[str, AnyArray]) -> dict[str, AnyOwnKeys]:
        """As Division has it."""
        return {table: OwnKeys(on_host(as_keys(own)), self._plans) for table, own in keys.items()}

    def at_rows(self, exchanged: dict[str, ExchangedKeys]) -> dict[str, ExchangedKeys]:
        """As Division has it: they are there."""
        return exchanged


class KeyExchange:
    """The rounds of one rank. Used by one thread at a time.

    Args:
        channel: for keys, on the host.
        tables: of the server, in an order that all ranks share.
        division: how a batch's keys are deduplicated and divided.
    """

    def __init__(self, channel: Channel, tables: list[str], division: Division) -> None:
        self._channel = channel
        self._tables = tables
        self._division = division
        self.num_rounds = 0
        self.is_closed = True  # until a pipeline opens

    def open(self) -> None:
        """A pipeline begins: its rounds follow, up to the closing one."""
        self.is_closed = False

    def divide(self, keys: Mapping[str, AnyArray]) -> dict[str, AnyOwnKeys]:
        """Deduplicates the keys of each table, and finds their owners; waits for no other rank."""
        return self._division.divide({name: keys[name] for name in self._tables if name in keys})

    def exchange(self, own: Mapping[str, AnyOwnKeys] | None) -> dict[str, ExchangedKeys] | None:
        """One round; every rank takes part.

        Args:
            own: the keys of the rank's next batch, as `divide` gives them; None to end the exchange
                for all ranks.

        Returns:
            What each table's owner got, or None if a rank has ended it: no rank uses the batch.

        Raises:
            ClusterError: another rank is gone or does not answer.
            ConfigError: the ranks' batches are of different tables; on every rank.
        """
        if self.is_closed:
            return None
        self.num_rounds += 1
        heads = self._exchange_heads(_ENDS if own is None else _READS, own)
        self._refuse_apart(heads, [rank for rank, head in enumerate(heads) if head[0] == _LEAVES])
        if heads[:, 0].any():
            self.is_closed = True
            return None
        assert own is not None
        try:
            counts = counts_of_tables(heads, self._tables)
        except ConfigError:
            self.is_closed = True
            raise
        if not own:
            return {}
        return self._division.at_rows(swap_keys(self._channel, own, counts, self.num_rounds))

    def close(self) -> None:
        """The closing round, unless a rank has ended the exchange; no rank has another after it."""
        self.exchange(None)

    def meet(self) -> None:
        """Where all ranks have left a pipeline, or the training: returns when all have come.

        Raises:
            ClusterError: a rank has another batch to exchange, or is gone.
        """
        heads = self._exchange_heads(_LEAVES, None)
        self._refuse_apart(heads, [rank for rank, head in enumerate(heads) if head[0] != _LEAVES])

    def _refuse_apart(self, heads: Counts, others: list[int]) -> None:
        if others:
            self.is_closed = True
            does = "has left its loop" if heads[others[0], 0] == _LEAVES else "reads on"
            here = "reads on" if heads[self._channel.rank, 0] != _LEAVES else "has left its loop"
            raise ClusterError(
                f"rank {self._channel.rank}: rank {others[0]} {does} while this rank {here}; end "
                "the loops of all ranks after the same batch"
            )

    def _exchange_heads(self, says: int, own: Mapping[str, AnyOwnKeys] | None) -> Counts:
        return exchange_heads(self._channel, self._tables, own, says)


def exchange_heads(
    channel: Channel, tables: list[str], own: Mapping[str, AnyOwnKeys] | None, says: int = _READS
) -> Counts:
    """Of every rank: what it says, and how many keys of each table come here; int64 [ranks, 1 +
    tables]."""
    heads = np.full((channel.size, 1 + len(tables)), _ABSENT, np.int64)
    heads[:, 0] = says
    for column, table in enumerate(tables, 1):
        if own is not None and table in own:
            heads[:, column] = own[table].counts
    single = [1] * channel.size
    return channel.exchange(torch.from_numpy(heads), single, single).numpy()


def counts_of_tables(heads: Counts, tables: list[str]) -> Counts:
    """Keys that come from each rank, of the tables that there are; int64 [ranks, tables].

    Raises:
        ConfigError: the ranks have different tables; on every rank.
    """
    is_absent = heads[:, 1:] == _ABSENT
    differs = (is_absent != is_absent[0]).any(axis=0)
    if not differs.any():
        counts: Counts = heads[:, 1:][:, ~is_absent[0]]
        return counts
    column = int(np.flatnonzero(differs)[0])
    without = np.flatnonzero(is_absent[:, column]).tolist()
    refusal = ConfigError(
        f"the batches of ranks {without} have no table {tables[column]!r} and those of the others "
        "have; give every rank's batches the same tables, with no keys where there are none"
    )
    refusal.is_shared = True
    raise refusal


def swap_keys(
    channel: Channel, own: Mapping[str, AnyOwnKeys], counts: Counts, number: int = 0
) -> dict[str, ExchangedKeys]:
    """Sends each owner its keys of every table, in one message a rank.

    Args:
        channel: on the host.
        own: of the same tables on every rank, in the same order; at least one.
        counts: int64 [ranks, tables], keys that come from each rank.
        number: of the round.
    """
    size = channel.size
    outgoing = np.concatenate([keys.of_rank(rank) for rank in range(size) for keys in own.values()])
    sizes = np.array([keys.counts for keys in own.values()]).sum(axis=0).tolist()
    incoming = counts.sum(axis=1).tolist()
    tensor = channel.exchange(torch.from_numpy(outgoing.view(np.int64)), sizes, incoming)
    by_table = regrouped(tensor.numpy().view(np.uint64), counts)
    return {
        table: ExchangedKeys(number, keys, by_table[column], counts[:, column].tolist())
        for column, (table, keys) in enumerate(own.items())
    }


def regrouped(values: Keys, counts: Counts) -> list[Keys]:
    """What came rank after rank, of each table after table, as one array a table.

    Args:
        values: [sum of counts].
        counts: int64 [ranks, tables].

    >>> regrouped(np.array([1, 20, 21, 2, 22]), np.array([[1, 2], [1, 1]]))
    [array([1, 2]), array([20, 21, 22])]
    """
    num_tables = counts.shape[1]
    if num_tables == 1:
        return [values]
    pieces = np.split(values, counts.reshape(-1).cumsum()[:-1])
    return [np.concatenate(pieces[column::num_tables]) for column in range(num_tables)]
