"""Models of every format, trained once for the tests of a process.

Above it: pytest. Below it: logs_of_kinds.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import hps
from tests.serving.logs_of_kinds import Trained, trained

Models = Callable[[str], tuple[Trained, hps.Model]]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """The store of a kind."""
    made: dict[str, Trained] = {}

    def store_of(kind: str) -> Trained:
        if kind not in made:
            made[kind] = trained(kind, tmp_path_factory.mktemp("serving"))
        return made[kind]

    return store_of


@pytest.fixture(scope="session")
def models(stores: Callable[[str], Trained]) -> Iterator[Models]:
    """The model of a kind, open."""
    opened: dict[str, hps.Model] = {}
    with ExitStack() as held:

        def model_of(kind: str) -> tuple[Trained, hps.Model]:
            if kind not in opened:
                store = stores(kind).store
                opened[kind] = held.enter_context(hps.Model.load(store, dram="8MiB"))
            return stores(kind), opened[kind]

        yield model_of
