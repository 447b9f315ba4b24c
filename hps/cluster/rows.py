"""RowVerbs: rows that the ranks pull, push, pin and step together, each owned by one of them.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
exchanges.py (what travels), cluster/world/together.py (what all ranks do as one), the rank's own
server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hps.cluster.exchange.cluster_rows import ClusterRows
from hps.cluster.exchange.fetched import OwnedRows
from hps.cluster.exchange.gradient_exchange import OwnedUpdate
from hps.cluster.exchange.key_exchange import ExchangedKeys
from hps.cluster.exchanges import Exchanges
from hps.cluster.world.together import Together
from hps.common.arrays import AnyArray, as_keys, as_labels, as_output, is_tensor, to_host
from hps.contracts.reads import PooledRead, in_order, in_words
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.parameter_server.server import ParameterServer
from hps.types import PinnedRows, Pins

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling


class RowVerbs:
    """Pull, push, pin, apply.

    Args:
        local: the server of this rank, which holds the rows that it owns.
        together: all ranks.
        exchanges: of keys, rows and gradients between them.
    """

    def __init__(self, local: ParameterServer, together: Together, exchanges: Exchanges) -> None:
        self._local = local
        self._together = together
        self._exchanges = exchanges
        self.num_steps = 0  # that were applied

    def make_room(self, exchanged: Mapping[str, ExchangedKeys]) -> None:
        """Sees to it that a device has memory for the sums of this rank's gradients by those keys.

        Raises:
            BatchMemoryError: it has not.
        """
        self._exchanges.make_room([keys.own for keys in exchanged.values()])

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """As `ClusterParameterServer.pull`."""
        if self._together.is_alone:
            return self._local.pull(table, keys, out, create)
        array, dim = as_keys(keys, self._local.device), self._exchanges.table(table).dim
        rows = self._exchanges.fetcher.new_rows(len(array), dim) if out is None else out
        as_output(rows, len(array), dim, self._local.device)
        exchanged = self._exchanges.swap_keys({table: keys})[table]
        if create:
            self._exchanges.rows_change()
        found = self._together.agreed(
            f"pull of table {table!r}",
            lambda: self._local.pull(table, exchanged.at_rows, create=create),
        )
        with self._together.block("pull"):
            self._exchanges.fetcher.fetch(OwnedRows(exchanged, found, dim), rows)
        if out is None and is_tensor(rows) and not is_tensor(keys):
            return rows.cpu().numpy()
        return rows

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """As `ClusterParameterServer.pull_pooled`."""
        self.pull_tables([PooledRead(table, keys, pooling, out)])

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As `ClusterParameterServer.pull_tables`."""
        if self._together.is_alone:
            return self._local.pull_tables(reads)
        if not reads:
            return
        ordered = in_order(reads)
        tables = [read.table for read in ordered]
        pinned = {read.table: self._pinned(read) for read in ordered if read.rows is not None}
        bare = {read.table: self._checked(read) for read in ordered if read.rows is None}
        owned: dict[str, OwnedRows] = {}
        if bare:
            exchanged = self._exchanges.swap_keys(bare)
            found = self._together.agreed(
                f"pull of {in_words(list(bare))}",
                lambda: {
                    table: self._local.pull(table, keys.at_rows)
                    for table, keys in exchanged.items()
                },
            )
            owned = {
                table: OwnedRows(exchanged[table], rows, self._exchanges.table(table).dim)
                for table, rows in found.items()
            }
        owned |= {table: rows.owned() for table, rows in pinned.items()}
        with self._together.block("pull"):
            self._exchanges.fetcher.fetch_pooled(
                [owned[table] for table in tables],
                [read.pooling for read in ordered],
                [read.out for read in ordered],
            )

    def _checked(self, read: PooledRead) -> AnyArray:
        """The keys of a read, which fit."""
        self._check_read(read, len(as_keys(read.keys, self._local.device)))
        return read.keys

    def _pinned(self, read: PooledRead) -> ClusterRows:
        """The rows of a read, which are pinned."""
        rows = read.rows
        if not isinstance(rows, ClusterRows) or not self.holds(rows) or rows.table != read.table:
            raise ConfigError(
                f"pull_tables: the rows given for table {read.table!r} are those of another table "
                "or server"
            )
        self._check_read(read, rows.num_occurrences)
        rows.require_held()
        return rows

    def _check_read(self, read: PooledRead, num_keys: int) -> None:
        dim, device = self._exchanges.table(read.table).dim, self._local.device
        read.pooling.check(num_keys, f"pull_tables: table {read.table!r}")
        as_output(read.out, len(read.out), read.out.shape[1] // dim * dim, device)

    def push(
        self, table: str, keys: AnyArray, grads: AnyArray, labels: AnyArray | None = None
    ) -> None:
        """As `ClusterParameterServer.push`."""
        if self._together.is_alone:
            return self._local.push(table, keys, grads, labels)
        self._exchanges.table(table)
        clicks = None if labels is None else as_labels(labels, len(keys), "labels")
        owned = self._begin([RowUpdate(table, keys, grads, clicks=clicks)])
        self._exchanges.rows_change()
        with self._together.block("push"):
            sums = self._exchanges.gradients.send(owned)
            counted = self._exchanges.gradients.send_occurrences(owned)
        if owned:
            (update,), (grads_of,), (occurrences,) = owned, sums, counted
            what = f"push to table {table!r}"
            if self._exchanges.gradients.may_overflow or self._exchanges.are_on_device:
                check = self._exchanges.gradients.may_overflow
                held: list[PinnedRows] = []
                try:
                    (rows,) = self._local_rows([update], held)
                    whole = [RowUpdate(table, update.keys, grads_of, rows, occurrences=occurrences)]
                    with self._together.block(what):
                        self._local.apply(whole, None, self._check_together if check else None)
                finally:
                    for rows in held:
                        rows.release()
                return
            push = self._local.parts.rows.push
            self._together.agreed(
                what, lambda: push(table, update.keys, grads_of, None, occurrences)
            )

    def pin(self, table: str, keys: AnyArray | ExchangedKeys) -> PinnedRows:
        """As `ClusterParameterServer.pin`."""
        if isinstance(keys, ExchangedKeys):
            exchanged = keys
        elif self._together.is_alone:
            return self._local.pin(table, keys)
        else:
            self._exchanges.table(table)
            exchanged = self._exchanges.swap_keys({table: keys})[table]
        return self.rows_of(table, exchanged, self._local.pin(table, exchanged.at_rows))

    def rows_of(self, table: str, exchanged: ExchangedKeys, local: PinnedRows) -> ClusterRows:
        """The batch of which the received keys' rows are pinned here."""
        hot = None if self._exchanges.hot is None else self._exchanges.hot.tables[table]
        dim = self._exchanges.table(table).dim
        return ClusterRows(table, exchanged, local, self._exchanges.fetcher, dim, hot)

    def warm(self, table: str, keys: AnyArray | ExchangedKeys) -> Pins:
        """As `ClusterParameterServer.warm`."""
        return self._local.warm(table, _received(keys))

    def want(self, table: str, keys: AnyArray | ExchangedKeys) -> None:
        """As `ClusterParameterServer.want`."""
        self._local.want(table, _received(keys))

    def holds(self, rows: PinnedRows) -> bool:
        """As `ClusterParameterServer.holds`."""
        if isinstance(rows, ClusterRows):
            return rows.fetcher is self._exchanges.fetcher
        return self._together.is_alone and self._local.holds(rows)

    def apply(
        self, updates: Sequence[RowUpdate], applied: Callable[[], object] | None = None
    ) -> None:
        """As `ClusterParameterServer.apply`."""
        if self._together.is_alone:
            return self._local.apply(updates, applied)
        for update in updates:
            if update.rows is not None and not self.holds(update.rows):
                raise ConfigError(
                    f"apply: the rows given for table {update.table!r} are those of another "
                    "server; pass rows=None to have them looked up"
                )
        owned = self._begin(updates)
        held: list[PinnedRows] = []
        try:
            local = self._local_rows(owned, held)
            with self._together.block("apply"):
                sums = self._exchanges.gradients.send(owned)
                counted = self._exchanges.gradients.send_occurrences(owned)
                self._local.apply(
                    [
                        RowUpdate(of.share.table, of.keys, grads, rows, occurrences=stands_for)
                        for of, grads, rows, stands_for in zip(
                            owned, sums, local, counted, strict=True
                        )
                    ],
                    applied,
                    self._check_together if self._exchanges.gradients.may_overflow else None,
                )
                if self._exchanges.hot is not None:
                    self._exchanges.hot.step_done(
                        {of.share.table: to_host(of.keys) for of in owned}
                    )
            self.num_steps += 1
        finally:
            for rows in held:
                rows.release()

    def _begin(self, updates: Sequence[RowUpdate]) -> list[OwnedUpdate]:
        shares = self._exchanges.gradients.shares(updates)
        for share in shares:
            share.part.may_overflow |= self._local.parts.batches.tries_updates(share.table)
        with self._together.block("apply"):
            return self._exchanges.gradients.agree(shares)

    def _check_together(self, check: Callable[[], None]) -> None:
        """Of a step that may overflow a row: no rank changes one before all have looked."""
        self._together.agreed("apply", check)

    def _local_rows(self, owned: Sequence[OwnedUpdate], held: list[PinnedRows]) -> list[PinnedRows]:
        """The pinned rows of updates' keys; those that are not are pinned, on every rank, and added
        to `held`, which was empty."""
        bare = [update for update in owned if update.rows is None]

        def pin() -> None:
            for update in bare:
                held.append(self._local.parts.batches.pin_now(update.share.table, update.keys))

        if bare:
            tables = [update.share.table for update in bare]
            self._together.agreed(f"pin of {in_words(tables)}", pin)
        new = iter(held)
        return [next(new) if one.rows is None else one.rows.local for one in owned]


def _received(keys: AnyArray | ExchangedKeys) -> AnyArray:
    return keys.received if isinstance(keys, ExchangedKeys) else keys
