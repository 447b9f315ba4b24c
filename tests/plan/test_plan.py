"""What `hps plan` says beside real tables, stores and traffic.

Above it: pytest. Below it: hps/plan/, hps.ParameterServer.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.common.optimizers import OPTIMIZERS
from hps.plan import PlanQuestion, make_plan
from hps.plan.sizes import DENSE_COPIES, FLOAT_BYTES, PROCESS_BYTES, Sizer

SMALL = PlanQuestion(keys=200_000, dim=8, features=4, batch_size=512, gpu=None, ranks=1)
LARGE = PlanQuestion(keys=10**10, dim=16)


def table_of(question):
    optimizer = OPTIMIZERS[question.optimizer](0.05)
    return hps.TableConfig(name="ads", dim=question.dim, optimizer=optimizer)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("dim", [1, 17])
def test_a_slot_of_a_real_cache_takes_what_the_plan_says(tmp_path, optimizer, dim):
    row = make_plan(replace(SMALL, optimizer=optimizer, dim=dim)).row
    config = hps.Config(
        path=tmp_path,
        tables=[table_of(replace(SMALL, optimizer=optimizer, dim=dim))],
        dram=hps.DramCacheConfig(bytes="4MiB"),  # a larger one is in use as its rows come
        gpu=hps.GpuCacheConfig(bytes="4MiB", device="cpu"),
    )
    with hps.ParameterServer(config) as server:
        stats = server.stats()
        assert stats["tables"]["ads"]["row_bytes"] == row.image
        for tier, slot in (("dram_cache", row.dram_slot), ("gpu_cache", row.gpu_slot)):
            taken = stats[tier]["bytes"] / stats[tier]["capacity_rows"]
            assert taken == pytest.approx(slot, rel=5e-3)  # a byte more would be 1 %


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store of a million rows, every tenth overwritten twice: (its figures, the plan's sizes)."""
    question = replace(SMALL, keys=1_000_000, dim=4, optimizer="sgd")
    dram = hps.DramCacheConfig(bytes="96MiB")
    ssd = hps.SsdStoreConfig(compaction_bytes_per_second="1GiB")
    path = tmp_path_factory.mktemp("store")
    config = hps.Config(path=path, tables=[table_of(question)], dram=dram, ssd=ssd)
    keys = np.arange(question.keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    with hps.ParameterServer(config) as server:
        server.assign("ads", keys, np.zeros((len(keys), 4), np.float32))
        server.checkpoint()
        first = server.stats()["ssd_store"]
        for _ in range(8):
            server.assign("ads", keys[::2], np.ones((len(keys) // 2, 4), np.float32))
            server.checkpoint()
        figures = server.stats()["ssd_store"]
    return figures, first, Sizer(question)


def test_rows_on_ssd_take_what_the_plan_says(stored):
    figures, first, sizer = stored
    ssd = sizer.ssd(1, sizer.dram(1, sizer.step(1)))
    assert figures["rows"] == sizer.question.keys
    assert figures["live_bytes"] == ssd.live == sizer.row.ssd * figures["rows"]
    assert first["rows"] == figures["rows"]
    # And headers, footers' ends, the manifest.
    assert ssd.live < first["segment_bytes"] <= first["files_bytes"] < 1.001 * ssd.live


def test_the_index_takes_at_most_what_the_plan_says(stored):
    figures, _, sizer = stored
    least = sizer.space["index_bytes_least"]
    assert least <= figures["index_bytes"] / figures["rows"] <= sizer.row.index
    assert sizer.row.index < 15.4


def test_live_segments_stay_below_the_planned_bound(stored):
    figures, _, sizer = stored
    ssd = sizer.ssd(1, sizer.dram(1, sizer.step(1)))
    assert figures["compactions"] > 0
    assert figures["live_bytes"] < figures["segment_bytes"] < ssd.bound


def test_a_checkpoint_writes_the_rows_that_the_plan_expects(tmp_path):
    """Batches of the law's keys between two checkpoints, with all rows in DRAM."""
    from benchmarks.cluster.workload import Workload

    question = replace(SMALL, dram="2GiB", examples_per_second=512.0, checkpoint_seconds=20.0)
    log = Workload(keys=question.keys, batch_size=512, features=4, distinct=30)
    dram = hps.DramCacheConfig(bytes="64MiB")
    config = hps.Config(path=tmp_path, tables=[table_of(question)], dram=dram)
    plan = make_plan(question)
    with hps.ParameterServer(config) as server:
        for number in range(30):
            if number == 10:
                server.checkpoint()
            keys = log.keys_of(number)
            server.push("ads", keys, np.ones((len(keys), 8), np.float32))
        before = server.stats()["ssd_store"]["bytes_written"]
        info = server.checkpoint()
        stats = server.stats()
        assert stats["dram_cache"]["evictions"] == 0
    assert info["rows_written"] == pytest.approx(plan.ssd.checkpoint_rows, rel=0.02)
    written = stats["ssd_store"]["bytes_written"] - before
    assert written == pytest.approx(plan.ssd.checkpoint, rel=0.03)


def test_a_cache_of_the_least_size_holds_the_batches_in_flight(tmp_path):
    question = replace(SMALL, depth=2)
    from benchmarks.cluster.workload import TABLE, Workload

    plan = make_plan(question)
    log = Workload(keys=question.keys, batch_size=512, features=4, distinct=30)
    config = hps.Config(
        path=tmp_path,
        tables=[replace(table_of(question), name=TABLE)],
        dram=hps.DramCacheConfig(bytes=int(plan.dram.least_cache)),
    )
    with hps.ParameterServer(config) as server:
        embedding, optimizer = hps.SparseEmbedding(server, TABLE), hps.RowOptimizer(server)
        most = 0
        with hps.Pipeline(log.parts(0, 1, 30), server, depth=2) as batches:
            for batch in batches:
                most = max(most, server.stats()["dram_cache"]["pins"])
                embedding(batch).sum().backward()
                optimizer.step()
        stats = server.stats()["dram_cache"]
        assert stats["evictions"] > 0 and stats["refusals"] == 0
        assert most > plan.step.owned_keys  # more than one batch at once


def test_ranks_are_as_few_as_have_enough_of_everything():
    questions = [
        LARGE,
        replace(LARGE, dram="32GB", ssd_reads=1e12),
        replace(LARGE, ssd="100GB"),
        replace(LARGE, network="300MB", ssd_reads=10**9),
        replace(LARGE, gpu="1GB", batch_size=2**20),
        replace(LARGE, rank_examples_per_second=30_000.0),
    ]
    short_of = set()
    for question in questions:
        plan = make_plan(question)
        fewer = make_plan(replace(question, ranks=plan.ranks - 1))
        assert plan.ranks > 1 and not plan.missing
        assert [need.what for need in fewer.missing] == list(plan.short_of)
        short_of |= set(plan.short_of)
    assert {"DRAM", "SSD", "network", "computing"} <= short_of


def test_what_no_number_of_ranks_has_is_named():
    with pytest.raises(hps.ConfigError, match=r"4096 ranks are not enough.* lacks GPU"):
        make_plan(replace(LARGE, gpu="1MB"))
    plan = make_plan(replace(LARGE, ranks=1, dram="128GB"))
    assert {"DRAM", "SSD"} <= {need.what for need in plan.missing}


def test_the_rank_with_most_virtual_shards_is_planned_for():
    two, three = (make_plan(replace(LARGE, ranks=ranks)) for ranks in (2, 3))
    assert two.dram.index == pytest.approx(LARGE.keys / 2 * two.row.index)
    assert three.dram.index == pytest.approx(LARGE.keys * 1366 / 4096 * three.row.index)


def test_memory_of_a_rank_is_shared_out_whole():
    plan = make_plan(replace(LARGE, ranks=16))
    assert plan.dram.index + plan.dram.buffers + plan.dram.cache == pytest.approx(256e9)
    assert plan.dram.buffers == PROCESS_BYTES
    assert plan.gpu.buffers + plan.gpu.cache == pytest.approx(80e9)
    host = make_plan(replace(LARGE, ranks=16, gpu=None))
    dense = DENSE_COPIES * FLOAT_BYTES * LARGE.dense_parameters
    assert host.gpu is None
    assert host.dram.buffers == pytest.approx(PROCESS_BYTES + plan.gpu.buffers)
    assert plan.gpu.buffers > dense


def test_one_rank_sends_nothing_and_hosts_of_one_send_all():
    alone = make_plan(replace(LARGE, ranks=1)).network
    assert (alone.step, alone.per_second, alone.node_per_second) == (0, 0, 0)
    apart = make_plan(replace(LARGE, ranks=4, ranks_per_node=1)).network
    assert apart.node_per_second == pytest.approx(apart.per_second)
    together = make_plan(replace(LARGE, ranks=4, ranks_per_node=4)).network
    assert together.node_per_second == 0 and together.step == apart.step


def test_narrower_formats_take_their_part_of_the_network():
    plain = make_plan(replace(LARGE, ranks=8)).network
    narrow = make_plan(replace(LARGE, ranks=8, row_wire="bfloat16", gradient_wire="int8")).network
    assert narrow.rows == pytest.approx(plain.rows / 2)
    assert narrow.gradients == pytest.approx(plain.gradients * 20 / 64)
    assert narrow.keys == plain.keys


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", "lion"), ("dim", 0), ("dim", 5000), ("keys", 3), ("ranks", 5000),
        ("row_wire", "float8"), ("alpha", 9.0), ("dram", "much"), ("batch_size", 0),
        ("examples_per_second", 0.0), ("checkpoint_seconds", -1.0), ("depth", 65),
        ("rank_examples_per_second", 0.0), ("ssd_reads", 0.0), ("features", 0), ("network", "10Gb"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(hps.ConfigError, match=field if field != "row_wire" else "wire"):
        replace(LARGE, **{field: value})


def test_command_prints_the_plan_and_says_by_its_status_whether_the_ranks_do(tmp_path, capsys):
    out = tmp_path / "plan.json"
    flags = ["plan", "--keys", "1e10", "--dim", "16", "--json", str(out)]
    assert main(flags) == 0
    figures = json.loads(out.read_text())
    text = capsys.readouterr().out
    assert f"{figures['ranks']:,} ranks" in text and "NO" not in text
    assert main([*flags, "--ranks", "1", "--gpu", "none"]) == 1
    figures = json.loads(out.read_text())
    assert figures["gpu"] is None and figures["question"]["gpu"] is None
    assert not all(need["is_met"] for need in figures["needs"])
    assert "GPU of a rank" not in (said := capsys.readouterr().out) and ": NO" in said
    with pytest.raises(SystemExit):
        main(["plan", "--keys", "1.5", "--dim", "16"])
    assert "'1.5' must be a whole number from 1 to" in capsys.readouterr().err
