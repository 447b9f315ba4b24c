"""A model on its way from rank to rank: whole, and never held more than once beside its pieces.

Above it: pytest. Below it: hps.cluster.world.blobs, tests/cluster/ranks.py.
"""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from hps.cluster.world import blobs
from hps.cluster.world.blobs import send_blobs, share_blobs
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes


def random_blobs(seed: int, lengths: dict[str, int]) -> dict[str, bytes]:
    generator = np.random.default_rng(seed)
    return {name: generator.bytes(length) for name, length in lengths.items()}


@pytest.mark.parametrize("round_bytes", [1, 64, 999, 2**23])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_blobs_arrive_whole_whatever_the_pieces(
    size: int, round_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_ROUND_BYTES", round_bytes)
    model = random_blobs(1, {"model": 300, "reader": 0, "tables": 41})

    def body(world: LocalWorld) -> Any:
        shared = share_blobs(world.control, model if world.rank == size - 1 else None)
        # From each rank to each, of other lengths.
        mine = [
            random_blobs(10 * world.rank + to, {f"{world.rank}-{to}": 7 * world.rank + to})
            for to in range(size)
        ]
        return shared, send_blobs(world.control, mine), share_blobs(world.control, None)

    for rank, (shared, own, nothing) in enumerate(successes(run_ranks(size, body))):
        assert shared == model and nothing == {}
        assert own == {
            name: blob
            for of in range(size)
            for name, blob in random_blobs(10 * of + rank, {f"{of}-{rank}": 7 * of + rank}).items()
        }


def test_sharing_a_model_holds_one_copy_of_it_a_rank_and_pieces() -> None:
    size, length = 4, 2**25
    model = {"model": bytes(length)}
    messages: list[int] = []

    def body(world: LocalWorld) -> Any:
        exchange = world.control.exchange

        def counted(rows: Any, *others: Any) -> Any:
            messages.append(rows.nbytes)
            return exchange(rows, *others)

        world.control.exchange = counted  # type: ignore[method-assign]
        return len(share_blobs(world.control, model if world.rank == 0 else None)["model"])

    tracemalloc.start()
    try:
        assert successes(run_ranks(size, body)) == [length] * size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All ranks are threads of this process. One gives, without a copy; of a buffer that has grown
    # and what is read out of it two stand at once on each of the others.
    assert peak < 2.2 * (size - 1) * length + 4 * blobs._ROUND_BYTES
    assert max(messages) <= blobs._ROUND_BYTES < length
