"""Sessions of clients: they are found at every moment, and the oldest give way."""

import threading

import pytest

from hps.errors import FencedError
from hps.update_log.records import Identity
from hps.update_log.sessions import Sessions

CLIENTS = [f"client-{number}" for number in range(4)]


@pytest.mark.usefixtures("hasty_threads")
def test_a_session_is_found_while_another_thread_counts_its_mutations() -> None:
    """A push looks whether its turn has come before it waits for it, beside other pushes."""
    sessions = Sessions()
    for number, client in enumerate(CLIENTS, 1):
        sessions.renew(client, number, 0)
    num_found, errors, is_over = 0, [], threading.Event()

    def find() -> None:
        nonlocal num_found
        while not is_over.is_set():
            try:
                sessions.find(CLIENTS[1], 2)
                num_found += 1
            except FencedError as error:
                errors.append(error)

    finder = threading.Thread(target=find)
    finder.start()
    for number in range(1, 20_000):
        sessions.advance(Identity(CLIENTS[1], 2, number), number)
        sessions.renew(CLIENTS[1], 2, number)
    is_over.set()
    finder.join()
    assert num_found > 0 and not errors


def test_the_least_recently_used_sessions_give_way() -> None:
    sessions = Sessions()
    for number, client in enumerate(CLIENTS, 1):
        sessions.renew(client, number, 0)
    sessions.advance(Identity(CLIENTS[0], 1, 1), 1)
    sessions.renew(CLIENTS[1], 5, 0)
    sessions.trim(2)
    assert [client for client, _ in sessions] == [CLIENTS[0], CLIENTS[1]]
    with pytest.raises(FencedError, match="any more"):
        sessions.find(CLIENTS[2], 3)
