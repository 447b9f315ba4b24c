"""Tables: the stacks of an open store by table, the locks that guard them, and what has changed.

Above it: rows.py, checkpoints.py, batches.py, logged.py, which are built on it. Below it: a
TableStack for each table, and the store. This is the only file that stacks tiers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hps import _C
from hps.checkpoint.blobs import (
    PERIOD,
    decode_early,
    decode_num_updates,
    decode_period,
    decode_rules,
    decode_unsettled,
    encode_period,
)
from hps.checkpoint.dense_mark import TRAINING, DenseMark
from hps.common.expiry import OF_IMMORTAL, Expiry
from hps.common.locks import assert_held, new_lock
from hps.config import Config, TableConfig
from hps.contracts.row_cache import AnyRowCache, CountingCache
from hps.contracts.tiers import RowTier
from hps.dram_cache.tier import DramTier
from hps.errors import ConfigError, HpsError, StoreError, no_such_table
from hps.parameter_server.bounds import EarlyDeaths
from hps.parameter_server.life import changed_rules, first_rules
from hps.parameter_server.stats import TableTiers
from hps.ssd_store.table_view import StoreTable
from hps.table.life_rules import native_rules
from hps.table.waiting import WaitingTable, records_of
from hps.tiers.admission import Admitting
from hps.tiers.cached_tier import CachedTier
from hps.tiers.tables_together import TablesTogether
from hps.tiers.top_tier import TableStack


class Tables:
    """The tables of one open store.

    Args:
        config: the store; its path is absolute.
        store: open.
        dram_caches: by table.
        gpu_caches: by table; empty without a gpu_cache.
        device: where the top tier's rows lie, as torch names it.
        is_read_only: the store takes no change.
    """

    def __init__(
        self,
        config: Config,
        store: RowTier,
        dram_caches: Mapping[str, AnyRowCache],
        gpu_caches: Mapping[str, AnyRowCache],
        device: str,
        is_read_only: bool,
    ) -> None:
        self.config = config
        # All that have rows, and of these the tables as their users know them.
        self.stored: dict[str, TableConfig] = {table.name: table for table in config.tables}
        self.configs = {
            name: table
            for name, table in self.stored.items()
            if not isinstance(table, WaitingTable)
        }
        # Changed by users at any time, and within the updates.
        self.learning_rates = {name: table.optimizer.lr for name, table in self.configs.items()}
        self.store = store
        self.device = device
        self.is_read_only = is_read_only
        # Held while memory moves, by every thread; hps/tiers/cached_tier.py has the order of locks.
        # It guards the stacks.
        self.lock = new_lock()
        # Held by a thread that changes rows or takes a checkpoint, for as long as that takes. Asked
        # for before the lock. It guards the fields below it, and what Checkpoints has.
        self.updates = new_lock()
        self.is_changed = False  # since the newest checkpoint
        self.dense_mark = DenseMark()  # which dense part fits the rows as they are now
        extras = store.extras(None, (PERIOD,))
        # Of the rows as they are now, and by which rules they die; set with both locks.
        self.period = decode_period(extras)
        self.rules = first_rules(config.tables, store, decode_rules(extras))
        # Tables of which a change of the rules was begun and not ended; set within the updates.
        self.unsettled = decode_unsettled(extras)
        # Of each table that draws which keys it admits. Guarded by the updates.
        self.num_updates = self._counted_updates(extras)
        # What bounds did as the period began, by table; set with both locks.
        self.early = _early_deaths(extras)
        self.num_shards = 1  # of the service that this store is one of
        self.is_open = False  # set with both locks
        self.tiers = {
            name: self._stack_up(table, dram_caches[name], gpu_caches.get(name))
            for name, table in self.stored.items()
        }
        self.stacks = {name: tiers.stack for name, tiers in self.tiers.items()}
        movers: set[CachedTier] = set()
        for tiers in self.tiers.values():
            for tier in tiers.caches.values():
                tier.movers = movers
        for name, table in self.configs.items():
            self.stacks[name].gate = self._gate_of(table)
        gates = [stack.gate for stack in self.stacks.values()]
        self._gates = [gate for gate in gates if gate is not None]
        # Of tables on one device.
        self.together = TablesTogether.of(self.stacks, self.lock, device)
        with self.lock:
            self.set_life(self.period, self.rules)

    def _gate_of(self, table: TableConfig) -> Admitting | None:
        rule = table.admission
        if rule is None:
            return None
        beside = None if rule.probability is not None else rule.by or records_of(table.name)
        return Admitting(
            self.stacks[table.name],
            rule,
            None if beside is None else self.stacks[beside],
            native_rules(OF_IMMORTAL),
            lambda: self.num_updates[table.name],
            lambda: self.period,
        )

    def release_gates(self) -> None:
        """Lets go of what gates have prepared for an update."""
        for gate in self._gates:
            gate.release()

    def _stack_up(
        self,
        table: TableConfig,
        dram_cache: AnyRowCache,
        gpu_cache: AnyRowCache | None,
    ) -> TableTiers:
        store = StoreTable(table.name, self.store)
        lock, rates = self.lock, self.learning_rates
        if table.name not in self.configs:  # records, of which no user sets a rate
            rates = {table.name: table.optimizer.lr}
        if gpu_cache is None:
            stack = TableStack(table, dram_cache, store, lock, rates)
            return TableTiers(stack, {"dram_cache": stack}, store)
        dram = DramTier(table, dram_cache, store, lock, rates)
        stack = TableStack(table, gpu_cache, dram, lock, rates, "gpu_cache")
        return TableTiers(stack, {"gpu_cache": stack, "dram_cache": dram}, store, dram)

    @property
    def pins(self) -> int:
        """Pins on all slots of all tables; 0 when no batch is in flight."""
        with self.lock:
            return sum(stack.num_pins for stack in self.stacks.values())

    def stack(self, table: str) -> TableStack:
        """The top tier of a table.

        Raises:
            ConfigError: there is no such table. StoreError: the server is closed.
        """
        if table not in self.configs or not self.is_open:
            self.check_open()
            raise no_such_table(table, "the store has", self.configs)
        return self.stacks[table]

    def digested(self, table: str) -> list[TableStack]:
        """What the digest of a table covers: its rows, and the records of keys that wait."""
        stack, records = self.stack(table), self.stacks.get(records_of(table))
        return [stack] if records is None else [stack, records]

    def set_life(self, period: int, rules: Mapping[str, Expiry]) -> None:
        """The store is at that period, and rows die by these rules, from now on. No cached row may
        be dead in the period. Under the lock."""
        assert_held(self.lock)
        self.period, self.rules = period, dict(rules)
        for name, tiers in self.tiers.items():
            expiry = rules.get(name)
            native = None if expiry is None else native_rules(expiry)
            for tier in tiers.caches.values() if self.stored[name].statistics else ():
                assert isinstance(tier.cache, CountingCache), "a cache that does not count"
                tier.cache.set_period(period)
                tier.cache.set_rules(native)

    def encode_life(self) -> dict[str, bytes]:
        """What a checkpoint says of the period, the rules, the numbers of updates and the bounds.
        Within the updates."""
        return encode_period(self.period, self.rules, self.unsettled, self.num_updates, self.early)

    def follow_life(self, extras: Mapping[str, bytes]) -> None:
        """All of these but the period and the rules are a checkpoint's. Within the updates."""
        self.unsettled = decode_unsettled(extras)
        self.num_updates = self._counted_updates(extras)
        self.early = _early_deaths(extras)

    def _counted_updates(self, extras: Mapping[str, bytes]) -> dict[str, int]:
        rules = {name: table.admission for name, table in self.configs.items()}
        draws = [name for name, rule in rules.items() if rule is not None and rule.probability]
        stored = decode_num_updates(extras)
        return {name: stored.get(name, 0) for name in draws}

    def count_update(self, table: str) -> None:
        """An update of a table was applied. Within the updates."""
        if table in self.num_updates:
            self.num_updates[table] += 1

    def changed_rules(self) -> dict[str, Expiry | None]:
        """What the next period changes; see life.py."""
        return changed_rules(self.stored, self.rules, self.unsettled)

    def check_period(self, period: int, early: Mapping[str, EarlyDeaths]) -> None:
        """Raises what would keep the store from a period that begins so; nothing changes."""
        self.store.check_period(period, _horizons(period, early))

    def begin_period(
        self, period: int, rules: Mapping[str, Expiry], early: Mapping[str, EarlyDeaths]
    ) -> None:
        """As set_life, where rows may be dead in the period, or are to die early in it; none of
        them is dirty. With the updates, `still` and the lock."""
        before, old = self.period, self.rules
        horizons = _horizons(period, early)
        # The store may have more tables than are named; it tells their rows by itself.
        mortal = [self.stacks[name] for name in {*old, *rules} & self.stacks.keys()]
        try:
            for stack in mortal:
                # What goes lies in the store, too.
                stack.begin_period(period, horizons.get(stack.name, period))
        except BaseException:
            self.set_life(before, old)
            raise
        try:
            self.store.set_period(period, horizons)
        except HpsError:
            self.set_life(before, old)
            raise
        except BaseException:  # an interrupt: it may have been done, and rows be buried already
            self.store.set_period(period, horizons)
            self._follow(period, rules, early, mortal)
            raise
        self._follow(period, rules, early, mortal)

    def _follow(
        self,
        period: int,
        rules: Mapping[str, Expiry],
        early: Mapping[str, EarlyDeaths],
        mortal: Iterable[TableStack],
    ) -> None:
        """Brings all above the store to the period in which it is; may be repeated."""
        try:
            self.set_life(period, rules)
            self.unsettled, self.early = frozenset(), dict(early)
            for stack in mortal:
                stack.rows_expired += stack.recount()
        except BaseException:  # an interrupt
            self.set_life(period, rules)
            self.unsettled, self.early = frozenset(), dict(early)
            for stack in mortal:
                stack.recount()
            raise

    def still(self) -> _C.Turns:
        """For a `with` block in which no row of any table moves between the tiers."""
        return _C.Turns([turn for stack in self.stacks.values() for turn in stack.turns()])

    def check_open(self) -> None:
        """StoreError if the server is closed."""
        if not self.is_open:
            raise StoreError(f"the server over {self.config.path} is closed; open it again")

    def check_writable(self, verb: str) -> None:
        """ConfigError for a verb that changes something, if the server is read-only."""
        self.check_open()
        if self.is_read_only:
            raise ConfigError(
                f"{verb}: {self.config.path} is open read-only; to change it, open it with "
                "hps.open(path, read_only=False) or hps.ParameterServer(config)"
            )

    def begin_change(self, verb: str) -> None:
        """From now on rows may differ from the newest checkpoint. Within the updates."""
        assert_held(self.updates)
        self.check_writable(verb)
        self.is_changed = True
        if verb in TRAINING and not self.dense_mark.is_trained:
            self.dense_mark = replace(self.dense_mark, is_trained=True)

    def close(self) -> None:
        """Closes the store without saving; nothing to do the second time.

        Raises:
            NonFiniteError: on a GPU, of the last step. The store is closed by then.
        """
        was_open = self.is_open
        self.shut()
        for stack in self.stacks.values() if was_open else ():
            stack.raise_failed(wait=True)

    def shut(self) -> None:
        """As close, where no step is asked whether it failed."""
        with self.updates, self.still(), self.lock:
            self.is_open = False
            for stack in self.stacks.values():
                stack.changes += 1  # ends iterations
            self.store.close()  # nothing to do the second time


def _early_deaths(extras: Mapping[str, bytes]) -> dict[str, EarlyDeaths]:
    return {name: EarlyDeaths(*early) for name, early in decode_early(extras).items()}


def _horizons(period: int, early: Mapping[str, EarlyDeaths]) -> dict[str, int]:
    """By table: its rows die with a period that would by then."""
    return {name: period + deaths.lead for name, deaths in early.items()}
