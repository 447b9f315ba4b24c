"""ShardTables: adds tables to a served store.

Above it: Shard, whose docstring says what `create_table` promises. Below it: core.py.
"""

from time import monotonic

from hps.checkpoint.names import AUTOMATIC
from hps.config import TableConfig
from hps.errors import CapacityError, MismatchError
from hps.service.shard.core import LONG, ServedStore
from hps.service.shard.location import ServedConfig, with_table

# What a table that is there must have as it is asked for.
_FIXED = (
    *("dim", "dtype", "optimizer", "initializer", "statistics"),
    *("expiry", "admission", "max_rows", "max_bytes", "rounding"),
)


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
                _check_same(old, table)
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


def _check_same(stored: TableConfig, asked: TableConfig) -> None:
    for part in _FIXED:
        old, new = getattr(stored, part), getattr(asked, part)
        is_same = old == new or (part == "rounding" and not stored.is_narrow)
        if part == "optimizer" and type(old) is type(new):
            is_same = old.without_lr() == new.without_lr()
        if not is_same:
            raise MismatchError(
                f"create_table({stored.name!r}): its {part} is {old!r}, requested is {new!r}; use "
                f"another name, or the stored one"
            )
