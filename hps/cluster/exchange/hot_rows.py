"""HotRows: weights of the rows that most ranks ask for, kept on every rank.

Above it: cluster/parameter_server.py (which rows have changed), cluster_rows.py (reads them). Below
it: key_slots.py, the control channel (which), float_exchange.py (their rows). A gradient goes to
the row's owner as any other. After the step each owner sends every rank the hot rows that changed,
in the format of all rows: so a replica has the bits that a fetch would bring, and the choice
changes none.

Which rows are hot follows from what the owners are asked for, so it is the same on all ranks.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from hps.cluster.exchange.float_exchange import FloatExchange
from hps.cluster.exchange.key_slots import KeySlots
from hps.cluster.world.world import World
from hps.common.arrays import AnyArray
from hps.common.row_layout import Keys
from hps.parameter_server.server import ParameterServer

PERIOD_STEPS = 32  # between two choices
_SAMPLED_STEPS = 4  # of a period, the last ones: what was asked for then is counted
_SLOTS_A_ROW = 4  # so that few hot keys lose theirs to another


class HotTable:
    """The hot rows of one table, the same on every rank.

    Args:
        num_rows: at most.
        dim: of a row.
        device: where the rows lie, as torch names it.
    """

    def __init__(self, num_rows: int, dim: int, device: str) -> None:
        num_slots = _SLOTS_A_ROW * num_rows
        self.slots = KeySlots(num_slots)
        self.rows = torch.zeros(num_slots, dim, device=device)
        self.num_rows = num_rows
        self.dim = dim

    @property
    def is_empty(self) -> bool:
        """True if no row is hot."""
        return not self.slots.is_used.any()

    def find(self, keys: Keys) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Of keys [n] the places among `rows`, and whether they are hot."""
        return self.slots.find(keys)


class HotRows:
    """Of all tables.

    Args:
        world: the ranks.
        local: this rank's own server.
        floats: how rows travel.
        num_rows: of each table at most, on all ranks together.
    """

    def __init__(
        self, world: World, local: ParameterServer, floats: FloatExchange, num_rows: int
    ) -> None:
        self._world = world
        self._local = local
        self._floats = floats
        self.tables = {
            name: HotTable(num_rows, table.dim, local.device)
            for name, table in sorted(local.tables.items())  # in one order on all ranks
        }
        self._asked: dict[str, list[Keys]] = {name: [] for name in local.tables}
        self._num_steps = 0

    def clear(self) -> None:
        """No row is hot until the next choice: rows have changed by something else than a step."""
        for table in self.tables.values():
            table.slots.clear()

    def step_done(self, updated: dict[str, Keys]) -> None:
        """Brings every rank the hot rows that a step has changed; every rank calls it.

        Args:
            updated: by table the keys that the ranks sent gradients of, rank after rank.
        """
        self._num_steps += 1
        place = self._num_steps % PERIOD_STEPS
        if place == 0 or place > PERIOD_STEPS - _SAMPLED_STEPS:
            for name, keys in updated.items():
                self._asked[name].append(keys)
        if place == 0:
            self._choose()
            return
        changed = {}
        for name, table in self.tables.items():
            keys = updated.get(name, np.empty(0, np.uint64))
            if not table.is_empty:
                changed[name] = np.unique(keys[table.find(keys)[1]])
        if changed:
            self._send(changed)

    def _choose(self) -> None:
        """Each owner proposes the rows that were asked for most; all ranks take them."""
        size = self._world.size
        proposed = {}
        for name, table in self.tables.items():
            asked = self._asked[name]
            self._asked[name] = []
            everything = np.concatenate([np.empty(0, np.uint64), *asked])
            keys, counts = np.unique(everything, return_counts=True)
            # By how often, and by key where that is alike; half of the ranks at least.
            order = np.lexsort((keys, -counts))[: max(1, table.num_rows // size)]
            proposed[name] = keys[order[2 * counts[order] > size * _SAMPLED_STEPS]]
            table.slots.clear()
        self._send(proposed)

    def _send(self, keys: dict[str, Keys]) -> None:
        """Sends all ranks these keys of mine, and their rows as they are."""
        size, control = self._world.size, self._world.control
        counts = np.array([[len(of_table) for of_table in keys.values()]] * size)
        single = [1] * size
        incoming = control.exchange(torch.from_numpy(counts), single, single).numpy()
        flat = np.concatenate(list(keys.values())).view(np.int64)
        received = control.exchange(
            torch.from_numpy(np.tile(flat, size)),
            [len(flat)] * size,
            incoming.sum(axis=1).tolist(),
        )
        pieces = np.split(received.numpy().view(np.uint64), incoming.reshape(-1).cumsum()[:-1])
        blocks = [self._rows(name, of_table).repeat(size, 1) for name, of_table in keys.items()]
        for column, (name, rows) in enumerate(
            zip(keys, self._floats.swap(blocks, counts, incoming), strict=True)
        ):
            table = self.tables[name]
            slots = table.slots.put(np.concatenate(pieces[column :: len(keys)]))
            # Of two keys of one slot the later one stays, here as there.
            last = np.unique(slots[::-1], return_index=True)[1]
            chosen = torch.from_numpy(len(slots) - 1 - last).to(rows.device)
            places = torch.from_numpy(slots[::-1][last].astype(np.int64)).to(rows.device)
            table.rows.index_copy_(0, places, rows[chosen])

    def _rows(self, table: str, keys: Keys) -> torch.Tensor:
        rows: AnyArray = self._local.pull(table, keys)
        tensor = rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)
        return tensor.to(self._local.device)
