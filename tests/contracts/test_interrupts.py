"""Errors and interrupts between two native calls: no pin stays, no row is lost, work goes on."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.parameter_server.server import ParameterServer, RowUpdate
from tests.lab import Lab, dump, evictions, keys_of, random_floats, table

KEYS = np.arange(600, dtype=np.uint64)
FAILING = ("victims", "missing_keys", "fill", "gather", "apply", "release")


class Interrupting:
    """A cache whose verb `name` is followed (or preceded) by an interrupt at its n-th call."""

    def __init__(self, cache: Any, name: str, at: int, *, is_after: bool) -> None:
        self.cache, self.name, self.left, self.is_after = cache, name, at, is_after

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.cache, verb)
        if verb != self.name:
            return found

        def call(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.is_after:
                raise KeyboardInterrupt
            result = found(*arguments)
            if self.left == 0:
                raise KeyboardInterrupt
            return result

        return call


def ones(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


def interrupted(server: ParameterServer, at: int, name: str, call: Callable[[], Any]) -> bool:
    """Whether an interrupt struck; the cache is itself again after it."""
    stack = server.parts.tables.stack("ads")
    cache = stack.cache
    is_struck = False
    for is_after in (False, True):
        stack.cache = Interrupting(cache, name, at, is_after=is_after)
        try:
            call()
        except KeyboardInterrupt:
            is_struck = True
        finally:
            stack.cache = cache
    return is_struck


@pytest.mark.parametrize("name", [*FAILING, "reserve"])
def test_an_interrupt_loses_no_row_and_leaks_no_pin(lab: Lab, name: str) -> None:
    with lab.server(table()) as server:
        server.assign("ads", KEYS, ones(600) * np.arange(600, dtype=np.float32)[:, None])
        rows, digest = dump(server), server.digest("ads")
        zeros = np.zeros((600, 4), np.float32)
        is_struck = False
        for at in (1, 2):
            is_struck |= interrupted(server, at, name, lambda: server.pull("ads", KEYS))
            is_struck |= interrupted(server, at, name, lambda: server.push("ads", KEYS, zeros))
            if name != "release":  # who holds pins gives them back himself
                is_struck |= interrupted(server, at, name, lambda: server.pin("ads", KEYS[:8]))
            assert server.pins == 0
            assert server.num_rows("ads") == 600 and dump(server) == rows
        assert is_struck and evictions(server) > 0
        server.push("ads", KEYS, zeros)
        assert server.digest("ads") == digest


BELOW = ("make_plan", "find", "reserve", "victims", "fill", "read_here", "write_here", "release")


@pytest.mark.parametrize("kind", ["native", "three_twins", "gpu"])
def test_an_interrupt_below_the_top_tier_loses_no_row(tmp_path: Path, kind: str) -> None:
    """In the second phase of a fetch: in the store, and in the verbs of the tier between."""
    with Lab(kind, tmp_path).server(table()) as server:
        server.assign("ads", KEYS, ones(600) * np.arange(600, dtype=np.float32)[:, None])
        rows, digest = dump(server), server.digest("ads")
        tiers = server.parts.tables.tiers["ads"]
        targets = [(tiers.store, "store", verb) for verb in ("append", "fetch")]
        if tiers.dram is not None:
            targets += [(tiers.dram, "cache", verb) for verb in BELOW]
        struck = set()
        for owner, field, verb in targets:
            below = getattr(owner, field)
            for is_after, turn in itertools.product((False, True), range(3)):
                setattr(owner, field, Interrupting(below, verb, 1, is_after=is_after))
                calls = (
                    lambda: server.pull("ads", KEYS[::-1].copy()),
                    lambda: server.push("ads", KEYS[200:], np.zeros((400, 4), np.float32)),
                    lambda: server.warm("ads", KEYS[:100]).release(),
                )
                try:
                    calls[turn]()
                except KeyboardInterrupt:
                    struck.add(verb)
                finally:
                    setattr(owner, field, below)
                assert server.pins == 0 and server.num_rows("ads") == 600
                assert not server.parts.tables.stack("ads").is_moving
            assert dump(server) == rows
        assert struck == {verb for _, _, verb in targets}
        assert server.digest("ads") == digest


def test_rows_created_before_an_interrupt_are_counted(lab: Lab) -> None:
    for name in ("apply", "create", "assign", "push"):
        with lab.server(table()) as server:
            first = server.num_rows("ads")
            keys = KEYS[first : first + 5]
            calls = {
                "create": lambda keys=keys: server.pull("ads", keys, create=True),
                "assign": lambda keys=keys: server.assign("ads", keys, ones(5)),
            }
            push = lambda keys=keys: server.push("ads", keys, ones(5))  # noqa: E731
            if name == "push":
                server.pull("ads", keys)
            interrupted(server, 1, name, calls.get(name, push))
            assert server.num_rows("ads") == len(dump(server))


def test_a_bad_learning_rate_is_an_error_like_any_other(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", KEYS, ones(600))
        digest = server.digest("ads")
        server.learning_rates["ads"] = "fast"  # type: ignore[assignment]
        for call in (
            lambda: server.push("ads", KEYS, ones(600)),
            lambda: server.pull("ads", KEYS[::-1].copy()),
            lambda: server.pin("ads", KEYS[:9]),
        ):
            with contextlib.suppress(TypeError, ValueError, AssertionError):
                call()
            assert server.pins == 0 or "twins" in lab.kind
        server.learning_rates["ads"] = 1.0
        assert "twins" in lab.kind or server.digest("ads") == digest


def test_the_note_says_how_many_keys_were_done(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", KEYS, ones(600))
        stack = server.parts.tables.stack("ads")
        cache = stack.cache
        stack.cache = Interrupting(cache, "apply", 2, is_after=False)
        with pytest.raises(KeyboardInterrupt) as caught:
            server.push("ads", KEYS[::-1].copy(), ones(600))
        stack.cache = cache
        assert "of 600 keys of this call were done" in caught.value.__notes__[0]


def test_rows_of_another_server_are_refused(lab: Lab, tmp_path: Any) -> None:
    other_lab = Lab(lab.kind, tmp_path / "other")
    with lab.server(table()) as server, other_lab.server(table()) as other:
        with other.pin("ads", keys_of(1, 2)) as rows:
            assert other.holds(rows) and not server.holds(rows)
            with pytest.raises(hps.ConfigError, match="another server"):
                server.apply([RowUpdate("ads", keys_of(1, 2), ones(2), rows)])
        assert server.num_rows("ads") == other.num_rows("ads") == 0


def test_erase_passes_over_released_rows_that_someone_still_holds(lab: Lab) -> None:
    with lab.server(table()) as server:
        rows = server.pin("ads", keys_of(1, 2))
        rows.release()
        server.push("ads", keys_of(1), ones(1))
        assert server.erase("ads", keys_of(1, 2)).tolist() == [True, False]
        assert rows.is_released


def test_more_keys_than_the_core_can_number_are_refused(lab: Lab) -> None:
    many = np.broadcast_to(np.uint64(1), (2**31,))
    with lab.server(table()) as server, pytest.raises(hps.ConfigError, match=str(2**31)):
        server.pull("ads", many)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_do_not_depend_on_the_callers_floating_point_mode(lab: Lab, threads: int) -> None:
    generator = np.random.default_rng(1)
    # Many enough for several threads; the twins have none.
    count = 2000 if lab.kind == "twins" else 20000
    keys = np.arange(count, dtype=np.uint64)
    grads = random_floats(generator, count, 4) * np.float32(1e-38)
    start = np.zeros((count, 4), np.float32)
    digests = []
    for is_flushing in (False, True):
        with lab.server(table(), scale=8.0, threads=threads) as server:
            server.erase("ads", keys)
            torch.set_flush_denormal(is_flushing)
            try:
                for part in (slice(0, 50), slice(50, count)):
                    server.assign("ads", keys[part], start[part])
                    server.push("ads", keys[part], grads[part])
            finally:
                torch.set_flush_denormal(False)
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1] or "twins" in lab.kind


class _InterruptedStore:
    """A store whose restore is followed by an interrupt."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def restore(self, tag: Any) -> None:
        self.store.restore(tag)
        raise KeyboardInterrupt


def test_an_interrupt_behind_a_restore_leaves_no_row_of_the_checkpoint_before(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", KEYS[:8], ones(8))
        server.checkpoint("old")
        rows = dump(server)
        server.push("ads", KEYS[:9], ones(9))
        store = server.parts.tables.store
        server.parts.tables.store = _InterruptedStore(store)
        with pytest.raises(KeyboardInterrupt):
            server.restore("old")
        server.parts.tables.store = store
        assert dump(server) == rows and server.num_rows("ads") == 8


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("struck", ["a", "b"])
def test_an_interrupt_within_a_restore_leaves_no_table_at_the_checkpoint_before(
    lab: Lab, struck: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.server(table(name="a"), table(name="b")) as server:
        for name in "ab":
            server.assign(name, KEYS[:8], ones(8))
        server.checkpoint("old")
        server.learning_rates["a"] = 0.25
        for name in "ab":
            server.assign(name, KEYS[:9], 2 * ones(9))
        stack = server.parts.tables.stack(struck)
        restart = stack.restart

        def interrupt() -> None:
            monkeypatch.undo()
            if is_after:
                restart()
            raise KeyboardInterrupt

        monkeypatch.setattr(stack, "restart", interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.restore("old")
        for name in "ab":
            assert (server.pull(name, KEYS[:8]) == 1).all() and server.num_rows(name) == 8
        assert server.learning_rates["a"] == 1.0


@pytest.mark.parametrize("kind", ["native", "gpu"])
def test_an_interrupt_behind_the_stores_erase_erases_in_every_tier(
    tmp_path: Path, kind: str
) -> None:
    with Lab(kind, tmp_path).server(table()) as server:
        server.assign("ads", KEYS, ones(600))
        server.checkpoint()
        tiers = server.parts.tables.tiers["ads"]
        caches = [tier.cache for tier in tiers.caches.values()]
        assert all(cache.contains(KEYS).any() for cache in caches)
        store = tiers.store.store
        tiers.store.store = Interrupting(store, "erase", 1, is_after=True)
        with pytest.raises(KeyboardInterrupt):
            server.erase("ads", KEYS)
        tiers.store.store = store
        assert not any(cache.contains(KEYS).any() for cache in caches)
        assert server.num_rows("ads") == 0 == len(dump(server))
        server.assign("ads", KEYS[:9], ones(9))
        tiers.store.store = Interrupting(store, "erase", 1, is_after=False)
        with pytest.raises(KeyboardInterrupt):
            server.erase("ads", KEYS)
        tiers.store.store = store
        assert server.num_rows("ads") == 9 == len(dump(server))
