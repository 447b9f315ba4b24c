"""While one thread waits for the store, others gather, step, pull, take checkpoints: rules I1-I4.

The store is held up on purpose at one of its verbs; what must go on meanwhile is done then, and
what must wait is seen to wait.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hps
from hps.parameter_server.server import ParameterServer, RowUpdate
from tests.contracts.test_turn import wait_until
from tests.lab import Lab, dump, evictions, random_keys, table

KEYS = np.arange(700, dtype=np.uint64)
STAMPS = np.arange(1, 701, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)


def ones(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


class HeldStore:
    """A store whose verb `name` waits at `gate` before its work; `calls` has what it worked on."""

    def __init__(self, store: Any, name: str) -> None:
        self.store, self.name = store, name
        self.gate, self.reached = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.store, verb)
        if verb != self.name:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.reached.set()
            assert self.gate.wait(60), f"{verb} was never let on"
            if self.error is not None:
                raise self.error
            self.calls.append(arguments)
            return found(*arguments, **options)

        return call


@contextmanager
def held(server: ParameterServer, name: str) -> Iterator[HeldStore]:
    """The store of table "ads" (and of checkpoints), held up at `name` until the gate is set."""
    tiers = server.parts.tables.tiers["ads"]
    store = HeldStore(tiers.store.store, name)
    tiers.store.store = server.parts.tables.store = store
    try:
        yield store
    finally:
        store.gate.set()
        tiers.store.store = server.parts.tables.store = store.store


class Call(threading.Thread):
    """A call in a thread of its own; `result` gives what it returned or raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(60)
        assert not self.is_alive(), "the call never came back"
        if self._error is not None:
            raise self._error
        return self._value

    def is_waiting(self) -> bool:
        self.join(0.05)
        return self.is_alive()


def filled(server: ParameterServer) -> np.ndarray:
    """Stores rows, of which the first are evicted; returns the keys that the cache has not."""
    server.assign("ads", KEYS, STAMPS)
    assert evictions(server) > 0
    away = KEYS[server.parts.tables.stack("ads").cache.contains(KEYS) == 0]
    assert len(away) > 20
    return away


def here(server: ParameterServer) -> np.ndarray:
    return KEYS[server.parts.tables.stack("ads").cache.contains(KEYS) != 0]


def test_training_and_checkpoints_go_on_while_another_thread_fetches(lab: Lab) -> None:
    with lab.server(table()) as server:
        away = filled(server)
        mine = here(server)[-6:]
        rows = server.pin("ads", mine)
        with held(server, "fetch") as store:
            other = Call(lambda: server.pin("ads", away[:5]))
            assert store.reached.wait(60)
            np.testing.assert_array_equal(rows.gather(), STAMPS[mine.astype(int)])
            server.apply([RowUpdate("ads", mine, ones(6), rows)])
            np.testing.assert_array_equal(
                server.pull("ads", mine), STAMPS[mine.astype(int)] - np.float32(1)
            )
            server.push("ads", mine, ones(6))
            again = server.pin("ads", mine[:2])  # all here: it takes no slot
            again.release()
            assert server.num_rows("ads") == 700 and server.contains("ads", KEYS).all()
            assert other.is_alive() and not store.gate.is_set()
            store.gate.set()
            brought = other.result()
        np.testing.assert_array_equal(brought.gather(), STAMPS[away[:5].astype(int)])
        rows.release()
        brought.release()
        assert server.pins == 0
        np.testing.assert_array_equal(
            server.pull("ads", mine), STAMPS[mine.astype(int)] - np.float32(2)
        )


def test_rows_are_read_while_the_store_takes_its_time_over_figures(lab: Lab) -> None:
    with lab.server(table()) as server:
        filled(server)
        mine = here(server)[-6:]
        with held(server, "stats") as store:
            figures = Call(server.stats)
            assert store.reached.wait(60)
            np.testing.assert_array_equal(server.pull("ads", mine), STAMPS[mine.astype(int)])
            assert figures.is_waiting()
            store.gate.set()
            assert figures.result()["tables"]["ads"]["rows"] == 700


def test_fetches_go_on_while_a_checkpoint_syncs_and_updates_wait(lab: Lab) -> None:
    with lab.server(table()) as server:
        away = filled(server)
        before = dump(server)
        with held(server, "checkpoint") as store:
            checkpoint = Call(lambda: server.checkpoint("kept"))
            assert store.reached.wait(60)
            rows = server.pin("ads", away[:5])
            np.testing.assert_array_equal(rows.gather(), STAMPS[away[:5].astype(int)])
            np.testing.assert_array_equal(server.pull("ads", KEYS), STAMPS)
            update = Call(lambda: server.push("ads", KEYS[:3], ones(3)))
            assert update.is_waiting() and checkpoint.is_alive()
            store.gate.set()
            checkpoint.result()
        update.result()
        rows.release()
        server.restore("kept")
        assert dump(server) == before


def test_a_checkpoint_waits_for_an_update_that_is_under_way(lab: Lab) -> None:
    """Its checkpoint holds all of the update or nothing."""
    with lab.server(table()) as server:
        filled(server)
        with held(server, "fetch") as store:
            update = Call(lambda: server.push("ads", KEYS, ones(700)))
            assert store.reached.wait(60)
            checkpoint = Call(lambda: server.checkpoint("kept"))
            assert checkpoint.is_waiting() and update.is_alive()
            store.gate.set()
            update.result()
            checkpoint.result()
        server.restore("kept")
        np.testing.assert_array_equal(server.pull("ads", KEYS), STAMPS - np.float32(1))


def test_a_row_on_its_way_is_waited_for_and_never_read(lab: Lab) -> None:
    """I4: the key has a slot already, and what lies in it is another row's."""
    with lab.server(table()) as server:
        away = filled(server)
        first, second = away[:5], away[5:10]
        with held(server, "fetch") as store:
            other = Call(lambda: server.pin("ads", first))
            assert store.reached.wait(60)
            assert server.parts.tables.stack("ads").cache.contains(first).tolist() == [4] * 5
            readers = [
                Call(lambda: server.pull("ads", first).copy()),
                Call(lambda: server.pin("ads", first)),
                Call(lambda: server.pull("ads", np.concatenate([first[:1], second])).copy()),
            ]
            update = Call(lambda: server.push("ads", first[2:], ones(3)))
            assert all(call.is_waiting() for call in [*readers, update])
            store.gate.set()
            rows = other.result()
            pulled, pinned, mixed = (call.result() for call in readers)
            update.result()
        expected = STAMPS[first.astype(int)]
        np.testing.assert_array_equal(pulled[:2], expected[:2])
        for row, stamp in zip(pulled[2:], expected[2:], strict=True):  # the push came or came not
            assert (row == stamp).all() or (row == stamp - 1).all()
        np.testing.assert_array_equal(mixed[1:], STAMPS[second.astype(int)])
        expected[2:] -= np.float32(1)
        np.testing.assert_array_equal(pinned.gather(), expected)
        np.testing.assert_array_equal(rows.gather(), expected)
        assert server.pins == 10  # one slot a key, pinned twice
        rows.release()
        pinned.release()


def test_a_row_on_its_way_down_is_seen_by_every_verb(lab: Lab) -> None:
    """I3: it has left the cache, and the store has not got it yet."""
    with lab.server(table()) as server:
        filled(server)
        before, digest = dump(server), server.digest("ads")
        with held(server, "append") as store:
            other = Call(lambda: server.pin("ads", np.arange(9000, 9008, dtype=np.uint64)))
            assert store.reached.wait(60)
            stack = server.parts.tables.stack("ads")
            victims = stack.layout.keys(stack.cache.victims(stack.moving))
            assert len(victims) > 0 and not stack.cache.contains(victims).any()
            assert server.contains("ads", victims).all() and server.num_rows("ads") == 700
            calls = {
                "pull": Call(lambda: server.pull("ads", victims).copy()),
                "digest": Call(lambda: server.digest("ads")),
                "items": Call(lambda: dump(server)),
            }
            assert all(call.is_waiting() for call in calls.values())
            store.gate.set()
            other.result().release()
            np.testing.assert_array_equal(calls["pull"].result(), STAMPS[victims.astype(int)])
            assert calls["digest"].result() == digest and calls["items"].result() == before
        filled(server)  # dirty again
        with held(server, "append") as store:
            other = Call(lambda: server.pin("ads", np.arange(9100, 9108, dtype=np.uint64)))
            assert store.reached.wait(60)
            victims = stack.layout.keys(stack.cache.victims(stack.moving))
            erase = Call(lambda: server.erase("ads", victims))
            assert erase.is_waiting()
            store.gate.set()
            other.result().release()
            assert erase.result().all()
        assert server.num_rows("ads") == 700 - len(victims)
        assert not server.contains("ads", victims).any()


def test_erase_knows_a_batch_from_the_moment_in_which_it_is_pinned(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.server(table()) as server:
        filled(server)
        stack, mine = server.parts.tables.stack("ads"), here(server)[-1:]
        before, pin = dump(server), stack.pin

        def pin_then_erase(plan: Any) -> None:
            pin(plan)
            with pytest.raises(hps.ConfigError, match="nothing was erased"):
                server.erase("ads", mine)

        monkeypatch.setattr(stack, "pin", pin_then_erase)
        server.pin("ads", mine).release()
        monkeypatch.undo()
        count = evictions(server)
        server.pull("ads", KEYS)
        assert evictions(server) > count
        assert dump(server) == before and server.num_rows("ads") == 700


@pytest.mark.parametrize("name", ["append", "fetch"])
@pytest.mark.parametrize("error", [hps.StoreError(28, "no space"), KeyboardInterrupt()])
def test_a_batch_that_fails_on_the_way_gives_everything_back(
    lab: Lab, name: str, error: BaseException
) -> None:
    with lab.server(table()) as server:
        away = filled(server)
        digest = server.digest("ads")
        mine = here(server)[-6:]
        rows = server.pin("ads", mine)
        with held(server, name) as store:
            store.error = error
            failing = Call(lambda: server.pin("ads", away[:8]))
            assert store.reached.wait(60)
            server.apply([RowUpdate("ads", mine, np.zeros((6, 4), np.float32), rows)])
            waiting = Call(lambda: server.pin("ads", away[8:10]))
            assert waiting.is_waiting()
            store.gate.set()
            with pytest.raises(type(error)):
                failing.result()
            with pytest.raises(type(error)):  # the next in turn found the store no better
                if name == "append":
                    server.pull("ads", away[:8], create=True)
                waiting.result()
            assert server.pins == 6 and not server.parts.tables.stack("ads").is_moving
        rows.release()
        assert server.pins == 0 and server.num_rows("ads") == 700
        assert server.digest("ads") == digest
        np.testing.assert_array_equal(server.pull("ads", KEYS), STAMPS)


def test_batches_reserve_in_the_order_in_which_they_ask(lab: Lab) -> None:
    """I1: three batches that want one slot's room get it one after the other."""
    with lab.server(table()) as server:
        away = filled(server)
        turn = server.parts.tables.stack("ads").turn

        def bring(number: int) -> None:
            server.pin("ads", away[4 * number : 4 * number + 4]).release()

        with held(server, "fetch") as store:
            calls = []
            for number in range(4):
                calls.append(Call(lambda number=number: bring(number)))
                wait_until(lambda number=number: turn.num_asking == number + 1)
            store.gate.set()
            for call in calls:
                call.result()
        assert [keys[0] for _, keys, *_ in store.calls] == away[:16:4].tolist()


def test_closing_waits_for_a_fetch_and_later_calls_say_closed(lab: Lab) -> None:
    with lab.server(table()) as server:
        away = filled(server)
        with held(server, "fetch") as store:
            other = Call(lambda: server.pin("ads", away[:5]))
            assert store.reached.wait(60)
            closing = Call(server.close)
            assert closing.is_waiting()
            store.gate.set()
            other.result().release()
            closing.result()
        with pytest.raises(hps.StoreError, match="closed"):
            server.pin("ads", away[:5])


def test_threads_at_odds_give_the_rows_of_one_thread(lab: Lab) -> None:
    """Batches are pinned ahead by one thread and stepped by another, as a pipeline does, while a
    third pulls and a fourth takes checkpoints; steps subtract whole numbers."""
    generator = np.random.default_rng(17)
    batches = [np.unique(random_keys(generator, 6, 300)) for _ in range(120)]
    with lab.server(table(), scale=2.0) as server:
        filled(server)
        server.assign("ads", np.concatenate(batches), np.ones((sum(map(len, batches)), 4), "f4"))
        expected: dict[int, float] = {}
        for keys in batches:
            for key in keys.tolist():
                expected[key] = expected.get(key, 1.0) - 1.0
        pinned: list[Any] = []
        is_done = threading.Event()

        def fetch() -> None:
            for number, keys in enumerate(batches):
                wait_until(lambda number=number: len(pinned) > number - 1)
                while True:
                    try:
                        pinned.append(server.pin("ads", keys))
                        break
                    except hps.CapacityError:  # until a step has released its rows
                        threading.Event().wait(0.001)

        def pull() -> None:
            turn = np.random.default_rng(3)
            while not is_done.is_set():
                keys = turn.choice(KEYS[1:], 30)
                np.testing.assert_array_equal(server.pull("ads", keys), STAMPS[keys.astype(int)])

        def check() -> None:
            while not is_done.wait(0.02):
                server.checkpoint()

        fetcher, others = Call(fetch), [Call(pull), Call(check)]
        for number, keys in enumerate(batches):
            wait_until(lambda number=number: len(pinned) > number or not fetcher.is_alive())
            rows = pinned[number]
            server.apply([RowUpdate("ads", keys, ones(len(keys)), rows)])
            rows.release()
        fetcher.result()
        is_done.set()
        for call in others:
            call.result()
        assert server.pins == 0
        known = np.array(list(expected), np.uint64)
        wanted = np.array(list(expected.values()), np.float32)
        np.testing.assert_array_equal(server.pull("ads", known)[:, 0], wanted)
        digest = server.digest("ads")
        server.checkpoint()
        server.restore()
        assert server.digest("ads") == digest
