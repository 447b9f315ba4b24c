"""ShardTables: adds tables to a served store.

Above it: Shard, whose docstring says what `create_table` promises. Below it: core.py.
"""

from time import monotonic

from hps.checkpoint.names import AUTOMATIC
from hps.config import TableConfig
from hps.errors import CapacityError
from hps.service.shard.core import LONG, ServedStore
from hps.service.shard.location import ServedConfig, refuse_other, with_table


class ShardTables:
    """Of one served store."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store

    def create(self, table: TableConfig, timeout: float) -> bool:
        """As Shard.create_table."""
        deadline = monotonic() + timeout
        with self._store.gate.change(deadline):
            self._store.check_able()
            old = self._store.server.tables.get(table.name)
            if old is not None:
                refuse_other(old, table, f"create_table({table.name!r})")
                return False
            count, most = len(self._store.server.tables), self._store.options.max_tables
            if count >= most:
                raise CapacityError(
                    f"create_table({table.name!r}): there are {count} tables, "
                    f"and at most {most} may be"
                )
            config = self._store.server.config
            assert isinstance(config, ServedConfig)
            self._store.server.parts.logged.check_new_table(table)
            larger = with_table(config, table)
            self._store.save(AUTOMATIC, {}, "")
            with self._store.gate.alone(deadline):
                self._store.reopen(larger)
            try:
                self._store.save(AUTOMATIC, {}, "")
            except BaseException:
                # No opening would know the table that the log's records name.
                with self._store.gate.alone(monotonic() + LONG):
                    self._store.reopen(config)
                raise
            return True
