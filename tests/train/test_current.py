"""What calls read while it is replaced, also where an interrupt ends a call.

Above it: pytest. Below it: current.py.
"""

import threading

from hps.train.current import Current
from tests.contracts.test_interrupt_points import struck_at

PATIENCE_SECONDS = 10.0


def test_readers_of_what_was_replaced_are_waited_for() -> None:
    current, events = Current("1"), []
    with current.reading() as first:
        current.replace("2")
        with current.reading() as second:
            assert (first, second, current.value) == ("1", "2", "2")
        waiter = threading.Thread(target=lambda: (current.wait_unread(), events.append("unread")))
        waiter.start()
        waiter.join(0.05)
        assert waiter.is_alive() and not events
        events.append("read")
    waiter.join(PATIENCE_SECONDS)
    assert events == ["read", "unread"]
    current.replace("3")
    assert current.wait_unread()  # nobody has read it


def test_nobody_is_waited_for_once_it_is_over() -> None:
    current = Current("1")
    with current.reading():
        current.replace("2")
        assert not current.wait_unread(lambda: True)
    assert current.wait_unread(lambda: True)


def test_an_interrupt_at_any_call_leaves_no_reader_and_no_lock() -> None:
    for number in range(1, 100):
        current = Current("1")

        def read(current: Current[str] = current) -> None:
            with current.reading() as value:
                assert value == "1"
                current.replace("2")  # so that the last reader tells

        error = struck_at(number, read)
        if error is None:
            break
        error.__traceback__ = None
        done = threading.Event()

        def go_on(current: Current[str] = current, done: threading.Event = done) -> None:
            with current.reading():
                pass
            current.replace("3")
            current.wait_unread()
            done.set()

        threading.Thread(target=go_on, daemon=True).start()
        assert done.wait(PATIENCE_SECONDS), f"call {number}"
    assert number > 5
