"""Turn: one at a time, in the order of asking, whatever interrupts a waiter."""

import threading
from collections.abc import Callable

import pytest

from hps.turn import Turn


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do; fails after ten seconds."""
    pause = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen within ten seconds")


def test_threads_get_the_turn_one_at_a_time_in_the_order_of_asking() -> None:
    turn, came, inside = Turn(), [], []

    def take(number: int) -> None:
        with turn.held():
            inside.append(number)
            assert len(inside) == 1
            came.append(number)
            inside.remove(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with turn.held():
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda number=number: len(turn._tickets) == number + 2)
        assert came == []
    for thread in threads:
        thread.join(10)
    assert came == list(range(8)) and not turn._tickets


def test_a_waiter_that_is_interrupted_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn()

    def interrupt(event: threading.Event, seconds: float | None = None) -> bool:
        raise KeyboardInterrupt

    with turn.held():
        monkeypatch.setattr(threading.Event, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt), turn.held():
            pass
        monkeypatch.undo()
        assert len(turn._tickets) == 1
    with turn.held():
        pass
    assert not turn._tickets


def test_an_error_inside_gives_the_turn_back() -> None:
    turn = Turn()
    with pytest.raises(KeyError), turn.held():
        raise KeyError
    assert not turn._tickets
