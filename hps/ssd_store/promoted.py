"""Promoted names: a name such as `live` that moves from one checkpoint to the next, and back.

Above it: both engines, the catalog of several ranks, promote.py. Below it: two small files in the
folder of a store or of several ranks, described in docs/ssd_store_format.md. A writer holds
PROMOTED.lock while a checkpoint takes the place of others; who moves a name holds it, too: so a
name may move beside a training.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from hps import _C
from hps.checkpoint.names import text_of
from hps.common.durable_file import replace_durably
from hps.common.json_text import Json, JsonView, parse_json
from hps.errors import ConfigError, CorruptionError, StoreError

NAME = "PROMOTED"
LOCK = "PROMOTED.lock"
_FORMAT_VERSION = 1
_MAGIC = "HPSNAMES"
_KEPT = 2  # of a name: what it is, and what it was before; a roll-back needs that
_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Promotion:
    """What a name was given to.

    Args:
        created: of the checkpoint, seconds since 1970: this stays when a compaction renews it.
        checkpoint: its tag then, or its id as id:N; for people.
        at: when, seconds since 1970.
    """

    created: float
    checkpoint: str
    at: float


@dataclass(frozen=True)
class Promotions:
    """The promoted names of a store.

    Args:
        names: by name what it was given to, the oldest first; the last one counts.
    """

    names: Mapping[str, tuple[Promotion, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Those of a store's folder; none where there is no file.

        Raises:
            CorruptionError: the file is damaged. StoreError: it cannot be read.
        """
        path = folder / NAME
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
        head, _, body = data.partition(b"\n")
        if head != _head(body):
            raise CorruptionError(
                f"{path}: the promoted names are damaged, or of another version of hps; remove the "
                "file to go on without them, and promote again"
            )
        try:
            return cls.from_json(parse_json(body, str(path)))
        except (AttributeError, TypeError) as error:
            raise CorruptionError(f"{path}: holds no promoted names: {error}") from error

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """What `to_json` gave."""
        return cls(
            {
                str(name): tuple(Promotion(**one) for one in entries)
                for name, entries in value.items()
            }
        )

    def to_json(self) -> Json:
        """As plain values, as the file has them."""
        return {name: [asdict(one) for one in given] for name, given in self.names.items()}

    def save(self, folder: Path) -> None:
        """Makes these the ones that count, in one durable step.

        Raises:
            StoreError: the system refused; the old or the new ones stand.
        """
        body = json.dumps(self.to_json(), separators=(",", ":")).encode()
        try:
            replace_durably(folder / NAME, _head(body) + b"\n" + body)
        except OSError as error:
            raise StoreError(
                error.errno, f"cannot write {folder / NAME}: {error.strerror}"
            ) from error

    @property
    def kept(self) -> list[float]:
        """Times of creation of the checkpoints that no newer one may take the place of."""
        return sorted({one.created for given in self.names.values() for one in given[-_KEPT:]})

    def of(self, created: float) -> list[str]:
        """The names of a checkpoint."""
        return sorted(
            name for name, given in self.names.items() if given and given[-1].created == created
        )

    def resolved(
        self, where: object, checkpoint: str | int | None, listed: Sequence[JsonView]
    ) -> str | int | None:
        """As the function `resolved`, of these names; `where` is the folder, for the error."""
        given = self.names.get(checkpoint, ()) if isinstance(checkpoint, str) else ()
        if not given:
            return checkpoint
        for one in listed:
            if one["created"] == given[-1].created:
                return int(one["id"])
        raise ConfigError(
            f"{where}: {checkpoint!r} was promoted from checkpoint {given[-1].checkpoint!r}, which "
            "is not kept any more; promote another one"
        )

    def with_history(self, name: str, given: Sequence[Promotion]) -> Self:
        """The same, with another history of a name; an empty one takes the name away."""
        others = {one: kept for one, kept in self.names.items() if one != name}
        return replace(self, names={**others, **({name: tuple(given)} if given else {})})


def _head(body: bytes) -> bytes:
    return f"{_MAGIC}{_FORMAT_VERSION} {_C.crc32c(body):08x} {len(body)}".encode()


class NamesLock:
    """PROMOTED.lock of a folder, once it is taken; who has it is written into it.

    Args:
        folder: of the store, perhaps by its descriptor.
        shown: its path, for messages.

    Raises:
        StoreError: the system refused.
    """

    # What an interrupted __init__ leaves.
    _descriptor = -1

    def __init__(self, folder: Path, shown: Path) -> None:
        self._folder = folder
        self._path = shown / LOCK
        self._is_taken = False
        self._deadline = time.monotonic() + _WAIT_SECONDS
        # Where the folder is gone whoever goes on says so in better words.
        with suppress(FileNotFoundError), self._told("open"):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(folder / LOCK, flags, 0o666)

    def take(self, seconds: float) -> Promotions | None:
        """Waits so long at most for the lock.

        Returns:
            The names, which stay as they are until `close`; None while another process has it.

        Raises:
            StoreError: the system refused, or that process has had it for ten minutes; names it.
        """
        until = min(time.monotonic() + seconds, self._deadline)
        while not self._try_lock():
            if time.monotonic() >= self._deadline:
                raise StoreError(
                    errno.EAGAIN,
                    f"{self._path}: another process has held this lock for {_WAIT_SECONDS:.0f} "
                    f"seconds ({self._holder()}); end the one that promotes a checkpoint or takes "
                    "one there, and repeat",
                )
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_SECONDS)
        return Promotions.load(self._folder)

    def close(self) -> None:
        """Lets go; nothing to do the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if self._is_taken:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def __del__(self) -> None:
        # Where an interrupt came before `close`, which else would leave the lock taken.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _try_lock(self) -> bool:
        if self._descriptor < 0 or self._is_taken:
            return True
        with self._told("lock"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        self._is_taken = True
        with suppress(OSError):  # of a full disk: the lock holds without a name in it
            os.pwrite(self._descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
        return True

    def _holder(self) -> str:
        text = ""
        with suppress(OSError):
            text = os.pread(self._descriptor, 256, 0).decode("utf-8", "replace")
        pid, _, host = text.strip().partition(" ")
        return f"process {pid} on {host}" if pid.isdecimal() else "it does not say which"

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                error.errno, f"cannot {verb} {self._path}: {error.strerror}"
            ) from error


@contextmanager
def held(folder: Path, shown: Path | None = None) -> Iterator[Promotions]:
    """Keeps names, and the checkpoints that they can be given to, as they are; yields the names.

    Args:
        folder: of the store, perhaps by its descriptor.
        shown: its path, for messages; None: `folder`.

    Raises:
        StoreError: the system refused, or another process has held it for ten minutes.
    """
    with closing(NamesLock(folder, shown or folder)) as lock:
        names = lock.take(_WAIT_SECONDS)
        while names is None:
            names = lock.take(_WAIT_SECONDS)
        yield names


def named(listed: Sequence[Json], promotions: Promotions) -> list[Json]:
    """Checkpoints as a store lists them, each with `names`, those that it was promoted to.

    Of several of one tag the newest has it: older ones are kept for their names alone.
    """
    tags = {one["tag"]: one["id"] for one in listed if one["tag"] is not None}
    return [
        {
            **one,
            "tag": one["tag"] if tags.get(one["tag"]) == one["id"] else None,
            "names": promotions.of(one["created"]),
        }
        for one in listed
    ]


def resolved(
    folder: Path, checkpoint: str | int | None, listed: Sequence[JsonView]
) -> str | int | None:
    """The id of a checkpoint that is asked for by a promoted name; other names as they are.

    Raises:
        ConfigError: the checkpoint of that name is not among those listed.
    """
    if not isinstance(checkpoint, str):
        return checkpoint
    return Promotions.load(folder).resolved(folder, checkpoint, listed)


def promotion_of(folder: Path, checkpoint: str | int | None) -> Promotion | None:
    """What a name is given to; None where it is no promoted name."""
    if not isinstance(checkpoint, str):
        return None
    given = Promotions.load(folder).names.get(checkpoint)
    return given[-1] if given else None


class _Kept(Protocol):
    """A checkpoint as a list of them has it, in a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> int: ...

    @property
    def tag(self) -> str | None: ...

    @property
    def created(self) -> float: ...


Kept = TypeVar("Kept", bound=_Kept)


def kept_with(
    new: Kept, listed: Sequence[Kept], keep_last: int, promoted: Collection[float]
) -> list[Kept]:
    """The checkpoints that are kept once a new one is there, which is the last of them.

    Args:
        new: it takes the place of one of its tag, and of the oldest of those without.
        listed: that were kept so far.
        keep_last: of those without a tag that are not promoted, the new one counted.
        promoted: when those were created that stay, without their tag if the new one has that.
    """
    same = [one for one in listed if new.tag is None or one.tag != new.tag]
    stay = [one for one in listed if one not in same and one.created in promoted]
    kept = sorted([*same, *(replace(one, tag=None) for one in stay)], key=lambda one: one.id)
    kept.append(new)
    counted = [one for one in kept if one.tag is None and one.created not in promoted]
    old = {one.id for one in counted[:-keep_last]}
    return [one for one in kept if one.id not in old]


def check_free(tag: str | None, promotions: Promotions) -> None:
    """Refuses a tag for a new checkpoint that is a promoted name.

    Raises:
        ConfigError: it is one.
    """
    if tag is not None and tag in promotions.names:
        raise ConfigError(
            f"tag={tag!r} is a promoted name, of checkpoint "
            f"{promotions.names[tag][-1].checkpoint!r}; give the new checkpoint another tag, and "
            "promote it then"
        )


def check_deletable(one: JsonView) -> None:
    """Refuses to delete a checkpoint that has a promoted name.

    Raises:
        ConfigError: names what has to be promoted first.
    """
    if one["names"]:
        raise ConfigError(
            f"checkpoint {text_of(one['tag'] or one['id'])!r} is promoted as "
            f"{', '.join(map(repr, one['names']))}; promote another one, or take the name away "
            f"('hps models STORE --drop {one['names'][0]}'), then delete it"
        )
