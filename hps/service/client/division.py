"""KeyDivision: which keys go to which shard, and how many of them in one message.

Above it: pulls.py, pushes.py, tables.py. Below it: shards.py (the limits of the shards), plans.py.
"""

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.forked import refuse_in_children
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Keys
from hps.errors import RemoteError
from hps.service.client.connections import Connections
from hps.service.client.session import Session
from hps.service.client.shards import Shards

_MESSAGE_ROOM = 4096  # bytes of a message besides its arrays

Piece = tuple[Session, Keys, int]  # shard, distinct keys, place of the first in their plan


class KeyDivision:
    """Divides the keys of a call into messages.

    Args:
        connections: to the shards.
        shards: what a message to them may hold.
        plans: lends plans.
    """

    def __init__(self, connections: Connections, shards: Shards, plans: PlanPool) -> None:
        self._connections = connections
        self._shards = shards
        self._plans = plans
        refuse_in_children(self, connections.where, ("_plans",), RemoteError)

    def most_rows(self, row_bytes: int) -> int:
        """Keys of one message, whose request and reply take so many bytes each."""
        room = self._shards.max_bytes - _MESSAGE_ROOM
        return int(max(1, min(self._shards.max_keys, room // row_bytes)))

    def shares(self, keys: Keys, row_bytes: int) -> list[tuple[Session, NDArray[np.intp]]]:
        """(shard, places of its keys) of each message, duplicates and order kept."""
        most = self.most_rows(row_bytes)
        sessions = self._connections.sessions
        return [
            (session, places[first : first + most])
            for session, places in zip(sessions, self._shards.shard_map.split(keys), strict=True)
            for first in range(0, len(places), most)
        ]

    def pieces(self, plan: _C.ShardPlan, row_bytes: int) -> list[Piece]:
        """The distinct keys of each message, in the plan's order."""
        most, keys, starts = self.most_rows(row_bytes), plan.unique_keys, plan.starts
        pieces = []
        for session in self._connections.sessions:
            begin, end = starts[session.index], starts[session.index + 1]
            for first in range(begin, end, most):
                pieces.append((session, keys[first : min(first + most, end)], first))
        return pieces

    def go_whole(self, keys: Keys, row_bytes: int) -> bool:
        """True if keys are to travel as they are: to the only shard, in one message, where it costs
        less to find the few that repeat than to look for them here, too."""
        if len(self._connections.sessions) > 1 or len(keys) > self.most_rows(row_bytes):
            return False
        with self._plans.lent() as plan:
            return plan.seem_distinct(keys)
