"""What both engines are given: the options of an opening, and the checks of arguments they share.

Above it: the engines (store.py, ssd_store/rocksdb/store.py), open_store.py. Below it: hps.errors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from hps.errors import ConfigError, no_such_table

DEFAULT_SEGMENT_BYTES = 256 * 2**20
DEFAULT_COMPACTION_THRESHOLD = 0.5
DEFAULT_COMPACTION_BYTES_PER_SECOND = 64 * 2**20


class OpenOptions(TypedDict, total=False):
    """What `open` takes by keyword.

    segment_bytes: a segment is sealed before it would grow past this, or past a quarter of its
        table's live rows (but 8 MiB); 256 MiB.
    keep_last: untagged checkpoints that are kept; 2.
    threads: that load a checkpoint and share a large fetch; 0 is one a core. Changes no bit.
    snapshot_rows: a clean close leaves a snapshot of the index if the store has this many; 65536.
    read_only: beside a writer or without one; needs a store.
    direct_io: segments are read past the page cache (O_DIRECT), so that it stays free for others;
        what is appended still goes through it. False.
    checkpoint: read-only: the tag or id of the checkpoint to open; None is the current one.
    beside: read-only: a reader of the same store, at a checkpoint taken shortly before this one or
        after it, whose index this one begins with; of the engine "segments" alone. What that one
        has read of the manifest is not read again.
    shares_index: that index is not copied: from then on the other reader fetches rows and tells
        which keys it has as before, and cannot be scanned, or begin another one. False.
    rows: read-only: False loads none, for schemas, seed, extras and checkpoints alone.
    seed: of the initializers; fixed once the store exists. None takes the stored one (new: 0).
    compaction_threshold: dead part of a segment from which it is rewritten, above 0, below 1; 0.5.
    compaction_bytes_per_second: read and written by compaction while nobody waits; 64 MiB.
    compact_in_background: False: only by compact() and in an append that lacks space; True.
    """

    segment_bytes: int
    keep_last: int
    threads: int
    snapshot_rows: int
    read_only: bool
    direct_io: bool
    checkpoint: str | int | None
    beside: object
    shares_index: bool
    rows: bool
    seed: int | None
    compaction_threshold: float
    compaction_bytes_per_second: int
    compact_in_background: bool


def check_opening(options: OpenOptions) -> None:
    """Refuses a writer what only a reader may ask for.

    Raises:
        ConfigError: names the option.
    """
    if options.get("read_only", False):
        return
    if options.get("checkpoint") is not None:
        raise ConfigError("checkpoint= is for read_only=True; a writer uses restore()")
    if not options.get("rows", True):
        raise ConfigError("rows=False is for read_only=True")


def table_number(path: Path, numbers: Mapping[str, int], table: str) -> int:
    """The number of a table.

    Raises:
        ConfigError: there is none of that name; lists those there are.
    """
    if table not in numbers:
        raise no_such_table(table, "there are", numbers, where=path)
    return numbers[table]


def check_piece(batch_rows: int) -> None:
    """Raises ConfigError unless a piece of a scan has a row at least."""
    if batch_rows < 1:
        raise ConfigError(f"batch_rows={batch_rows} must be at least 1")


def check_tag(tag: str | None) -> None:
    """Raises ConfigError for a tag that a new checkpoint cannot have."""
    if tag == "":
        raise ConfigError("tag='' is not a tag; use None for an untagged checkpoint")


def check_named(checkpoint: str | int | None) -> None:
    """Raises ConfigError unless a checkpoint to delete is named."""
    if checkpoint is None:
        raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
