"""Random histories of several servers, published now and then: what is served is what they hold.

Above it: pytest, Hypothesis. Below it: the histories of one store, over shards: updates, erasure,
periods, admission, returns to older checkpoints, compaction of one shard, servers that are stopped
or killed and started again.
"""

from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from hps.service.client.parameter_server import RemoteParameterServer
from tests.publish.test_published_histories import TABLES, PublishedHistory
from tests.service.client.client_lab import service

_SHARDS = 2


class PublishedServiceHistory(PublishedHistory):
    """Two servers and one destination."""

    def _opened(self) -> RemoteParameterServer:
        self._stack = ExitStack()
        folder = str(self._folder)
        made = service(self._folder, _SHARDS, TABLES, seed=1, publish_to=(folder,))
        self._service = self._stack.enter_context(made)
        return self._stack.enter_context(self._service.client())

    @rule(shard=st.integers(0, _SHARDS - 1))
    def compact(self, shard: int) -> None:
        self._service.shards[shard].parts.store.server.compact()

    @rule(is_saved=st.booleans())
    def start_again(self, is_saved: bool) -> None:
        if is_saved:
            self._server.checkpoint()
        self._server.close()
        self._service.kill()
        self._stack.close()
        self._server = self._opened()

    def teardown(self) -> None:
        self._stack.close()
        super().teardown()


@pytest.mark.slow
def test_what_is_served_is_what_the_servers_hold_whatever_came_before() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        PublishedServiceHistory,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
