"""The parts of a Shard, each over a ServedStore without the front; and what wants the turn.

Above it: pytest. Below it: hps/service/shard, the twin of the update log.
"""

from collections.abc import Iterator
from time import monotonic

import numpy as np
import pytest

import hps
from hps.errors import DeadlineError, FencedError, StoreError
from hps.parameter_server.opening import Tiers
from hps.service.shard.acknowledge import Acknowledger
from hps.service.shard.answers import Ack, Terms
from hps.service.shard.checkpoints import ShardCheckpoints
from hps.service.shard.core import LONG, ServedStore, ShardOptions
from hps.service.shard.gate import Gate
from hps.service.shard.mutations import Mutations
from hps.service.shard.reads import Reads
from hps.service.shard.sessions import SessionOpener
from hps.service.shard.tables import ShardTables
from hps.update_log import Identity
from tests.service.shard.shard_session import KEYS
from tests.twins.update_log import TwinLogDisk

ADS = hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0))
ONES = np.ones((len(KEYS), 4), np.float32)


@pytest.fixture
def store(tmp_path: object) -> Iterator[ServedStore]:
    config = hps.Config(path=f"{tmp_path}/store", tables=[ADS])
    made = ServedStore(config, ShardOptions(), Tiers(open_log=TwinLogDisk().open))
    yield made
    made.close()


def first(store: ServedStore) -> Identity:
    opened = SessionOpener(store, Acknowledger(store)).open("trainer", None, 5.0, "")
    return Identity("trainer", opened.incarnation, 1)


def test_the_turn_is_asserted_in_the_thread_that_has_it() -> None:
    gate = Gate()
    with pytest.raises(AssertionError, match="without the turn"):
        gate.assert_turn()
    with gate.change(monotonic() + 1) as turn:
        gate.assert_turn()
        turn.let_others()
        with pytest.raises(AssertionError, match="without the turn"):
            gate.assert_turn()
        turn.take_again(monotonic() + 1)
        gate.assert_turn()
    with pytest.raises(AssertionError, match="without the turn"), gate.alone(monotonic() + 1):
        pass


def test_what_changes_a_store_wants_the_turn(store: ServedStore) -> None:
    for change in (store.open_log, store.recover, lambda: store.save(None, {}, "")):
        with pytest.raises(AssertionError, match="without the turn"):
            change()
    with store.gate.change(monotonic() + 5):
        store.save("kept", {}, "")
    assert [one["tag"] for one in store.server.checkpoints()] == ["automatic", "kept"]


def test_mutations_and_reads_work_without_a_front(store: ServedStore) -> None:
    reads = Reads(store)
    mutations, identity = Mutations(store, reads, Acknowledger(store)), first(store)
    assert not mutations.push(identity, "ads", KEYS, ONES).is_repeat
    assert mutations.push(identity, "ads", KEYS, ONES).is_repeat
    assert reads.num_rows("ads") == len(KEYS)
    with pytest.raises(hps.ConfigError, match=r"^there is no table 'nope'$"):
        mutations.push(identity, "nope", KEYS, ONES)


def test_an_acknowledger_names_what_a_wait_has_missed(store: ServedStore) -> None:
    acknowledger = Acknowledger(store)
    history, log = store.history, store.log

    class Slow:
        def wait(self, number: int, durable: bool, timeout: float) -> bool:
            return False

    class Full(Slow):
        def wait(self, number: int, durable: bool, timeout: float) -> bool:
            raise StoreError("no space")

    with pytest.raises(DeadlineError, match="the change is applied"):
        acknowledger.wait(history, Slow(), 10**9, Terms(Ack.DURABLE, 0.1))  # type: ignore[arg-type]
    assert not store.failure
    acknowledger.wait(history, Full(), 10**9, Terms(Ack.MEMORY, 0.1))  # type: ignore[arg-type]
    history.log = Full()  # type: ignore[assignment]
    try:
        with pytest.raises(StoreError, match="waiting for the log: no space"):
            acknowledger.wait(history, history.log, 10**9, Terms())  # type: ignore[arg-type]
    finally:
        history.log = log
    assert store.failure == "no space"


def test_a_restore_without_a_front_ends_sessions_and_what_failed(store: ServedStore) -> None:
    reads = Reads(store)
    mutations, identity = Mutations(store, reads, Acknowledger(store)), first(store)
    checkpoints = ShardCheckpoints(store, reads, mutations)
    checkpoints.take("empty", None, None, "", LONG, None)
    mutations.push(identity, "ads", KEYS, ONES)
    store.fail("planted")
    with pytest.raises(StoreError, match="takes no changes: planted"):
        ShardTables(store).create(hps.TableConfig(name="late", dim=4), 5.0)
    assert checkpoints.restore("empty", "another", LONG) == (None, None)
    assert store.failure == "" and store.lineage == "another" and reads.num_rows("ads") == 0
    with pytest.raises(FencedError):
        mutations.skip(identity)


def test_a_table_is_added_without_a_front(store: ServedStore) -> None:
    tables, server = ShardTables(store), store.server
    late = hps.TableConfig(name="late", dim=4)
    assert tables.create(late, LONG) and not tables.create(late, LONG)
    assert store.tables == [ADS, late] and store.server is not server
