"""QueuedBatches: batches of several tables whose rows lie on a device, asked for together, so that
the host waits for all tables at once.

Above it: ParameterServer, and through it the Pipeline. Below it: batches.py, tiers/batch_rows.py.
"""

from collections.abc import Callable, Mapping

from hps.common.arrays import AnyArray
from hps.dram_cache.tier import WarmRows
from hps.parameter_server.batches import Batches
from hps.parameter_server.tables import Tables
from hps.types import PinnedRows, Pins


class QueuedBatches:
    """As QueuedServer has it.

    Args:
        tables: of the server; their top tiers are on a device.
        batches: of the server, for a table at a time.
    """

    def __init__(self, tables: Tables, batches: Batches) -> None:
        self._tables = tables
        self._batches = batches

    def warming(self, keys: Mapping[str, AnyArray]) -> Callable[[str, AnyArray], Pins]:
        """As QueuedServer has it."""
        unique = {table: self._batches.distinct(table, given) for table, given in keys.items()}
        with self._tables.lock:
            asked = {
                table: self._tables.stacks[table].ask(of_table)
                for table, of_table in unique.items()
            }
        # The last one first: the others have come by then.
        found = {table: asked[table]() for table in reversed(asked)}

        def warm(table: str, given: AnyArray) -> WarmRows:
            return self._batches.warm_missing(table, unique[table], found[table])

        return warm

    def pinning(self, keys: Mapping[str, AnyArray]) -> Callable[[str, AnyArray], PinnedRows]:
        """As QueuedServer has it."""
        stacks = {table: self._tables.stack(table) for table in keys}
        for stack in stacks.values():
            stack.raise_failed(wait=False)
        with self._tables.lock:
            begun = {
                table: self._batches.look_up_ahead(table, given) for table, given in keys.items()
            }
        for table in list(reversed(begun))[:1]:
            begun[table].end_look_up()

        def pin(table: str, given: AnyArray) -> PinnedRows:
            rows = begun.pop(table)
            rows.place()
            return rows

        return pin
