"""Keys that wait for a row: what admits them, what they read as, what is refused. The dict of
test_life_machine.py and tests/parity/test_who_waits.py hold the rest.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cli.main import main
from hps.contracts.updates import RowUpdate
from hps.table.waiting import records_of

DIM = 4
KEYS = np.arange(40, dtype=np.uint64)
ONES = np.ones((40, DIM), np.float32)


def table(admission: hps.Admission | None, **changes: Any) -> hps.TableConfig:
    options = {"optimizer": hps.SGD(lr=1.0), "initializer": hps.Constant(0.5), **changes}
    return hps.TableConfig(name="ads", dim=DIM, admission=admission, **options)


def config(path: Path, *tables: hps.TableConfig, **changes: Any) -> hps.Config:
    return hps.Config(path=path / "store", tables=tables, **changes)


GPU = hps.GpuCacheConfig(bytes="1MiB", device="cpu")


@pytest.fixture(params=[None, GPU], ids=["dram", "gpu"])
def counted(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    counts = config(tmp_path, table(hps.Admission(count=3)), gpu=request.param)
    with hps.ParameterServer(counts) as server:
        server.push("ads", KEYS, ONES, labels=np.ones(40, np.float32))
        yield server


def test_a_key_that_waits_reads_as_new_and_is_nowhere(counted: hps.ParameterServer) -> None:
    assert (np.asarray(counted.pull("ads", KEYS)) == 0.5).all()
    assert not np.asarray(counted.contains("ads", KEYS)).any()
    assert counted.num_rows("ads") == 0 and not list(counted.items("ads", batch=10))
    assert set(counted.tables) == set(counted.learning_rates) == {"ads"}
    of_table = counted.stats()["tables"]["ads"]
    assert (of_table["waiting"]["rows"], of_table["waiting"]["row_bytes"]) == (40, 32)
    with pytest.raises(hps.ConfigError, match="no table"):
        counted.num_rows(records_of("ads"))


def test_the_update_that_admits_applies_its_whole_sum(counted: hps.ParameterServer) -> None:
    counted.push("ads", np.repeat(KEYS[:3], [1, 2, 3]), np.ones((6, DIM), np.float32))
    assert counted.contains("ads", KEYS[:3]).tolist() == [False, True, True]
    assert counted.pull("ads", KEYS[:3])[:, 0].tolist() == [0.5, -1.5, -2.5]
    seen = counted.statistics("ads", KEYS[:3])  # also what was counted before
    assert seen["show"].tolist() == [0, 3, 4] and seen["click"].tolist() == [0, 1, 1]


def test_assign_and_create_admit_at_once_and_erase_begins_anew(
    counted: hps.ParameterServer,
) -> None:
    counted.assign("ads", KEYS[:1], ONES[:1])
    counted.pull("ads", KEYS[1:2], create=True)
    assert counted.contains("ads", KEYS[:3]).tolist() == [True, True, False]
    assert counted.erase("ads", KEYS[:3]).tolist() == [True, True, False]
    for _ in range(2):  # of KEYS[3] with the first one, three
        assert not counted.contains("ads", KEYS[:4]).any()
        counted.push("ads", KEYS[:4], ONES[:4])
    assert counted.contains("ads", KEYS[:4]).tolist() == [False, False, False, True]


def test_the_digest_covers_those_that_wait(counted: hps.ParameterServer) -> None:
    before = counted.digest("ads")
    counted.push("ads", KEYS[:1], ONES[:1])
    assert counted.digest("ads") != before
    parts = sum(low for low, _ in counted.parts.rows.digest_parts("ads"))
    assert counted.digest("ads")[16:] == f"{parts % 2**64:016x}"


def test_a_refused_update_counts_nothing(counted: hps.ParameterServer) -> None:
    before, bad = counted.digest("ads"), ONES.copy()
    bad[7, 1] = np.inf
    with pytest.raises(hps.NonFiniteError, match="key 7"):
        counted.push("ads", KEYS, bad)
    assert counted.digest("ads") == before


@pytest.mark.parametrize("gpu", [None, hps.GpuCacheConfig(bytes=40_000, device="cpu")])
def test_a_batch_larger_than_the_caches(tmp_path: Path, gpu: hps.GpuCacheConfig | None) -> None:
    """Worked off in pieces, of which the records make some smaller."""
    small = table(hps.Admission(count=2))
    many = np.arange(30_000, dtype=np.uint64)
    with hps.ParameterServer(
        config(tmp_path, small, dram=hps.DramCacheConfig(bytes=40_000), gpu=gpu)
    ) as server:
        for rows in (0, 30_000):
            server.push("ads", many, np.ones((len(many), DIM), np.float32))
            assert server.num_rows("ads") == rows
        assert (np.asarray(server.pull("ads", many)) == -0.5).all()


def test_a_number_may_change_and_a_count_may_not_be_forgotten(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, table(hps.Admission(count=9)))) as server:
        server.push("ads", KEYS, ONES)
    for other in (None, hps.Admission(probability=0.5)):
        with pytest.raises(hps.ConfigError, match=r"counts the keys that wait.*count=1"):
            hps.ParameterServer(config(tmp_path, table(other, statistics=True)))
    with hps.open(tmp_path / "store") as reader:
        assert reader.tables["ads"].admission == hps.Admission(count=9)
    with hps.ParameterServer(config(tmp_path, table(hps.Admission(count=1)))) as server:
        server.push("ads", KEYS, ONES)
        assert server.num_rows("ads") == 40
        assert server.statistics("ads", KEYS)["show"].tolist() == [2] * 40


def test_a_draw_repeats_and_follows_the_seed_and_the_number(tmp_path: Path) -> None:
    found = []
    for place, seed in enumerate((1, 1, 2)):
        path, rule = tmp_path / str(place), hps.Admission(probability=0.25)
        with hps.ParameterServer(config(path, table(rule), seed=seed)) as server:
            server.push("ads", np.arange(4000, dtype=np.uint64), np.ones((4000, DIM), np.float32))
            first = server.num_rows("ads")
            server.checkpoint("a")
            digests = []
            for _ in range(2):  # a restore brings the number of the update back
                server.push("ads", KEYS, ONES)
                digests.append(server.digest("ads"))
                server.restore("a")
            assert digests[0] == digests[1]
            found.append((first, digests[0]))
    assert found[0] == found[1] != found[2]
    assert 850 < found[0][0] < 1150  # of 4000, within six standard deviations


@pytest.mark.parametrize("gpu", [None, GPU])
def test_scores_of_another_table_admit(tmp_path: Path, gpu: hps.GpuCacheConfig | None) -> None:
    expiry = hps.Expiry(min_score=0.1, decay=0.5, nonclick=1.0, click=1.0)
    narrow = hps.TableConfig(name="first", dim=1, expiry=expiry)
    wide = table(hps.Admission(by="first", min_score=2.0))
    with hps.ParameterServer(config(tmp_path, wide, narrow, gpu=gpu)) as server:
        server.push("first", np.repeat(KEYS[:4], [0, 1, 2, 4]), np.ones((7, 1), np.float32))
        server.push("ads", KEYS[:4], ONES[:4])
        assert server.contains("ads", KEYS[:4]).tolist() == [False, False, True, True]
        server.erase("ads", KEYS[:4])
        server.advance_period()
        server.push("ads", KEYS[:4], ONES[:4])
        assert server.contains("ads", KEYS[:4]).tolist() == [False, False, False, True]


@pytest.mark.parametrize("rules", [None, hps.Expiry(min_score=0.3, decay=0.5, nonclick=0.5)])
def test_a_row_that_another_one_admits_begins_with_its_counts(
    tmp_path: Path, rules: hps.Expiry | None
) -> None:
    first = hps.TableConfig(name="first", dim=1, expiry=rules, statistics=True)
    second = table(hps.Admission(by="first", min_score=0.25), expiry=rules, statistics=True)
    keys, clicks = np.repeat(KEYS[:3], [3, 4, 8]), np.arange(15, dtype=np.float32) % 2
    with hps.ParameterServer(config(tmp_path, second, first)) as server:

        def push() -> list[dict[str, Any]]:
            for name, dim in (("ads", DIM), ("first", 1)):  # as a step has it: the old score counts
                rows = np.ones((15, dim), np.float32)
                server.push(name, keys, rows, labels=clicks)
            return [server.statistics(name, KEYS[:3]) for name in ("ads", "first")]

        assert push()[0]["show"].tolist() == [0, 0, 0]
        for period in range(3):
            server.advance_period()
            ads, other = push()
            assert ads["last_period"].tolist() == [period + 1] * 3
            for name in ("show", "click", "dies_at"):
                assert ads[name].tolist() == other[name].tolist(), name
        sums = [shows * (4 if rules is None else 15 / 8) for shows in (3, 4, 8)]
        assert ads["show"].tolist() == sums


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of count=, probability= and by="),
        ({"count": 1, "probability": 0.5}, "one of count="),
        ({"count": 0}, "Admission.count"),
        ({"count": 2**24 + 1}, "Admission.count"),
        ({"probability": 0.0}, "Admission.probability"),
        ({"probability": 1.5}, "at most 1"),
        ({"probability": float("nan")}, "Admission.probability"),
        ({"by": "ads"}, "go together"),
        ({"count": 1, "min_score": 2.0}, "go together"),
        ({"by": "", "min_score": 2.0}, "the name of a table"),
        ({"by": "ads", "min_score": 0.0}, "Admission.min_score"),
    ],
)
def test_bad_rules_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        hps.Admission(**fields)


BY = hps.Admission(by="other", min_score=1.0)


@pytest.mark.parametrize(
    ("tables", "changes", "message"),
    [
        (
            [table(hps.Admission(count=2))],
            {"gpu": hps.GpuCacheConfig(bytes=2**20)},
            "a gpu_cache on cuda:0 admits every key so far",
        ),
        ([table(BY)], {}, "must name another table"),
        ([table(hps.Admission(by="ads", min_score=1.0))], {}, "must name another table"),
        ([table(BY), hps.TableConfig(name="other", dim=1)], {}, "have no score"),
        (
            [
                table(BY),
                hps.TableConfig(
                    name="other",
                    dim=1,
                    statistics=True,
                    admission=hps.Admission(by="ads", min_score=1.0),
                ),
            ],
            {},
            "admitted by another one itself",
        ),
    ],
)
def test_tables_that_cannot_wait_are_refused(
    tmp_path: Path, tables: list[hps.TableConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        config(tmp_path, *tables, **changes)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(hps.ConfigError, match=r"must be an hps.Admission"):
        table(3)  # type: ignore[arg-type]


def test_other_rules_reach_the_records_too(tmp_path: Path) -> None:
    """Those that are empty may all die at once."""
    for unseen, rows in ((5, 40), (1, 40)):
        counted = table(hps.Admission(count=1), expiry=hps.Expiry(unseen=unseen))
        with hps.ParameterServer(config(tmp_path, counted)) as server:
            server.push("ads", KEYS, ONES)
            assert server.stats()["tables"]["ads"]["waiting"]["rows"] in (0, 40)
            server.advance_period()
            assert server.num_rows("ads") == rows
            assert server.stats()["tables"]["ads"]["waiting"]["rows"] == 0
    with hps.ParameterServer(config(tmp_path, table(hps.Admission(count=9)))) as server:
        server.push("ads", KEYS[:5] + np.uint64(100), ONES[:5])  # they wait
        server.checkpoint()
    for unseen in (9, 0):
        waiting = table(hps.Admission(count=9), expiry=hps.Expiry(unseen=unseen))
        with hps.ParameterServer(config(tmp_path, waiting)) as server:
            server.advance_period(allow_empty=True)
            assert server.stats()["tables"]["ads"]["waiting"]["rows"] == (5 if unseen else 0)


def test_records_that_are_all_empty_may_change_their_rules(tmp_path: Path) -> None:
    first = table(hps.Admission(count=1), expiry=hps.Expiry(unseen=5))
    with hps.ParameterServer(config(tmp_path, first)) as server:
        server.push("ads", KEYS, ONES)
    with hps.ParameterServer(
        config(tmp_path, table(hps.Admission(count=1), expiry=hps.Expiry(unseen=4)))
    ) as server:
        server.advance_period()
        assert server.num_rows("ads") == 40


def test_a_refused_verb_leaves_the_counts(counted: hps.ParameterServer) -> None:
    before = counted.digest("ads")
    with counted.pin("ads", KEYS[:3]), pytest.raises(hps.ConfigError, match="is pinned"):
        counted.erase("ads", KEYS)
    assert counted.digest("ads") == before


def test_a_checkpoint_of_before_the_rule_opens(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, table(None, statistics=True))) as server:
        server.push("ads", KEYS, ONES)
        server.checkpoint("old")
    with hps.ParameterServer(config(tmp_path, table(hps.Admission(count=9)))) as server:
        server.push("ads", KEYS + np.uint64(100), ONES)
        server.checkpoint("new")
        server.restore("old")
    for checkpoint in ("old", "new"):
        with hps.open(tmp_path / "store", checkpoint=checkpoint) as reader:
            assert reader.num_rows("ads") == 40
    with hps.ParameterServer(config(tmp_path, table(None, statistics=True))) as server:
        assert server.num_rows("ads") == 40


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("gpu", [None, GPU])
def test_a_step_decides_by_scores_of_before(
    tmp_path: Path, gpu: hps.GpuCacheConfig | None, is_first: bool
) -> None:
    other = hps.TableConfig(name="other", dim=1, optimizer=hps.SGD(lr=1.0), statistics=True)
    tables = [other, table(hps.Admission(by="other", min_score=0.05))][:: 1 if is_first else -1]
    with hps.ParameterServer(config(tmp_path, *tables, gpu=gpu)) as server:
        updates = [
            RowUpdate("other", KEYS, np.ones((40, 1), np.float32), None),
            RowUpdate("ads", KEYS, ONES, None),
        ]
        for rows in (0, 40):
            server.apply(updates[:: 1 if is_first else -1])
            assert server.num_rows("ads") == rows


@pytest.mark.parametrize("gpu", [None, hps.GpuCacheConfig(bytes=40_000, device="cpu")])
def test_a_step_whose_rows_were_evicted_brings_them_once(
    tmp_path: Path, gpu: hps.GpuCacheConfig | None
) -> None:
    """Nothing was pinned between its forward and its update."""
    small = table(hps.Admission(count=2), features=["a"])
    with hps.ParameterServer(
        config(tmp_path, small, dram=hps.DramCacheConfig(bytes=40_000), gpu=gpu)
    ) as server:
        embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
        many = np.arange(1000, 4000, dtype=np.uint64)
        server.pull("ads", many, create=True)
        ids = hps.Ids(torch.arange(60), torch.arange(61))
        for rows in (3000, 3060):
            output = embeddings(hps.Batch({"ads": ids}, torch.zeros(60, 0), torch.zeros(60)))
            for first in range(0, len(many), 100):
                server.pull("ads", many[first : first + 100])
            output.sum().backward()
            optimizer.step()
            assert server.num_rows("ads") == rows
        assert server.stats()["dram_cache" if gpu is None else "gpu_cache"]["evictions"] > 1000


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_compacting_a_table_compacts_those_that_wait(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Overwritten records, and of another table none."""
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    counted = table(hps.Admission(count=10**6))
    other = hps.TableConfig(name="other", dim=DIM, admission=counted.admission)
    ssd = hps.SsdStoreConfig(engine=engine, compaction_threshold=0.99, keep_last=1)
    options = config(tmp_path, counted, other, ssd=ssd)
    keys = np.arange(20_000, dtype=np.uint64)

    def records_bytes(server: hps.ParameterServer) -> list[int]:
        stored = server.parts.tables.store
        if engine == "rocksdb":
            live: Any = vars(stored)["_live"]
            return [live.tables[records_of(name)].files_bytes() for name in ("ads", "other")]
        tables = stored.stats()["tables"]
        return [tables[records_of(name)]["segment_bytes"] for name in ("ads", "other")]

    with hps.ParameterServer(options) as server:
        for some in (keys, keys[::2], keys[::2]):
            for name in ("ads", "other"):
                server.push(name, some, np.ones((len(some), DIM), np.float32))
            server.checkpoint()
        before, space = records_bytes(server), server.space_of_compact("ads")
        assert space["freed_bytes"] > space["written_bytes"] >= 16 * len(keys)
        if engine == "segments":
            assert server.compact("ads")["bytes_after"] < sum(before)
        else:
            server.compact("ads")
        after = records_bytes(server)
        assert after[0] < 0.8 * before[0] and after[1] == before[1]
        assert server.stats()["tables"]["ads"]["waiting"]["rows"] == len(keys)
    assert main(["compact", str(tmp_path / "store"), "--table", "other"]) == 0
    with hps.ParameterServer(options) as server:
        assert records_bytes(server)[1] < 0.8 * before[1]


@pytest.mark.parametrize("verb", ["erase", "assign", "create"])
def test_what_ends_the_waiting_is_done_whole_or_not_at_all(
    counted: hps.ParameterServer, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk refuses the tombstones of records that lie in the store."""
    counted.checkpoint()
    counted.pull("ads", KEYS[:4], create=True)
    before, store = counted.digest("ads"), counted.parts.tables.store
    erase = store.erase

    def full(table: str, keys: Any) -> Any:
        if table == records_of("ads"):
            raise hps.StoreError(28, "no space left")
        return erase(table, keys)

    monkeypatch.setattr(store, "erase", full)
    try:
        if verb == "erase":
            counted.erase("ads", KEYS[:8])
        elif verb == "assign":
            counted.assign("ads", KEYS[:8], ONES[:8])
        else:
            counted.pull("ads", KEYS[:8], create=True)
    except hps.StoreError:
        assert counted.digest("ads") == before
        return
    assert counted.contains("ads", KEYS[:8]).tolist() == [verb != "erase"] * 8
    counted.erase("ads", KEYS[:8])
    for shown in (False, False, True):  # they begin anew
        counted.push("ads", KEYS[:8], ONES[:8])
        assert counted.contains("ads", KEYS[:8]).tolist() == [shown] * 8
