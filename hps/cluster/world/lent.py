"""LentTensors: those of this rank's collectives that a thread of gloo may still hold.

Above it: torch_world.py. Below it: weak references.

A thread of gloo says that a collective is done, and lets go of its tensors after that. Who lets go
of a tensor last frees what Python has of it, and takes the GIL for it: where the interpreter ends
at that moment, Python 3.11 to 3.13 end the thread, within code that allows no such end, and the C++
runtime aborts the process ("terminate called without an active exception"). torch 2.13 ends those
threads only with the last reference to their process group, which DistributedDataParallel has, too,
and the model lives as long as the interpreter.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from hps.common.forked import keep_for_ever

_PAUSE_SECONDS = 0.001
_LAST_SECONDS = 10.0  # a thread that has its work behind it lacks nothing but a processor


class LentTensors:
    """What is handed to gloo, until its threads have let go of it. Thread-safe.

    Whoever lends keeps the lent tensors, and the collective's `Work`, no longer than the collective
    takes: else `end` waits in vain. Other tensors of the same memory may live on.

    >>> lent = LentTensors()
    >>> lent.lend([torch.zeros(2)])  # which nobody holds any more
    >>> lent.num_held
    0
    >>> lent.end()
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        atexit.register(self.end)  # of a rank that fails, and of a program that closes nothing

    def lend(self, tensors: Sequence[torch.Tensor]) -> None:
        """To be called before the collective that takes them."""
        with self._lock:
            self._tensors = [one for one in self._tensors if one() is not None]
            self._tensors += map(weakref.ref, tensors)

    def take_back(self, tensors: Sequence[torch.Tensor]) -> None:
        """The collective has not begun: none of its threads holds them, nor is waited for."""
        own = {id(tensor) for tensor in tensors}
        with self._lock:
            self._tensors = [one for one in self._tensors if id(one()) not in own]

    def give_up(self, tensors: Sequence[torch.Tensor], work: dist.Work) -> None:
        """The collective has failed, or nobody waits for it any more: nobody knows when its thread
        is done. So the `Work` stays for ever, and the thread is never the last to hold it."""
        keep_for_ever(work)
        self.take_back(tensors)

    @property
    def num_held(self) -> int:
        """Tensors that are held by anybody."""
        with self._lock:
            return sum(one() is not None for one in self._tensors)

    def end(self) -> None:
        """Waits until the threads have let go of all but what was given up; nothing more is lent.

        Cost: as a rule nothing; at most ten seconds.
        """
        atexit.unregister(self.end)
        if os.getpid() != self._process:
            return  # a forked child has none of those threads
        deadline = time.monotonic() + _LAST_SECONDS
        while self.num_held and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
