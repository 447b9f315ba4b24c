"""Stops: a signal that asks a running job to end, and what the job may do before it does.

Above it: `hps train`, which installs it, the training run, `hps.Pipeline`. Below it: Python's
signals. Python runs a handler between two bytecodes of the main thread; a second signal must also
end a process whose main thread is in a native call, so a thread of its own waits for that one.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self, TypeVar

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# torchrun passes on a Ctrl-C that its ranks have had from the terminal, too: one wish, not two.
RANK_PATIENCE_SECONDS = 5.0
_MOMENT_SECONDS = 0.1
_Item = TypeVar("_Item")


class Interrupted(KeyboardInterrupt):
    """Ends the command: a signal came where there is nothing to finish first.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal_number = number


class StopWaiting(Interrupted):
    """Leaves a loop over batches, and a wait for the next one, however long its source takes."""


class Stops:
    """Whether the job has been asked to stop, and by which signal.

    As a context manager it takes SIGTERM and SIGINT, if it is entered in the main thread: until
    `defer` a signal raises Interrupted; after it the first one is only noted, and a second one
    ends the process at once, as a kill would. Without the block nothing is installed, and only
    `ask` asks.

    Args:
        patience_seconds: after a signal, in which another one counts as the same.
        tells: say on standard error what the first signal does.

    >>> stops = Stops()
    >>> stops.ask(signal.SIGTERM)
    >>> stops.asked
    15
    """

    def __init__(self, *, patience_seconds: float = 0.0, tells: bool = False) -> None:
        self._patience = patience_seconds
        self._tells = tells
        self._asked = 0
        self._is_deferred = False
        self._is_waiting = False
        self._has_run = threading.Event()  # the handler, in the main thread
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._pipe[0], True)
        threading.Thread(
            target=self._end_at_second, args=(self._pipe[0],), name="hps signals", daemon=True
        ).start()
        self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            # Who starts a job in the background may have it ignore Ctrl-C; so it stays.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pipe is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._pipe[1])  # ends the thread, which closes the other end
        self._pipe = None

    @property
    def asked(self) -> int:
        """The number of the signal that has asked to stop; 0 if none has."""
        return self._asked

    def ask(self, number: int) -> None:
        """Asks as a signal of this number would; from any thread."""
        self._asked = self._asked or int(number)

    def defer(self) -> None:
        """From now on a signal is only noted: what is under way is finished and saved.

        Raises:
            Interrupted: one has been noted before.
        """
        self._is_deferred = True
        if self._asked:
            raise Interrupted(self._asked)

    def next_of(self, items: Iterator[_Item]) -> _Item | None:
        """The next item, or None at the end; a signal does not wait for it.

        Raises:
            StopWaiting: asked to stop before the item came. The item may be lost to `items`.
        """
        self._is_waiting = True
        try:
            if self._asked:
                raise StopWaiting(self._asked)
            return next(items, None)
        finally:
            self._is_waiting = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        is_first = not self._asked
        self.ask(number)
        self._has_run.set()
        if is_first and not self._is_deferred:
            raise Interrupted(number)
        if is_first and self._tells:
            _say(
                f"{signal.Signals(number).name}: finishes the step and saves a checkpoint; "
                "once more ends at once"
            )
        if self._is_waiting:
            raise StopWaiting(number)

    def _end_at_second(self, pipe: int) -> None:
        """A thread: reads the number of each signal as it comes; not the handler, which waits
        until the main thread is back from native code."""
        first: float | None = None
        num_own = 0
        while data := _read(pipe):
            for number in data:
                if number not in self._before:
                    continue
                if num_own:
                    num_own -= 1
                elif first is None:
                    first = time.monotonic()
                    num_own += self._wake_main_thread(number)
                elif time.monotonic() - first >= self._patience:
                    _say(
                        f"{signal.Signals(number).name} once more: ended at once; --resume goes on "
                        "from the newest checkpoint"
                    )
                    os._exit(128 + number)
        os.close(pipe)

    def _wake_main_thread(self, number: int) -> bool:
        """Sends it the signal if another thread has had it: then a wait of the main thread for a
        lock would not notice. True if it did."""
        if self._has_run.wait(_MOMENT_SECONDS):
            return False
        main_thread = threading.main_thread().ident
        if main_thread is not None:
            signal.pthread_kill(main_thread, number)
        return main_thread is not None


def _read(pipe: int) -> bytes:
    try:
        return os.read(pipe, 64)
    except OSError:
        return b""


def _say(line: str) -> None:
    """Past Python's buffers, which the code that was interrupted may be writing to."""
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), f"hps: {line}\n".encode())


def name_of(number: int) -> str | None:
    """A signal's name; None for 0.

    >>> name_of(15), name_of(0)
    ('SIGTERM', None)
    """
    return signal.Signals(number).name if number else None


def status_of(name: str) -> int:
    """The exit status of a command that a signal of this name has ended.

    >>> status_of("SIGTERM"), status_of("SIGINT")
    (143, 130)
    """
    return 128 + int(signal.Signals[name])
