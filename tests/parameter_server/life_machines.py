"""Random sequences of verbs with periods and statistics against a dict; tiny tiers, so that each
step moves rows; the process is killed, the store cloned, divided among ranks, its rules changed.

Above it: test_life_machine.py, tests/torture/life_models.py. Below it: ParameterServer over the
tiers of tests/lab.py, machines.py, the twin of the rules. The dict holds of each key its weights,
as SGD with learning rate 1 leaves them over whole gradients, its shows, its clicks, its last period
and its period of death.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import hps
from hps.cluster.folder.offline import reshard
from hps.common.occurrences import Occurrences
from hps.contracts.updates import RowUpdate
from hps.ssd_store import clone
from hps.table.life_rules import native_rules
from hps.table.waiting import records_of
from hps.tiers.batch_rows import BatchRows
from tests.lab import Lab, evictions
from tests.parameter_server.machines import copy_as_killed, end
from tests.twins import life

DIM = 4
INITIAL = 0.5
WITH_FILES = ("native", "rocksdb", "gpu")
ONE_KEY = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 250))
FEW_KEYS = st.lists(ONE_KEY, min_size=0, max_size=40)
MANY_KEYS = st.tuples(st.integers(0, 200), st.integers(1, 400)).map(
    lambda span: list(range(span[0], span[0] + span[1]))
)
KEYS = st.one_of(FEW_KEYS, FEW_KEYS, MANY_KEYS)
SEEDS = st.integers(0, 1000)


class Row(NamedTuple):
    """What a key's row is to hold."""

    weights: tuple[float, ...] = (INITIAL,) * DIM
    show: float = 0.0
    click: float = 0.0
    last_period: int = -1
    dies_at: int = -1


ABSENT = Row()
Model = dict[int, Row]


class Kept(NamedTuple):
    """What a checkpoint is to hold."""

    model: Model
    aside: dict[int, life.Counts]
    period: int
    rules: hps.Expiry | None


class LifeMachine(RuleBasedStateMachine):
    """A server over tiers of `kind`, and the dict that says what it should hold."""

    kind = "twins"
    scale = 1.0  # of the smallest budget
    num_evictions = num_deaths = num_kills = num_moves = num_changes = 0
    expiry: hps.Expiry | None = None  # that the config says
    other_rules: tuple[hps.Expiry | None, ...] = ()  # that the config may say later
    more_tables: tuple[hps.TableConfig, ...] = ()
    admission: hps.Admission | None = None
    max_rows: int | None = None
    negative_rate = 0.3  # of the occurrences without a click

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lab = Lab(self.kind, self.folder)
        self.num_stores = 1
        self.model: Model = {}
        self.aside: dict[int, life.Counts] = {}  # what another table counts of keys
        self.period = 0
        self.rules = self.expiry  # that are in force
        self.checkpoints: dict[str | None, Kept] = {None: Kept({}, {}, 0, self.rules)}
        self.pinned: tuple[list[int], BatchRows] | None = None

    @initialize()
    def start(self) -> None:
        self.open()

    def open(self) -> None:
        """The server, over whatever lies at the lab's path."""
        ads = hps.TableConfig(
            name="ads",
            dim=DIM,
            optimizer=hps.SGD(lr=1.0),
            initializer=hps.Constant(INITIAL),
            statistics=True,
            expiry=self.expiry,
            admission=self.admission,
            max_rows=self.max_rows,
            negative_rate=self.negative_rate,
        )
        self.more_shows = ads.more_shows
        self.server = self.lab.server(ads, *self.more_tables, scale=self.scale)

    def count(self, keys: list[int], grads: Any, clicks: Any, shows: Any = None) -> None:
        """A push or a step: a key's occurrences count at once."""
        shows = np.ones(len(keys), np.int64) if shows is None else shows
        for key in dict.fromkeys(keys):
            places = [place for place, other in enumerate(keys) if other == key]
            old = self.model.get(key, ABSENT)
            weights = old.weights
            for grad in grads[places].tolist():
                weights = tuple(a - b for a, b in zip(weights, grad, strict=True))
            self.update(key, old, weights, int(shows[places].sum()), int(clicks[places].sum()))

    def update(
        self, key: int, old: Row, weights: tuple[float, ...], shows: int, clicks: int
    ) -> None:
        """The row of a key that is pushed."""
        self.model[key] = self.seen(old, weights, shows, clicks)

    def seen(self, old: Row, weights: tuple[float, ...], shows: int, clicks: int) -> Row:
        """A row that is given weights in the period, and so many shows and clicks more."""
        before = life.Counts(old.show, old.click, max(old.last_period, 0))
        show, click, last, death = life.counted(
            self.life_rules(), before, shows, clicks, self.period, self.more_shows
        )
        return Row(weights, show, click, last, death or -1)

    def life_rules(self) -> Any:
        return None if self.rules is None else native_rules(self.rules)

    @rule(keys=KEYS, seed=SEEDS, has_shows=st.booleans(), has_clicks=st.booleans())
    def push_summed(self, keys: list[int], seed: int, has_shows: bool, has_clicks: bool) -> None:
        """As a server or a rank that owns the keys pushes what others have summed."""
        array, (grads, labels) = np.array(keys, np.uint64), self.draw(keys, seed)
        shows = np.random.default_rng(seed).integers(1, 40, len(keys), np.uint32)
        if not has_shows:
            shows[:] = 1
        clicks = (shows * labels * has_clicks).astype(np.uint32)
        occurrences = Occurrences(shows if has_shows else None, clicks if has_clicks else None)
        self.server.parts.rows.push("ads", array, grads, None, occurrences)
        self.count(keys, grads, clicks, shows)

    def draw(self, keys: list[int], seed: int) -> tuple[Any, Any]:
        """Gradients and labels."""
        generator = np.random.default_rng(seed)
        grads = generator.integers(-3, 4, (len(keys), DIM)).astype(np.float32)
        return grads, generator.integers(0, 2, len(keys)).astype(np.float32)

    @rule(keys=KEYS)
    def pull(self, keys: list[int]) -> None:
        rows = self.server.pull("ads", np.array(keys, np.uint64))
        expected = [self.model.get(key, ABSENT).weights for key in keys]
        np.testing.assert_array_equal(rows, np.array(expected, np.float32).reshape(-1, DIM))

    @rule(keys=FEW_KEYS)
    def create(self, keys: list[int]) -> None:
        self.server.pull("ads", np.array(keys, np.uint64), create=True)
        for key in keys:
            if key not in self.model:
                self.model[key] = self.seen(ABSENT, ABSENT.weights, 0, 0)

    @rule(keys=KEYS, seed=SEEDS, has_labels=st.booleans(), reads_first=st.booleans())
    def push(self, keys: list[int], seed: int, has_labels: bool, reads_first: bool) -> None:
        array, (grads, labels) = np.array(keys, np.uint64), self.draw(keys, seed)
        if reads_first:
            self.server.pull("ads", array)
        self.server.push("ads", array, grads, labels if has_labels else None)
        self.count(keys, grads, labels * has_labels)

    @rule(keys=FEW_KEYS.filter(bool), at=st.integers(0, 39))
    def push_not_a_number(self, keys: list[int], at: int) -> None:
        grads, labels = self.draw(keys, at)
        grads[at % len(keys), at % DIM] = np.nan
        with pytest.raises(hps.NonFiniteError):
            self.server.push("ads", np.array(keys, np.uint64), grads, labels)

    @rule(keys=FEW_KEYS, seed=SEEDS, has_counts=st.booleans())
    def assign(self, keys: list[int], seed: int, has_counts: bool) -> None:
        rows, click = self.draw(keys, seed)
        last = np.random.default_rng(seed).integers(0, self.period + 1, len(keys))
        given = {"show": click + 3, "click": click, "last_period": last}
        new: Model = {}
        is_refused = False  # also for the sake of a row that a later one of its key replaces
        for place, key in enumerate(keys):
            weights = tuple(rows[place].tolist())
            new[key] = self.seen(self.model.get(key, ABSENT), weights, 0, 0)
            if has_counts:
                counts = float(click[place]) + 3, float(click[place]), int(last[place])
                death = life.dies_at(self.life_rules(), *counts) if self.rules else 0
                new[key] = Row(weights, *counts, death or -1)
            is_refused |= 0 < new[key].dies_at <= self.period
        array = np.array(keys, np.uint64)
        counted = given if has_counts else None
        if is_refused:
            with pytest.raises(hps.ConfigError, match="would have died"):
                self.server.assign("ads", array, rows, statistics=counted)
            return
        self.server.assign("ads", array, rows, statistics=counted)
        self.model.update(new)

    @rule(keys=KEYS)
    def erase(self, keys: list[int]) -> None:
        if self.pinned is not None and set(keys) & set(self.pinned[0]):
            return
        self.server.erase("ads", np.array(keys, np.uint64))
        for key in keys:
            self.model.pop(key, None)

    @precondition(lambda self: self.pinned is None)
    @rule(keys=st.lists(ONE_KEY, min_size=1, max_size=6))
    def pin(self, keys: list[int]) -> None:
        self.pinned = (keys, self.server.pin("ads", np.array(keys, np.uint64)))

    @precondition(lambda self: self.pinned is not None)
    @rule(seed=SEEDS, is_trained=st.booleans())
    def step_and_release(self, seed: int, is_trained: bool) -> None:
        assert self.pinned is not None
        keys, rows = self.pinned
        if is_trained:
            grads, labels = self.draw(keys, seed)
            clicks = labels.astype(np.uint8)
            update = RowUpdate("ads", np.array(keys, np.uint64), grads, rows, clicks=clicks)
            self.server.apply([update])
            self.count(keys, grads, labels)
        rows.release()
        self.pinned = None

    @precondition(lambda self: self.pinned is None or self.expiry is self.rules is None)
    @rule(step=st.integers(1, 5), has_target=st.booleans())
    def advance(self, step: int, has_target: bool) -> None:
        self.period += step if has_target else 1
        is_changed = self.rules != self.expiry
        self.rules = self.expiry
        for key, row in self.model.items() if is_changed else ():
            death = life.dies_at(self.life_rules(), *row[1:4]) if self.rules else 0
            self.model[key] = row._replace(dies_at=max(death, self.period) if death else -1)
        type(self).num_changes += is_changed and bool(self.model)
        horizon = self.period + self.lead()
        dead = [key for key, row in self.model.items() if 0 < row.dies_at <= horizon]
        for key in dead:
            del self.model[key]
        type(self).num_deaths += len(dead)
        target = self.period if has_target else None
        assert self.server.advance_period(target, allow_empty=is_changed) == self.period
        with pytest.raises(hps.ConfigError, match="only go forward"):
            self.server.advance_period(self.period)

    def lead(self) -> int:
        """By which rows die early in a period that begins, so that not too many are left."""
        deaths = [row.dies_at for row in self.model.values()]
        lead = 0
        for gap in (0, *sorted({death - self.period for death in deaths if death > self.period})):
            num_left = sum(death < 0 or death > self.period + gap for death in deaths)
            if num_left == 0 or self.max_rows is None:
                break
            lead = gap
            if num_left <= self.max_rows:
                break
        return lead

    @rule(tag=st.sampled_from(("a", "b", None)))
    def checkpoint(self, tag: str | None) -> None:
        self.server.checkpoint(tag)
        for name in {tag, None}:
            self.checkpoints[name] = Kept(
                dict(self.model), dict(self.aside), self.period, self.rules
            )

    @precondition(lambda self: self.pinned is None)
    @rule(tag=st.sampled_from(("a", "b")))
    def restore(self, tag: str) -> None:
        if tag in self.checkpoints:
            self.server.restore(tag)
            self.checkpoints[None] = self.checkpoints[tag]
            self.go_back()

    @precondition(lambda self: self.pinned is None)
    @rule(saves=st.booleans())
    def reopen(self, saves: bool) -> None:
        if saves:
            self.checkpoint(None)
        self.open_again()

    def open_again(self, store: Path | None = None) -> None:
        """Closes the store without saving and opens it, or another one in its place."""
        type(self).num_evictions += evictions(self.server)
        self.server.close()
        if store is not None:
            shutil.rmtree(self.lab.path)
            self.lab.path = store
        self.open()
        self.go_back()

    def go_back(self) -> None:
        kept = self.checkpoints[None]
        self.model, self.aside, self.period = dict(kept.model), dict(kept.aside), kept.period
        # A table without rows has the config's at once.
        self.rules = kept.rules if kept.model else self.expiry

    def new_path(self) -> Path:
        """Of a store that takes the place of this one."""
        self.num_stores += 1
        return self.folder / f"store-{self.num_stores}"

    @precondition(lambda self: self.kind in WITH_FILES)
    @rule()
    def kill(self) -> None:
        """The process dies now: what lies on the disk is all there is."""
        image = self.new_path()
        copy_as_killed(self.lab.path, image)
        if self.pinned is not None:
            self.pinned[1].release()
            self.pinned = None
        self.open_again(image)
        type(self).num_kills += 1

    @precondition(lambda self: self.kind in WITH_FILES and self.pinned is None)
    @rule(num_ranks=st.sampled_from((0, 0, 1, 3)), tag=st.sampled_from(("a", None)))
    def move(self, num_ranks: int, tag: str | None) -> None:
        """A clone takes the place of the store; or what was divided among so many ranks, and has
        come together again."""
        if not self.server.checkpoints() or tag not in self.checkpoints:
            return
        made, ranks = self.new_path(), self.folder / "ranks"
        if num_ranks:
            reshard(self.lab.path, ranks, num_ranks, tag)
            reshard(ranks, made, None)
            shutil.rmtree(ranks)
        elif self.kind == "rocksdb":  # which has no clones
            reshard(self.lab.path, made, None, tag)
        else:
            clone(self.lab.path, made, tag)
        self.checkpoints = {None: self.checkpoints[tag]}
        self.open_again(made)
        type(self).num_moves += 1

    @precondition(lambda self: self.other_rules and self.pinned is None)
    @rule(which=st.integers(0, 2), saves=st.sampled_from((True, True, True, False)))
    def change_rules(self, which: int, saves: bool) -> None:
        """From the next period on."""
        if saves:
            self.checkpoint(None)
        self.expiry = self.other_rules[which]
        self.open_again()

    @rule(keys=KEYS)
    def look_at_counts(self, keys: list[int]) -> None:
        before = self.server.digest("ads")
        found = self.server.statistics("ads", np.array(keys, np.uint64))
        rows = [self.model.get(key, ABSENT) for key in keys]
        assert found["show"].tolist() == [row.show for row in rows]
        assert found["click"].tolist() == [row.click for row in rows]
        assert found["last_period"].tolist() == [row.last_period for row in rows]
        assert found["dies_at"].tolist() == [row.dies_at for row in rows]
        assert self.server.digest("ads") == before

    @rule()
    def look_at_every_row(self) -> None:
        found: Model = {}
        for keys, *columns in self.server.items("ads", batch=37, statistics=True):
            for key, weights, *counts in zip(
                keys.tolist(), *(column.tolist() for column in columns), strict=True
            ):
                assert key not in found
                found[key] = Row(tuple(weights), *counts)
        assert found == {key: row._replace(dies_at=-1) for key, row in self.model.items()}

    @invariant()
    def the_counts_are_exact(self) -> None:
        if hasattr(self, "server"):
            assert self.server.num_rows("ads") == len(self.model)
            assert self.server.period == self.period

    def teardown(self) -> None:
        end(self)


class MortalMachine(LifeMachine):
    """The same of a table whose rows die: by their scores, and by their age."""

    negative_rate = 1.0
    expiry = hps.Expiry(unseen=4, min_score=0.8, decay=0.9, nonclick=0.3, click=1.0)
    other_rules = (expiry, hps.Expiry(unseen=2), hps.Expiry(min_score=0.4, decay=0.7))

    @initialize()
    def start(self) -> None:
        super().start()
        self.push_summed(list(range(60)), 1, False, False)  # seen once: few live on
        self.advance(1, False)

    @precondition(lambda self: self.kind in WITH_FILES)
    @rule()
    def compact(self) -> None:
        """Whatever lies where, expired rows stay absent and what they hid stays hidden."""
        self.server.compact()


class BoundedMachine(MortalMachine):
    """The same of a table with a bound, so that rows die early, too."""

    expiry = hps.Expiry(unseen=6, min_score=0.4, decay=0.8, nonclick=0.5, click=1.0)
    other_rules = ()
    max_rows = 40
    num_early = 0

    @initialize()
    def start(self) -> None:
        super().start()
        self.push_summed(list(range(120)), 1, True, True)  # of different scores
        self.advance(1, False)

    def lead(self) -> int:
        found = super().lead()
        type(self).num_early += found > 0
        return found


class AdmittingMachine(MortalMachine):
    """The same of a table whose keys wait until they have been seen often enough. Its rules change
    by scores: by their age those that wait die, too."""

    scale = 2.4
    negative_rate = 0.6
    admission = hps.Admission(count=3)
    num_admitted = 0
    other_rules = (
        MortalMachine.expiry,
        hps.Expiry(unseen=4, min_score=0.5, decay=0.7),
        hps.Expiry(unseen=4),
    )

    def update(
        self, key: int, old: Row, weights: tuple[float, ...], shows: int, clicks: int
    ) -> None:
        assert self.admission is not None and self.admission.count is not None
        if key not in self.model:
            before = self.aside.pop(key, life.Counts(0.0, 0.0, 0))
            show = np.float32(before.show) + life.shows_of(shows, clicks, self.more_shows)
            if show < self.admission.count:
                self.aside[key] = life.Counts(float(show), before.click + clicks, self.period)
                return
            old = Row(ABSENT.weights, before.show, before.click, self.period)
            type(self).num_admitted += before.show > 0
        super().update(key, old, weights, shows, clicks)

    @initialize()
    def start(self) -> None:
        super().start()
        self.push_summed(list(range(60)), 1, True, True)
        self.advance(5, True)  # those that were admitted die
        self.push_summed(list(range(30, 90)), 2, True, True)

    def end_waiting(self, keys: list[int]) -> None:
        for key in keys:
            self.aside.pop(key, None)

    @rule(keys=FEW_KEYS)
    def create(self, keys: list[int]) -> None:
        super().create(keys)
        self.end_waiting(keys)

    @rule(keys=FEW_KEYS, seed=SEEDS, has_counts=st.booleans())
    def assign(self, keys: list[int], seed: int, has_counts: bool) -> None:
        before = {key: self.model.get(key) for key in keys}
        super().assign(keys, seed, has_counts)
        if any(self.model.get(key) is not before[key] for key in keys):  # else it was refused
            self.end_waiting(keys)

    @rule(keys=KEYS)
    def erase(self, keys: list[int]) -> None:
        super().erase(keys)
        if self.pinned is None or not set(keys) & set(self.pinned[0]):
            self.end_waiting(keys)

    @precondition(lambda self: self.pinned is None)
    @rule(step=st.integers(1, 5), has_target=st.booleans())
    def advance(self, step: int, has_target: bool) -> None:
        super().advance(step, has_target)
        assert self.expiry is not None and self.expiry.unseen is not None
        least = self.period - self.expiry.unseen
        self.aside = {key: one for key, one in self.aside.items() if one.last_period >= least}

    @rule()
    def look_at_those_that_wait(self) -> None:
        records = self.server.parts.tables.stacks[records_of("ads")]
        found = {}
        with records.still():
            for images in records.scan(37):
                columns = records.layout.keys(images), *records.layout.statistics(images)
                for key, *counts in zip(*(column.tolist() for column in columns), strict=True):
                    assert key not in found
                    found[key] = life.Counts(*counts)
        assert {key: one for key, one in found.items() if one.show} == self.aside


FIRST_RULES = hps.Expiry(unseen=3, min_score=0.3, decay=0.9, nonclick=0.2, click=1.0)


class TwoLevelMachine(MortalMachine):
    """The same of a table that another one admits keys to: while their score there, before the
    update, is high enough. What that one counts lies aside."""

    scale = 1.2
    admission = hps.Admission(by="first", min_score=0.5)
    num_admitted = 0
    more_tables = (
        hps.TableConfig(name="first", dim=1, optimizer=hps.SGD(lr=1.0), expiry=FIRST_RULES),
    )

    @initialize()
    def start(self) -> None:
        self.open()
        for gap in (5, 1):  # all die that were admitted, and come again
            for seed in (1, 2):
                self.push_both(list(range(90)), seed, True)
            self.advance(gap, True)

    def update(
        self, key: int, old: Row, weights: tuple[float, ...], shows: int, clicks: int
    ) -> None:
        if key not in self.model:
            first = self.aside.get(key)
            if first is None:
                return
            rules = native_rules(FIRST_RULES)
            now = life.counted(rules, first, 0, 0, self.period)
            score = life.score(rules, now.show, now.click)
            assert self.admission is not None
            if score < np.float32(self.admission.min_score or 0):
                return
            old = Row(ABSENT.weights, now.show, now.click, self.period)
            type(self).num_admitted += 1
        super().update(key, old, weights, shows, clicks)

    def count_first(self, keys: list[int], labels: Any) -> None:
        rules = native_rules(FIRST_RULES)
        for key in dict.fromkeys(keys):
            places = [place for place, other in enumerate(keys) if other == key]
            before = self.aside.get(key, life.Counts(0.0, 0.0, self.period))
            clicks = int(labels[places].sum())
            self.aside[key] = life.counted(rules, before, len(places), clicks, self.period)

    @rule(keys=FEW_KEYS, seed=SEEDS, is_step=st.booleans())
    def push_both(self, keys: list[int], seed: int, is_step: bool) -> None:
        """A step over both, which the scores of before decide; or a push to the first alone."""
        array, (grads, labels) = np.array(keys, np.uint64), self.draw(keys, seed)
        update = RowUpdate("first", array, grads[:, :1].copy(), clicks=labels.astype(np.uint8))
        if is_step:
            ads = RowUpdate("ads", array, grads, clicks=labels.astype(np.uint8))
            self.server.apply([update, ads] if seed % 2 else [ads, update])
            self.count(keys, grads, labels)
        else:
            self.server.apply([update])
        self.count_first(keys, labels)

    @rule(keys=FEW_KEYS)
    def erase_first(self, keys: list[int]) -> None:
        if self.pinned is None:
            self.server.erase("first", np.array(keys, np.uint64))
            for key in keys:
                self.aside.pop(key, None)

    @precondition(lambda self: self.pinned is None)
    @rule(step=st.integers(1, 5), has_target=st.booleans())
    def advance(self, step: int, has_target: bool) -> None:
        super().advance(step, has_target)
        alive = {key: one for key, one in self.aside.items() if one.dies_at > self.period}
        self.aside = alive

    @rule(keys=KEYS)
    def look_at_the_first(self, keys: list[int]) -> None:
        assert self.server.num_rows("first") == len(self.aside)
        found = self.server.statistics("first", np.array(keys, np.uint64))
        absent = life.Counts(0.0, 0.0, -1, -1)
        for name in life.Counts._fields:
            expected = [getattr(self.aside.get(key, absent), name) for key in keys]
            assert found[name].tolist() == expected
