"""A forked child that does what a test says, and its answer; one that hangs is ended.

Above it: tests of what a child may not do with what its parent has open. Below it: os.fork.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hps.errors import HpsError

_LONGEST_SECONDS = 60
# What moving a promoted name asks of the system; a kill may come at any of these calls.
_CALLS = ("open", "fsync", "replace", "rename", "close")


def in_forked_child(act: Callable[[], str]) -> str:
    """What `act` returns in a child; an exception as "TypeName: message".

    The child ends without destructors, as those of multiprocessing do.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_SECONDS)
        try:
            answer = act()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    return answer if status == 0 else f"the child hung, status {status}: {answer}"


def refused_in_child(verbs: Sequence[Callable[[], object]]) -> list[str]:
    """Which of some calls a forked child is not refused with the advice to use 'spawn'."""

    def act() -> str:
        wrong = []
        for number, verb in enumerate(verbs):
            try:
                verb()
                wrong.append(f"{number} was done")
            except HpsError as error:
                is_clear = f"process {os.getppid()} has it open" in str(error)
                if not (is_clear and "'spawn'" in str(error)):
                    wrong.append(f"{number}: {error}")
        return "; ".join(wrong)

    answer = in_forked_child(act)
    return [answer] if answer else []


def _kill_at(number: int) -> None:
    """From now on the process ends, as by a kill, before its call of that number; for a child."""
    count = 0

    def before(act: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            nonlocal count
            if count == number:
                os._exit(0)
            count += 1
            return act(*given, **named)

        return called

    for name in _CALLS:
        setattr(os, name, before(getattr(os, name)))


def killed_at_each_call(act: Callable[[], object]) -> Iterator[bool]:
    """Has a child act, killed before its first call, then one before its second, until one is done.

    Yields whether it was, after each.
    """
    is_done, number = False, 0
    while not is_done:

        def killed(number: int = number) -> str:
            _kill_at(number)
            act()
            return "done"

        answer = in_forked_child(killed)
        assert answer in ("", "done"), answer
        is_done = answer == "done"
        yield is_done
        number += 1
