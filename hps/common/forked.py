"""What a forked child has in the place of what its parent has open: an error instead of a hang.

Above it: ParameterServer, Pipeline, the RocksDB store, shards, clients, clusters. Below it:
errors.py. A child has its parent's objects, but none of its threads: a lock that one of them held
stays taken, a thread pool never answers. And what the objects stand for is the parent's alone.
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from hps.errors import HpsError, RemoteError, StoreError

_add_reference = ctypes.pythonapi.Py_IncRef
_add_reference.argtypes = (ctypes.py_object,)
_add_reference.restype = None


def keep_for_ever(value: object) -> None:
    """Nothing destroys it from now on, not even the interpreter's end, which does so to the rest.

    For what threads that Python cannot wait for still use, or what is another process's.

    >>> kept = [object()]
    >>> keep_for_ever(kept)
    """
    _add_reference(ctypes.py_object(value))


def forked_error(what: str, owner: int, kind: type[HpsError] = StoreError) -> HpsError:
    """What every verb raises in a forked child.

    Args:
        what: names the object: its path, or its addresses.
        owner: pid of the process that opened it.
        kind: of the error.
    """
    way_out = "hps.open(path, read_only=True) reads beside a writer"
    if issubclass(kind, RemoteError):
        way_out = "a RemoteParameterServer of their own, with a client_id of its own"
    return kind(
        f"{what}: process {owner} has it open, and this process, {os.getpid()}, was forked from "
        "it, without its threads and its lock; start processes by the method 'spawn' "
        f"(multiprocessing.get_context('spawn')), and open there what they need: {way_out}"
    )


class Inherited:
    """In the place of a lock, a thread pool or a connection: any use of it raises.

    >>> try:
    ...     Inherited("model", 1).pull()
    ... except StoreError as error:
    ...     "process 1 has it open" in str(error)
    True
    """

    def __init__(self, what: str, owner: int, kind: type[HpsError] = StoreError) -> None:
        self.__dict__["_refusal"] = (what, owner, kind)

    def refuse(self) -> NoReturn:
        """Raises the error."""
        raise forked_error(*self._refusal)

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    def __enter__(self) -> NoReturn:
        self.refuse()

    def __exit__(self, *error: object) -> None:
        """Never entered."""

    def __getitem__(self, name: object) -> NoReturn:
        self.refuse()

    def __iter__(self) -> NoReturn:
        self.refuse()

    def __contains__(self, name: object) -> NoReturn:
        self.refuse()

    def __len__(self) -> NoReturn:
        self.refuse()


def refuse_in_children(
    holder: object,
    what: str,
    names: Sequence[str],
    kind: type[HpsError] = StoreError,
) -> None:
    """From now on a child that is forked has an `Inherited` in the place of some attributes.

    Their objects live on in the child, untouched: to destroy them may wait for threads that are not
    there, or change what is the parent's.

    Args:
        holder: the object; it is not kept alive.
        what: names it in the error.
        names: of the attributes.
        kind: of the error.

    Cost: nothing but at a fork, then some microseconds an object that is alive.
    """
    refusal = _Refusal(weakref.ref(holder), tuple(names), Inherited(what, os.getpid(), kind))
    held = holder.__dict__.setdefault("_refusals", [])  # for as long as the holder lives
    held.append(refusal)
    _Refusals.alive.add(refusal)


@dataclass(frozen=True, eq=False)
class _Refusal:
    """Of one holder: what is put into the place of which attributes."""

    holder: "weakref.ref[object]"
    names: tuple[str, ...]
    inherited: Inherited

    def enter_child(self) -> None:
        found = self.holder()
        if found is not None:
            for name in self.names:
                keep_for_ever(found.__dict__.get(name))
                found.__dict__[name] = self.inherited


class _Refusals:
    """Those of all living holders of the process.

    A fork calls functions without arguments, and what is registered for it stays for ever. So there
    is one for all holders, which must find them: by a class, which this module alone sees.
    """

    alive: ClassVar["weakref.WeakSet[_Refusal]"] = weakref.WeakSet()

    @classmethod
    def enter_child(cls) -> None:
        for refusal in list(cls.alive):
            refusal.enter_child()


os.register_at_fork(after_in_child=_Refusals.enter_child)


def is_inherited(value: object) -> bool:
    """True of what `refuse_in_children` has put in the place of an attribute."""
    return isinstance(value, Inherited)
