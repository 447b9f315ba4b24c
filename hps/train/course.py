"""Course: how far a training run is on its way, where the length of the log is known.

Above it: `Progress`. Below it: the reader's positions. Plain text goes by bytes, parquet by rows
within a file's share of the bytes; how long a compressed text is, or how many rows csv has, nobody
knows before its end.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hps.common.json_text import JsonView
from hps.reader.urls import LogFile, UrlFile

if TYPE_CHECKING:
    from hps.reader.reader import Reader


class Course:
    """The way through all epochs of a log, or to its limit.

    Args:
        reader: of the log.
        limit: examples after which the run ends; 0 for none.
    """

    def __init__(self, reader: "Reader", limit: int = 0) -> None:
        self._paths = reader.paths
        self._sizes = [int(size) for _, size in reader.files]
        self._limit = limit
        self._is_parquet = reader.config.format == "parquet"
        is_packed = any(path.suffix in (".gz", ".zst") for path in self._paths)
        is_packed |= reader.config.format == "csv"
        self._follows = reader.follows
        self._is_known = sum(self._sizes) > 0 and (self._is_parquet or not is_packed)
        self._is_known &= not self._follows  # which has no length
        self.epochs = reader.config.epochs

    def where(self, position: JsonView) -> str:
        """The number of the epoch, from 1, in words; of a log that is followed that of the file."""
        if self._follows:
            return f"file {int(position.get('file', 0)) + 1:,}"
        return f"epoch {min(int(position.get('epoch', 0)) + 1, self.epochs)}/{self.epochs}"

    def share(self, position: JsonView, num_examples: int) -> float | None:
        """The part of the way that is done, 0 to 1; None where that is not known.

        Args:
            position: of the reader, after a batch.
            num_examples: of the model's life.
        """
        shares = []
        if self._limit:
            shares.append(num_examples / self._limit)
        if self._is_known and "file" in position:
            shares.append((position["epoch"] + self._share_of_epoch(position)) / self.epochs)
        return min(max(shares), 1.0) if shares else None

    def _share_of_epoch(self, position: JsonView) -> float:
        order = position.get("order", range(len(self._sizes)))
        done = self._bytes_before(order, position)
        block = position.get("block")
        if block is not None:  # its batches are handed out one by one
            done += (self._bytes_before(order, block) - done) * block["taken"] / block["size"]
        return done / sum(self._sizes)

    def _bytes_before(self, order: Sequence[int], place: JsonView) -> float:
        """Bytes of the epoch before a file's offset."""
        file = place["file"]
        done = float(sum(self._sizes[number] for number in order[:file]))
        if file < len(self._sizes):
            current, within = order[file], place["offset"]
            if self._is_parquet:
                within *= self._sizes[current] / max(_num_rows(self._paths[current]), 1)
            done += min(within, self._sizes[current])
        return done


@lru_cache(maxsize=4)
def _num_rows(path: LogFile) -> int:
    import pyarrow.parquet as pq  # takes its time to import, and parquet alone needs it

    return int(pq.read_metadata(path.open("rb") if isinstance(path, UrlFile) else path).num_rows)
