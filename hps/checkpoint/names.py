"""Names of checkpoints: what a tag may be, which are hps's own, and how one is named and found.

Above it: everything that takes a checkpoint's name: ParameterServer, ranks, servers and clients,
both engines, the command line. Below it: hps.errors. docs/decisions/0016-tags-and-ids.md has why.

In Python a string is a tag and an int is an id. Where there is only text, on the command line and
in requests to a server, `id:3` is the id 3 and all else is a tag: ':' is in no tag.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from hps.common.json_text import JsonView
from hps.errors import ConfigError

AUTOMATIC = "automatic"  # of those that a server takes by itself
FINAL_TAG = "final"  # of the end of a training run that has no other name for it
BEST_TAG = "best"  # of the best model of a validation
COMPACTED = ".compacted"  # of the current rows, after a compaction whose checkpoint was deleted
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PART = re.compile(r"cut-([0-9a-f]{32})")  # of one shard's or rank's part of a checkpoint
_ID = re.compile(r"id:([1-9][0-9]{0,17})")
_ID_PREFIX = "id:"
_MOST_ID = 2**63 - 1
_MOST_LISTED = 20  # that an error names

T = TypeVar("T")


def check_tag(tag: object, *, is_own: bool = False) -> None:
    """Refuses what cannot name a new checkpoint.

    Args:
        tag: from a user, or from hps itself.
        is_own: hps's own tags are allowed.

    Raises:
        ConfigError: no tag, or one of hps's own.
    """
    is_reserved = isinstance(tag, str) and (
        tag in (AUTOMATIC, COMPACTED) or _PART.fullmatch(tag) is not None
    )
    if is_own and is_reserved:
        return
    if is_reserved:
        raise ConfigError(f"tag={tag!r}: the tag is reserved for hps; use another one")
    if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:
        raise ConfigError(f"tag={tag!r}: needs 1-64 letters, digits, '_', '.', '-'")


def part_tag(name: str) -> str:
    """The tag of each part of a checkpoint over several stores; `name` is that of the whole."""
    return f"cut-{name}"


def part_name(tag: object) -> str | None:
    """NAME of the tag `cut-NAME` of a part of a checkpoint; None for any other."""
    found = _PART.fullmatch(tag) if isinstance(tag, str) else None
    return None if found is None else found[1]


def check_name(name: object, what: str = "checkpoint") -> None:
    """Refuses what names no checkpoint: neither a string nor a whole number from 1 on.

    Raises:
        ConfigError: says what it is.

    >>> check_name("day-1"), check_name(3)
    (None, None)
    """
    if isinstance(name, str):
        if not name:
            raise ConfigError(f"{what}='' is not a tag; use None for the current one")
    elif not isinstance(name, int) or isinstance(name, bool):
        raise ConfigError(f"{what}={name!r}: give a tag (str) or an id (int)")
    elif not 1 <= name <= _MOST_ID:
        raise ConfigError(f"{what}={name}: ids count from 1")


def parse_name(text: str) -> str | int:
    """The name in a text.

    Raises:
        ConfigError: it is empty, or begins with "id:" and goes on otherwise than an id does.

    >>> parse_name("3"), parse_name("id:3")
    ('3', 3)
    """
    found = _ID.fullmatch(text)
    if found is not None:
        return int(found[1])
    if not text or text.startswith(_ID_PREFIX):
        raise ConfigError(f"{text[:80]!r} names no checkpoint: give a tag, or an id as id:3")
    return text


def text_of(name: str | int) -> str:
    """The text that parse_name takes back.

    >>> text_of(3), text_of("3")
    ('id:3', '3')
    """
    return name if isinstance(name, str) else f"{_ID_PREFIX}{name}"


def find_named(
    where: str,
    kept: Iterable[T],
    name: str | int,
    tag_and_id: Callable[[T], tuple[str | None, int]],
) -> T:
    """The checkpoint of a name.

    Args:
        where: of what they are kept, for the error.
        kept: the checkpoints, oldest first.
        name: a tag or an id.
        tag_and_id: of one of them.

    Raises:
        ConfigError: there is none of that name, which lists those there are; no name at all.
    """
    check_name(name)
    listed = list(kept)
    for one in reversed(listed):
        tag, number = tag_and_id(one)
        if name == (tag if isinstance(name, str) else number):
            return one
    raise _no_such(where, [tag_and_id(one) for one in listed], name)


def find_listed(
    where: str, listed: Iterable[JsonView], name: str | int | None = None
) -> JsonView | None:
    """The checkpoint of a name among those that a store lists.

    Args:
        where: of what they are kept, for the error.
        listed: as `checkpoints()` of a store gives them.
        name: a tag, a promoted name or an id; None is the current one.

    Returns:
        It; None of the current one that was deleted.

    Raises:
        ConfigError: as find_named.

    >>> kept = [{"id": 1, "tag": "a", "current": True}, {"id": 2, "tag": "b", "current": False}]
    >>> find_listed("the store", kept)["tag"], find_listed("the store", kept, "b")["id"]
    ('a', 2)
    """
    if name is None:
        return next((one for one in listed if one["current"]), None)
    listed = list(listed)
    promoted = [one for one in listed if isinstance(name, str) and name in one.get("names", ())]
    if promoted:
        return promoted[0]
    return find_named(where, listed, name, lambda one: (one["tag"], int(one["id"])))


def own_name(listed: Iterable[JsonView], name: str | int) -> str | int:
    """The tag, or without one the id, of the checkpoint that a promoted name leads to now; other
    names as they are. What is asked for twice is asked for by this: a promoted name may move.

    Args:
        listed: as `checkpoints()` of a store gives them.
        name: a tag, a promoted name or an id.

    >>> kept = [{"id": 1, "tag": "a", "names": ["live"]}, {"id": 2, "tag": None, "names": ["new"]}]
    >>> own_name(kept, "live"), own_name(kept, "new"), own_name(kept, "b")
    ('a', 2, 'b')
    """
    for one in listed:
        if isinstance(name, str) and name in one.get("names", ()):
            tag: str | None = one["tag"]
            return int(one["id"]) if tag is None else tag
    return name


def _no_such(where: str, names: list[tuple[str | None, int]], asked: str | int) -> ConfigError:
    words = [f"{text_of(number)} ({tag!r})" if tag else text_of(number) for tag, number in names]
    if len(words) > _MOST_LISTED:
        words = [f"{len(words) - _MOST_LISTED} older ones", *words[-_MOST_LISTED:]]
    hint = ""
    if isinstance(asked, str) and (asked.isdecimal() or asked.startswith(_ID_PREFIX)):
        hint = "; a string is a tag: give an id as an int, and where all is text as id:3"
    return ConfigError(
        f"{where}: there is no checkpoint {asked!r}; kept are: {', '.join(words) or 'none'}{hint}"
    )
