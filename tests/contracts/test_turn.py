"""Turn: one at a time, in the order of asking; no interrupt, wherever it comes, keeps it taken."""

import dis
import signal
import sys
import threading
import time
from types import FrameType

import pytest

from hps._C import Turn, Turns, call_all
from tests.front import wait_until


def test_threads_get_the_turn_one_at_a_time_in_the_order_of_asking() -> None:
    turn, came, inside = Turn(), [], []

    def take(number: int) -> None:
        with turn:
            inside.append(number)
            assert len(inside) == 1
            came.append(number)
            inside.remove(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with turn:
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda number=number: turn.num_asking == number + 2)
        assert came == []
    for thread in threads:
        thread.join(60)
    assert came == list(range(8)) and turn.num_asking == 0


def test_a_turn_knows_the_thread_that_has_it() -> None:
    first, second = Turn(), Turn()
    seen: list[bool] = []

    def look() -> None:
        seen.append(first.is_mine or second.is_mine)

    assert not first.is_mine
    with Turns([first, second]):
        other = threading.Thread(target=look)
        other.start()
        other.join(60)
        assert seen == [False] and first.is_mine and second.is_mine
    assert not first.is_mine and not second.is_mine
    with first:
        assert first.is_mine and not second.is_mine


def test_a_waiter_that_is_interrupted_leaves_the_queue_and_what_it_had() -> None:
    first, second = Turn(), Turn()
    gate, is_held = threading.Event(), threading.Event()

    def hold() -> None:
        with second:
            is_held.set()
            assert gate.wait(60)

    def interrupt(waiter: int) -> None:
        wait_until(lambda: second.num_asking == 2)  # the waiter has the first and asks
        signal.pthread_kill(waiter, signal.SIGALRM)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        striker = threading.Thread(target=interrupt, args=(threading.get_ident(),))
        striker.start()
        # Before the holder gives up, after twenty seconds: then the turn would be had.
        with pytest.raises(KeyboardInterrupt), Turns([first, second]):
            raise AssertionError("the second turn was had twice")
        striker.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert first.num_asking == 0 and second.num_asking == 1 and holder.is_alive()
    gate.set()
    holder.join(60)
    with Turns([first, second]):
        assert first.num_asking == second.num_asking == 1
    assert first.num_asking == second.num_asking == 0


def test_an_error_inside_gives_the_turn_back() -> None:
    turn = Turn()
    with pytest.raises(KeyError), turn:
        raise KeyError
    assert turn.num_asking == 0


def test_an_interrupt_at_any_step_of_the_block_gives_the_turn_back() -> None:
    """Where Python asks for signals: on entering a function, behind a call, at a jump back."""
    turn = Turn()

    def use() -> None:
        for _ in range(2):
            with turn:
                len("")

    is_checked = {
        step.offset
        for before, step in zip(dis.get_instructions(use), list(dis.get_instructions(use))[1:],
                                strict=False)
        if before.opname in ("CALL", "RESUME", "JUMP_BACKWARD")
    }  # fmt: skip
    struck = 0
    for at in range(1, 1000):
        left = at
        is_struck = False

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left, is_struck
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code is use.__code__ and frame.f_lasti in is_checked:
                left -= 1
                if left == 0:
                    is_struck = True
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            use()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert turn.num_asking == 0, f"step {at}"
        if not is_struck:
            break
        struck += 1
    assert struck >= 6


def test_calls_that_belong_together_come_in_their_order_and_end_with_an_error() -> None:
    done: list[int] = []
    spans: list[float] = []

    def sleep() -> None:
        started = time.monotonic_ns()
        time.sleep(0.02)
        spans.append((time.monotonic_ns() - started) / 1e9)

    started = time.monotonic_ns()
    seconds = call_all([lambda: done.append(1), sleep])
    whole = (time.monotonic_ns() - started) / 1e9
    assert done == [1] and len(seconds) == 2
    assert spans[0] <= seconds[1] + 1e-6 and sum(seconds) <= whole + 1e-6
    with pytest.raises(KeyError):
        call_all([{}.popitem, lambda: done.append(2)])
    assert done == [1]
