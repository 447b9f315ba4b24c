"""A step that fails on one rank fails on all; an error in a block ends it for the others.

Above it: pytest. Below it: hps/cluster/world/together.py over logical ranks.
"""

from typing import Any

import pytest

from hps.cluster.world.local_world import LocalWorld
from hps.cluster.world.together import Together, is_shared
from hps.errors import ClusterError, ConfigError
from tests.cluster.ranks import Failure, run_ranks, successes


def test_each_rank_gets_what_its_own_step_returned() -> None:
    def body(world: LocalWorld) -> Any:
        together = Together(world, "here")
        return together.is_alone, together.agreed("a step", lambda: world.rank + 10)

    assert successes(run_ranks(2, body)) == [(False, 10), (False, 11)]
    assert successes(run_ranks(1, body)) == [(True, 10)]


def test_a_step_that_fails_on_one_rank_raises_on_all_and_says_so() -> None:
    def act(rank: int) -> None:
        if rank == 1:
            raise ConfigError("no room")

    def body(world: LocalWorld) -> Any:
        together = Together(world, "here")
        with pytest.raises(ConfigError, match="no room") as raised:
            together.agreed("a step", lambda: act(world.rank))
        assert is_shared(raised.value)
        with pytest.raises(ConfigError), together.block("a block"):
            raise raised.value
        return world.is_aborted

    assert successes(run_ranks(2, body)) == [False, False], "all have raised: none is out of step"


def test_an_error_of_one_rank_in_a_block_is_told_to_the_one_that_waits() -> None:
    def body(world: LocalWorld) -> Any:
        together = Together(world, "here")
        with together.block("a block"):
            if world.rank == 1:
                raise ValueError("broken")
            world.control.barrier()

    first, second = run_ranks(2, body)
    assert isinstance(first, Failure) and isinstance(first.error, ClusterError)
    assert "a block: ValueError: broken" in str(first.error)
    assert isinstance(second, Failure) and isinstance(second.error, ValueError)
