"""What holds for every test.

Above it: pytest. Below it: rank_nursery.py, which several folders' tests start ranks with.
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.rank_nursery import Nursery


# Where each core has its worker torch's own second thread only takes turns with another test's; the
# processes that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Examples may take their time: how long one takes says what else the machine does."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # a machine with a GPU may lack it, whose tests need none
        return
    settings.register_profile("hps", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("hps")


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C; and a library that an
    earlier test has used may have left a handler for which the system goes on with a wait."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Nursery]":
    """One for all tests of a process: it takes longer to start than most of its runs."""
    from tests.cluster.rank_nursery import nursery  # which not every test needs

    with nursery(tmp_path_factory.mktemp("ranks")) as found:
        yield found


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Python's threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Small runs are faster so, and leave the other core to another test."""
    import torch  # which takes its time, and not every test needs it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
