"""64 clients at once on one real server that is killed in the middle."""

from collections.abc import Iterator

import pytest

from tests.torture.many_clients import PLANT, run_many_clients
from tests.torture.service_recipes import fresh_seed
from tests.torture.service_shards import Nursery, nursery


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    with nursery() as process:
        yield process


def test_of_64_clients_at_once_each_has_every_push_once_and_none_starves(process: Nursery) -> None:
    for _ in range(12):  # on a slow machine the kill may find nothing to replay
        clients = run_many_clients(process, fresh_seed())
        print(sorted(clients.done))
        assert clients.errors == []
        if not clients.missing():
            break
    assert clients.missing() == []


def test_a_server_that_forgets_marks_is_found_by_64_clients(process: Nursery) -> None:
    for _ in range(12):  # a kill may come where no mark is needed
        clients = run_many_clients(process, fresh_seed(), PLANT)
        if clients.errors:
            break
    assert clients.errors != []
    print(clients.errors[0])
