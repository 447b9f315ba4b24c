"""ShardReads: the verbs of a shard that change nothing.

Above it: shard_cuts.py, and Shard, which is one. Below it: shard_core.py. Reads go on while
mutations are worked off, and when log or store have failed.
"""

from collections.abc import Iterator
from time import monotonic
from typing import Any

from hps import checkpoint as cut
from hps.service.shard_core import LONG, ShardCore
from hps.update_log import ServedCut


class ShardReads(ShardCore):
    """Rows, figures, and what checkpoints hold."""

    def pull(self, table: str, keys: Any, out: Any = None) -> Any:
        """As ParameterServer.pull."""
        with self._gate.read():
            return self._server.pull(table, keys, out)

    def contains(self, table: str, keys: Any) -> Any:
        """As ParameterServer.contains."""
        with self._gate.read():
            return self._server.contains(table, keys)

    def num_rows(self, table: str) -> int:
        """As ParameterServer.num_rows."""
        with self._gate.read():
            return self._server.num_rows(table)

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """As ParameterServer.items."""
        with self._gate.read():
            pieces = self._server.items(table, batch, state)
        while True:
            with self._gate.read():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def digest(self, table: str, timeout: float = LONG) -> tuple[int, int]:
        """(low, high): two sums over the table's rows; mutations wait meanwhile."""
        with self._gate.change(monotonic() + timeout):
            text = self._server.digest(table)
        return int(text[16:], 16), int(text[:16], 16)

    def stats(self) -> dict[str, Any]:
        """As ParameterServer.stats, with a part `service`."""
        with self._gate.read():
            stats = self._server.stats()
        history = self._history
        log = history.log
        stats["service"] = {
            "sessions": len(history.sessions),
            "records": history.number,
            "records_replayed": history.num_replayed,
            "records_since_checkpoint": history.number - history.kept_number,
            "log_bytes": 0 if log is None else log.num_bytes,
            "waiting": self._gate.num_waiting,
            "checkpoints": self._checkpointer.taken,
            "checkpoint_failures": self._checkpointer.failures,
            "checkpoint_error": self._checkpointer.last_error,
            "failure": self.failure,
        }
        return stats

    def checkpoints(self) -> list[dict[str, Any]]:
        """As ParameterServer.checkpoints, each with its `group`."""
        with self._gate.read():
            listed = self._server.checkpoints()
            for one in listed:
                one["group"] = self._group(int(one["id"]))
            self._groups = {int(one["id"]): one["group"] for one in listed}
            return listed

    def _group(self, checkpoint: int) -> str:
        if checkpoint not in self._groups:
            served = ServedCut.of(self._server.checkpoint_blobs(checkpoint))
            return "" if served is None else served.group
        return self._groups[checkpoint]

    def checkpoint_state(
        self, tag: str | int | None = None
    ) -> tuple[bytes | None, bytes | None, str]:
        """(model, reader, group) as they were given to `checkpoint`."""
        with self._gate.read():
            blobs = self._server.checkpoint_blobs(tag)
        served = ServedCut.of(blobs)
        return blobs.get(cut.MODEL), blobs.get(cut.READER), "" if served is None else served.group
