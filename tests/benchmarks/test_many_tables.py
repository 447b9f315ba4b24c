"""What the step over many tables rests on: its tables, its keys, and the clock round native calls.

Above it: pytest. Below it: benchmarks/parameter_server/many_tables.
"""

import time

import torch

from benchmarks.parameter_server.many_tables.python_share import NativeClock
from benchmarks.parameter_server.many_tables.workload import (
    all_keys,
    equal_shape,
    make_workload,
    mixed_shape,
)
from hps import _C


def test_mixed_tables_reach_from_the_smallest_to_the_largest():
    shape = mixed_shape(512, largest=50_000)
    assert (min(shape.rows), max(shape.rows)) == (100, 50_000)
    assert set(shape.dims) == {8, 16, 32, 64, 128}
    assert list(shape.rows) != sorted(shape.rows)


def test_no_two_tables_have_a_key_in_common():
    shape = equal_shape(4, tables=3, rows=50)
    keys = torch.cat([all_keys(shape, table) for table in range(3)])
    assert len(keys.unique()) == 150


def test_a_batch_asks_a_table_for_keys_of_its_own():
    work = make_workload(equal_shape(4, bag=2, tables=3, rows=50), num_batches=2)
    for lookup in work.batches:
        for table, ids in enumerate(lookup.batch.features.values()):
            dense = lookup.ids.view(3, -1)[table]
            assert torch.equal(ids.keys_L, all_keys(work.shape, table)[dense])
            assert ids.offsets.tolist() == [0, 2, 4, 6, 8]


def test_the_clock_times_native_calls_alone_and_comes_off_again():
    before = _C.TableBatch.pull, _C.call_all
    clock = NativeClock()
    with clock.installed():
        time.sleep(0.01)
        assert clock.num_calls == 0 and clock.seconds == 0
        _C.call_all([lambda: time.sleep(0.01), lambda: _C.call_all([])])
    assert clock.num_calls == 1 and clock.seconds > 0.01
    assert (_C.TableBatch.pull, _C.call_all) == before
