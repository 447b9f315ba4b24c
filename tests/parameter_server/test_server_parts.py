"""The parts of a ParameterServer, each without the front: what it does, and which lock it wants.

Above it: pytest. Below it: hps/parameter_server over a store of its own.
"""

import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.common.arrays import OutputPool
from hps.dram_cache import make_dram_caches
from hps.parameter_server.batches import Batches
from hps.parameter_server.checkpoints import Checkpoints
from hps.parameter_server.logged import LoggedMutations
from hps.parameter_server.opening import ServerParts
from hps.parameter_server.periods import Periods
from hps.parameter_server.rows import RowVerbs
from hps.parameter_server.server import ParameterServer, RowUpdate
from hps.parameter_server.tables import Tables
from hps.ssd_store import TableSchema, open_store
from hps.update_log import Identity, Kind, Mutation

KEYS = np.arange(8, dtype=np.uint64)
ONES = np.ones((8, 4), np.float32)
USERS_VERBS = """
    advance_period apply assign config checkpoint checkpoint_blob_bytes checkpoint_blobs
    checkpoint_state checkpoints close compact contains delete_checkpoint device digest
    digest_parts erase erase_where has_gpu_cache holds is_changed items joint learning_rates
    num_open_pipelines num_rows parts pending_gradients period pin pins pull pull_pooled
    publish pull_tables push queued restore space_of_compact statistics stats tables want warm
"""
OF_TRAINING = "agree divide exchange exchanges_keys ranks "
OF_TRAINING += "pipeline_closed pipeline_closing pipeline_opened"


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    table = hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0))
    small = hps.DramCacheConfig(bytes="1MiB")  # a test fills it
    config = hps.Config(path=tmp_path / "store", tables=[table], dram=small)
    store = open_store(config.path, [TableSchema.of(table) for table in config.tables])
    made = Tables(config, store, make_dram_caches(config), {}, "cpu", is_read_only=False)
    made.is_open = True
    yield made
    made.close()


def test_tables_refuse_an_unknown_table_and_a_closed_store_by_name(tables: Tables) -> None:
    with pytest.raises(hps.ConfigError, match=r"no table 'nope'; the store has \['ads'\]"):
        tables.stack("nope")
    tables.close()
    with pytest.raises(hps.StoreError, match="is closed; open it again"):
        tables.stack("ads")


def test_a_change_begins_within_the_updates_of_its_own_thread_alone(tables: Tables) -> None:
    with pytest.raises(AssertionError, match="without the lock"):
        tables.begin_change("push")
    assert not tables.is_changed
    raised: list[BaseException] = []

    def change() -> None:
        try:
            tables.begin_change("push")
        except AssertionError as error:
            raised.append(error)

    with tables.updates:
        other = threading.Thread(target=change)
        other.start()
        other.join(60)
        assert len(raised) == 1 and not tables.is_changed
        tables.begin_change("push")
    assert tables.is_changed and tables.dense_mark.is_trained


def test_a_stack_asserts_the_lock_and_the_turn(tables: Tables) -> None:
    stack = tables.stack("ads")
    with tables.lock:
        plan = stack.cache.make_plan(KEYS, stack.take_plan())
        assert stack.num_rows == 0
        with pytest.raises(AssertionError, match="without the turn"):
            stack.bring(plan, 0, -1)
    for call in (stack.take_plan, stack.tries_updates, lambda: stack.num_rows):
        with pytest.raises(AssertionError, match="without the lock"):
            call()
    with stack.turn:
        assert stack.bring(plan, 0, -1)
    with pytest.raises(AssertionError, match="without the lock"):
        stack.unpin(plan)
    with tables.lock:
        stack.unpin(plan)
        assert stack.num_pins == 0


def test_rows_are_pushed_and_pulled_without_a_front(tables: Tables) -> None:
    rows = RowVerbs(tables, OutputPool())
    rows.assign("ads", KEYS, ONES, None)
    rows.push("ads", KEYS, ONES)
    assert (rows.pull("ads", KEYS, None, False) == 0).all() and rows.num_rows("ads") == 8
    assert rows.erase("ads", KEYS[:3]).all() and rows.contains("ads", KEYS).sum() == 5


def test_batches_are_pinned_and_applied_without_a_front(tables: Tables) -> None:
    batches = Batches(tables, OutputPool())
    with batches.pin("ads", KEYS) as rows:
        assert batches.holds(rows) and tables.pins == 8
        before = rows.gather().copy()
        batches.apply([RowUpdate("ads", KEYS, ONES, rows)])
        assert np.array_equal(rows.gather(), before - 1)
    assert tables.pins == 0


def test_batches_ask_those_who_pin_ahead_for_room(tables: Tables) -> None:
    class Listener:
        asked = 0

        def give_back_ahead(self) -> bool:
            self.asked += 1
            return False

    batches, listener = Batches(tables, OutputPool()), Listener()
    batches.pending_gradients = type("Pending", (), {"listeners": [listener]})()
    most = tables.stack("ads").cache.capacity_rows
    with pytest.raises(hps.CapacityError):
        batches.pin_now("ads", np.arange(most + 1, dtype=np.uint64))
    assert listener.asked == 1 and batches.num_open_pipelines == 1


def test_checkpoints_are_taken_and_gone_back_to_without_a_front(tables: Tables) -> None:
    rows, batches = RowVerbs(tables, OutputPool()), Batches(tables, OutputPool())
    checkpoints = Checkpoints(tables, batches, None)
    rows.assign("ads", KEYS, ONES, None)
    assert checkpoints.take("one", {"step": 1}, None)["rows_written"] == 8
    assert not tables.is_changed and checkpoints.dense_mark.fits
    rows.push("ads", KEYS, ONES)
    with batches.pin("ads", KEYS), pytest.raises(hps.ConfigError, match="8 pins of batches"):
        checkpoints.restore("one")
    assert checkpoints.restore("one") == ({"step": 1}, None)
    assert (rows.pull("ads", KEYS, None, False) == 1).all()
    assert [one["tag"] for one in checkpoints.listed()] == ["one"]
    with pytest.raises(AssertionError, match="without the lock"):
        checkpoints._go_back("one", {}, None)


def test_a_logged_mutation_is_logged_before_its_rows_change(tables: Tables) -> None:
    rows = RowVerbs(tables, OutputPool())
    batches = Batches(tables, OutputPool())
    logged = LoggedMutations(tables, batches, Periods(tables, batches))
    rows.assign("ads", KEYS, ONES, None)
    seen: list[Any] = []

    def log() -> None:
        seen.append(rows.pull("ads", KEYS, None, False).copy())

    mutation = Mutation(Kind.PUSH, Identity("a", 1, 1), "ads", 0.5, KEYS, ONES)
    logged.change(mutation, log)
    assert (seen[0] == 1).all() and (rows.pull("ads", KEYS, None, False) == 0.5).all()
    assert tables.learning_rates == {"ads": 1.0} == {"ads": logged.check_rate("ads", None)}
    with pytest.raises(hps.ConfigError, match="no table 'nope'"):
        logged.check_rate("nope", None)


def test_a_server_has_the_verbs_of_its_users_and_no_others(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "store", tables=[hps.TableConfig(name="ads", dim=4)])
    with ParameterServer(config) as server:
        names = {name for name in dir(server) if not name.startswith("_")}
        assert names - set(OF_TRAINING.split()) == set(USERS_VERBS.split())
        assert {field.name for field in fields(ServerParts)} == set(vars(server.parts))


def test_one_process_agrees_with_itself(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "store", tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        assert [server.agree(flag) for flag in (True, False)] == [True, False]
