"""CheckpointsOverParts: checkpoints of which each of several stores keeps a part.

Above it: RemoteParameterServer (a part on each shard of a service), ClusterParameterServer (a part
on each rank of a training). Below it: what keeps the parts, see Parts; names.py; blobs.py.

A checkpoint over all has a random name of its own, and each part is tagged `cut-NAME` in its store.
The parts are saved first; what is written last names the whole: that makes the checkpoint, all at
once. What a death before it leaves behind is a part of nothing, which is deleted later. A deletion
goes the other way round, and begins with what names the whole.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from hps.checkpoint.blobs import Dense, ModelState
from hps.checkpoint.names import find_named
from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError

Whole = TypeVar("Whole")  # a checkpoint over all parts that is kept
Draft = TypeVar("Draft")  # one that is being taken
T = TypeVar("T")


@dataclass(frozen=True)
class Taken:
    """What a new checkpoint over all parts says of itself.

    Args:
        rows_written, bytes_written: of each part.
        more: what `checkpoint` returns besides.
    """

    rows_written: Sequence[int]
    bytes_written: Sequence[int]
    more: JsonView = field(default_factory=dict)


class Parts(Protocol[Whole, Draft]):
    """The stores that keep a part each. Where each is a rank's, every rank calls all verbs."""

    @property
    def members(self) -> str:
        """Whose stores they are, in words."""

    def begin(
        self,
        tag: str | None,
        model: ModelState | None,
        reader: JsonView | None,
    ) -> Draft:
        """Checks what a new checkpoint is given, and names it; nothing is changed.

        Raises:
            ConfigError: see `CheckpointsOverParts.checkpoint`.
        """

    def save_parts(self, draft: Draft) -> None:
        """Saves all parts but what names the whole; where one fails there is no checkpoint."""

    def commit(self, draft: Draft) -> Taken:
        """Writes what names the whole: this makes the checkpoint."""

    def tidy(self, draft: Draft) -> None:
        """Deletes checkpoints that the new one supersedes, and parts of none."""

    def to_restore(self, tag: str | int | None) -> Whole:
        """The checkpoint to go back to, once it is sure that its store can be used for that."""

    def to_read(self, tag: str | int | None) -> Whole | None:
        """The checkpoint whose model is read; None where there is none yet and none is named."""

    def to_delete(self, tag: str | int) -> Whole:
        """The checkpoint to delete; refuses None with `check_is_named`."""

    def state_of(self, whole: Whole) -> Dense:
        """(model, reader) of a checkpoint."""

    def go_back(self, whole: Whole) -> Exception | None:
        """Makes sure that all can go back, then goes back to every part.

        Returns:
            What to raise where some may have gone back and others not; None: all have.

        Raises:
            HpsError: none has gone back, or all have.
        """

    def delete(self, whole: Whole) -> list[str]:
        """Deletes a checkpoint, first what names the whole; its living readers, in words."""

    def described(self) -> list[Json]:
        """The checkpoints of which all parts are kept, oldest first; see `describe`."""


class CheckpointsOverParts(Generic[Whole, Draft]):
    """Checkpoint, restore and what goes with them. The two servers say what each returns.

    Args:
        parts: of all checkpoints.
    """

    def __init__(self, parts: Parts[Whole, Draft]) -> None:
        self.parts = parts

    def checkpoint(
        self,
        tag: str | None = None,
        model: ModelState | None = None,
        reader: JsonView | None = None,
    ) -> Json:
        """Makes rows, model and reader's position durable in one checkpoint over all parts.

        Raises:
            ConfigError: a bad tag; a model or reader that could not be read back.
            HpsError: a part was not saved; the checkpoint before it stays the newest.
        """
        started = perf_counter()
        draft = self.parts.begin(tag, model, reader)
        self.parts.save_parts(draft)
        taken = self.parts.commit(draft)
        self.parts.tidy(draft)
        return {
            "tag": tag,
            "rows_written": sum(taken.rows_written),
            "bytes": sum(taken.bytes_written),
            "seconds": perf_counter() - started,
            **taken.more,
        }

    def restore(self, tag: str | int | None = None) -> Dense:
        """Goes back to a checkpoint, on all parts or none; returns its (model, reader).

        Raises:
            ConfigError: no such checkpoint, or it cannot be gone back to now.
            HpsError: a part cannot be had; its note says so where some went back and others not.
        """
        whole = self.parts.to_restore(tag)
        state = self.parts.state_of(whole)
        failure = self.parts.go_back(whole)
        if failure is not None:
            members = self.parts.members
            failure.add_note(f"{members} may be at different checkpoints now: call restore() again")
            raise failure
        return state

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """(model, reader) of a checkpoint, without going back to it; each None if not given.

        Raises:
            ConfigError: no such checkpoint. CorruptionError: it is damaged.
        """
        whole = self.parts.to_read(tag)
        return (None, None) if whole is None else self.parts.state_of(whole)

    def checkpoints(self) -> list[Json]:
        """The checkpoints of which all parts are kept, oldest first."""
        return self.parts.described()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a checkpoint; returns its living readers, in words.

        Raises:
            ConfigError: no such checkpoint, or None.
        """
        return self.parts.delete(self.parts.to_delete(tag))


class PartSize(Protocol):
    """What a list of checkpoints adds up."""

    @property
    def rows(self) -> int:
        """Rows of a part."""

    @property
    def bytes(self) -> int:
        """Of its files."""


def describe(
    tag: str | None, number: int, parts: Sequence[PartSize], created: float, is_current: bool
) -> Json:
    """A checkpoint over all parts as `checkpoints()` lists it.

    Args:
        tag: as its caller named it, or None.
        number: its id.
        parts: of all stores.
        created: seconds since 1970.
        is_current: the rows descend from it.
    """
    return {
        "tag": tag,
        "id": number,
        "rows": sum(part.rows for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "created": created,
        "current": is_current,
    }


def find_or_current(
    kept: Sequence[T],
    name: str | int | None,
    tag_and_id: Callable[[T], tuple[str | None, int]],
    current: T | None,
    words: tuple[str, str],
) -> T:
    """The checkpoint of a name; of None the current one.

    Args:
        kept: the checkpoints, oldest first.
        name: a tag or an id.
        tag_and_id: of one of them.
        current: what None names, if there is one; need not be among `kept`.
        words: for errors, of what they are kept, and that there is none yet.

    Raises:
        ConfigError: there is none of that name, which lists those there are; or none yet.
    """
    where, none_yet = words
    if name is not None:
        return find_named(where, kept, name, tag_and_id)
    if current is None:
        raise ConfigError(f"{where}: {none_yet}")
    return current


def check_is_named(tag: str | int | None) -> None:
    """Refuses to delete what is not named.

    Raises:
        ConfigError: it is None.
    """
    if tag is None:
        raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")


def fitting_all(checkpoints: Iterable[str | None]) -> str | None:
    """The checkpoint whose model fits the rows of every part; None if no one does.

    Args:
        checkpoints: of each part the name of the one whose model fits its rows; None: none does,
            as they have been trained on since.
    """
    names = set(checkpoints)
    return names.pop() if len(names) == 1 else None
