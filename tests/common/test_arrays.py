"""The pool of output buffers: reused as soon as nobody holds a result, never a moment before."""

import numpy as np
import torch

from hps.common.arrays import OutputPool, as_keys, like


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_dropped_result_is_reused_and_a_held_one_is_not() -> None:
    pool = OutputPool()
    first = pool.take(100, 8)
    at = address(first)
    second = pool.take(100, 8)
    assert address(second) != at
    del first
    assert address(pool.take(100, 8)) == at


def test_views_and_tensors_of_a_result_hold_it() -> None:
    pool = OutputPool()
    model = torch.empty(0)
    holders = [
        lambda rows: rows[3:5],
        lambda rows: like(rows, model),
        lambda rows: like(rows, model)[2].view(-1)[1:],
        lambda rows: memoryview(rows),
        lambda rows: np.asarray(like(rows, model).reshape(-1)),
    ]
    for hold in holders:
        rows = pool.take(16, 4)
        at = address(rows)
        held = hold(rows)
        del rows
        assert address(pool.take(16, 4)) != at
        del held
        taken = [pool.take(16, 4) for _ in range(4)]
        assert at in [address(rows) for rows in taken]
        del taken


def test_the_pool_keeps_few_buffers_and_none_that_are_huge() -> None:
    pool = OutputPool()
    held = [pool.take(1000, 4) for _ in range(50)]
    assert len({address(rows) for rows in held}) == 50
    assert len(pool._buffers) <= 4
    del held
    large = pool.take(2**24 + 1, 1)
    assert all(buffer.size < large.size for buffer in pool._buffers)


def test_a_small_result_does_not_hold_a_large_buffer() -> None:
    pool = OutputPool()
    large = pool.take(10000, 16)
    at = address(large)
    del large
    assert address(pool.take(10, 16)) != at


def test_keys_are_views_where_dtype_and_layout_allow() -> None:
    keys = np.arange(10, dtype=np.int64)
    assert address(as_keys(keys)) == address(keys)
    tensor = torch.arange(10)
    assert address(as_keys(tensor)) == tensor.data_ptr()
    assert as_keys(keys[::2]).tolist() == [0, 2, 4, 6, 8]
    assert as_keys(np.array([-1], np.int64)).tolist() == [2**64 - 1]
    assert as_keys(torch.tensor([2**63], dtype=torch.uint64)).tolist() == [2**63]
