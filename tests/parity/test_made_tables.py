"""Tables that a client makes on servers have the rules and the rows of those in one process, to the
bit, also where the servers' logs alone have what was done.

Above it: pytest. Below it: the batches of test_counts.py, the training of test_deaths.py; real
servers in this process.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from tests.parity import test_deaths, test_who_waits
from tests.parity.test_bounds_elsewhere import MOST, bounded
from tests.parity.test_counts import ALL
from tests.parity.test_deaths_elsewhere import counts, train
from tests.service.client.client_lab import service


def narrow_tables() -> list[hps.TableConfig]:
    """Rounded at random; the optimizers differ in what state is beside the weights."""
    ads, users = test_deaths.tables()
    return [
        replace(ads, dtype="bfloat16", optimizer=hps.RowWiseAdagrad(lr=0.05)),
        replace(users, dtype="bfloat16", optimizer=hps.Adam(lr=0.01)),
    ]


KINDS: dict[str, Callable[[], list[hps.TableConfig]]] = {
    "expiry": test_deaths.tables,
    "narrow": narrow_tables,
    "nearest": lambda: [replace(one, rounding="nearest") for one in narrow_tables()],
    **{rule: partial(test_who_waits.tables, rule) for rule in test_who_waits.RULES},
}


@pytest.fixture(scope="module", params=KINDS)
def expected(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Any]:
    return request.param, seen_in_one(tmp_path_factory.mktemp("store"), KINDS[request.param]())


def seen(server: Any) -> Any:
    """Rows, who has one, their counts and the digests."""
    has = np.asarray(server.contains("ads", ALL)).tolist()
    told = counts(server) if server.tables["ads"].statistics else None
    return server.num_rows("ads"), has, told, [server.digest(name) for name in ("ads", "users")]


def seen_in_one(path: Path, tables: list[hps.TableConfig]) -> Any:
    with hps.ParameterServer(hps.Config(path=path, tables=tables)) as server:
        train(server, 0)
        return seen(server)


@pytest.mark.parametrize(
    ("count", "depth", "is_killed"), [(1, 0, False), (3, 2, False), (3, 0, True)]
)
def test_tables_that_a_client_makes_are_as_in_one_process(
    expected: tuple[str, Any], tmp_path: Path, count: int, depth: int, is_killed: bool
) -> None:
    kind, one = expected
    tables = KINDS[kind]()
    by_dependence = sorted(tables, key=lambda table: table.admission is not None)
    with service(tmp_path, count, ()) as servers:
        with servers.client() as client:
            assert [client.create_table(table) for table in by_dependence] == [True, True]
            assert [client.tables[table.name] for table in tables] == tables
            train(client, depth)
        if is_killed:
            servers.kill()
    with service(tmp_path, count, ()) as servers, servers.client() as client:
        assert seen(client) == one
        assert [client.create_table(table) for table in tables] == [False, False]
        assert client.tables == {table.name: table for table in tables}


def test_a_bound_is_one_of_all_shards(tmp_path: Path) -> None:
    """Each keeps to its share; with one the rows are those of one process."""
    one = seen_in_one(tmp_path / "one", bounded())
    for count in (1, 3):
        with ExitStack() as stack:
            servers = stack.enter_context(service(tmp_path / str(count), count, ()))
            with servers.client() as client:
                for table in bounded():
                    client.create_table(table)
                train(client, 0)
                found = seen(client)
            figures = [
                shard.parts.store.server.stats()["tables"]["ads"] for shard in servers.shards
            ]
            assert [part["max_rows"] for part in figures] == [MOST // count] * count
            assert all(part["rows"] <= MOST // count for part in figures)
            servers.kill()
        with service(tmp_path / str(count), count, ()) as servers, servers.client() as client:
            assert seen(client) == found
        assert count == 3 or found == one
