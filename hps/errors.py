"""The exceptions of hps. Every layer raises these; csrc/bindings translates native Status to them.

A message says what went wrong, where, the value seen, the limit, and what to do.
"""

from collections.abc import Iterable


class HpsError(Exception):
    """Base of every error that hps raises on purpose.

    `is_shared` says of one instance that every rank of a training has raised the same: then the
    ranks are still in step, and none need be told.
    """

    is_shared = False


class ConfigError(HpsError, ValueError):
    """A configuration or an argument that cannot work; the message names the field."""


class CapacityError(HpsError):
    """A training batch whose rows cannot all be held at once; names both numbers."""


class BatchMemoryError(CapacityError):
    """The memory that a device has for batches is too small for these keys now; nothing was taken.
    A pull or a push goes on in pieces."""


class NonFiniteError(HpsError, ArithmeticError):
    """A gradient was NaN or infinite; no row was changed. Names table and key."""


class PendingGradientError(HpsError, RuntimeError):
    """The next batch was asked for while a collected gradient was neither applied nor dropped."""


class CorruptionError(HpsError):
    """Stored bytes do not match their checksum or structure. Names file, offset, expectation."""


class DataError(HpsError, ValueError):
    """A click log that cannot be read as its format says. Names file, line (from 1) and reason."""


class ChangedError(ConfigError):
    """A table was changed while all of it was read; nothing that was read is worth anything."""


class StoreError(HpsError, OSError):
    """The operating system refused an operation on the store (disk full, lock held, I/O error)."""


class GapError(HpsError):
    """A mutation came before the ones it follows; `mark` is the highest sequence that is applied.

    Send again from mark + 1 on.
    """

    def __init__(self, message: str, mark: int) -> None:
        super().__init__(message)
        self.mark = mark


class FencedError(HpsError):
    """A mutation of a session that has ended: a newer one of its client, or a restore, ended it."""


class MismatchError(HpsError):
    """Two parts of a service that do not belong together: another shard, checkpoint or history."""


class DeadlineError(HpsError, TimeoutError):
    """The caller's time was up; the message says whether its mutation is applied."""


class RemoteError(HpsError):
    """A remote shard could not do what was asked. Names the shards done and open."""


class ClusterError(HpsError):
    """Another rank of the training is gone or does not answer. Names this rank and what it waited
    for; the cause is in that rank's error."""


def no_such_table(
    table: object, found: str = "", tables: Iterable[str] = (), where: object = ""
) -> ConfigError:
    """The error of a verb that was given a table that is not there.

    Args:
        table: its name.
        found: begins the list of those that are there; empty: none is named, for their names may be
            others' secrets.
        tables: their names.
        where: it is not; empty: the message does not say.

    >>> no_such_table("ads", "the store has", ["users", "items"])
    ConfigError("there is no table 'ads'; the store has ['items', 'users']")
    """
    listed = f"; {found} {sorted(tables)}" if found else ""
    prefix = f"{where}: " if where else ""
    return ConfigError(f"{prefix}there is no table {table!r}{listed}")
