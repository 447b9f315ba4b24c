"""run_aside(): a call that its caller waits for, in a thread of lower priority.

Above it: publisher.py; a served shard, which has threads of its own. Below it: the system's
priorities of threads. A priority that was lowered cannot be raised again without a right that users
have not: so it is never the caller's that is.
"""

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from hps.errors import StoreError

_LOWEST = 19

T = TypeVar("T")


def lower_priority(nice: int) -> None:
    """Has the calling thread, and threads that it will begin, run after others of the machine.

    Args:
        nice: 0 to 19; added to what the thread has. Where threads have no priority of their own
            nothing is done.
    """
    if nice <= 0 or not sys.platform.startswith("linux"):
        return
    thread = threading.get_native_id()
    try:
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(now + nice, _LOWEST))
    except OSError:  # it is as it was: slower for others, and right
        return


def run_aside(call: Callable[[Callable[[], None]], T], nice: int) -> T:
    """What a call returns, or raises.

    Args:
        call: is given a function that it calls now and then, which raises StoreError once the
            caller has been interrupted.
        nice: as lower_priority.

    Raises:
        KeyboardInterrupt, and whatever else a signal raises in the caller: once the call has ended;
            of a second signal at once, and the call ends by itself.
    """
    is_stopped = threading.Event()
    has_ended = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def check() -> None:
        if is_stopped.is_set():
            raise StoreError(errno.ECANCELED, "publishing was interrupted")

    def work() -> None:
        try:
            lower_priority(nice)
            results.append(call(check))
        except BaseException as error:  # raised in the caller
            errors.append(error)
        finally:
            has_ended.set()

    try:
        threading.Thread(target=work, name="hps-publish-version", daemon=True).start()
        has_ended.wait()
    except BaseException:
        is_stopped.set()
        has_ended.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]
