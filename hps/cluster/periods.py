"""PeriodVerbs: the period that all ranks count in, and what rows have counted, wherever they lie.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
exchanges.py, the control channel, the rank's own server. A period begins on all ranks or none:
every rank looks first whether it can, its store too, and none begins before all have. So it is with
other rules, for which each rank makes a pass over its rows before any begins the period in which
they hold. Where the last step fails on a rank all the same, `advance(to)` brings it after the
others.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hps.cluster.exchanges import Exchanges
from hps.cluster.world.together import Together
from hps.common.arrays import AnyArray, as_keys, as_numpy, like, on_host
from hps.errors import ConfigError
from hps.parameter_server.bounds import DeathCounts, EarlyDeaths
from hps.parameter_server.periods import refuse_emptied, refuse_uncounted
from hps.parameter_server.server import ParameterServer

_NAMES = ("show", "click", "last_period", "dies_at")


class PeriodVerbs:
    """Advance_period, statistics.

    Args:
        local: the server of this rank.
        together: all ranks.
        exchanges: of keys between them.
    """

    def __init__(self, local: ParameterServer, together: Together, exchanges: Exchanges) -> None:
        self._local = local
        self._together = together
        self._exchanges = exchanges

    def advance(self, to: int | None) -> int:
        """As `ClusterParameterServer.advance_period`."""
        if self._together.is_alone:
            return self._local.advance_period(to)
        what, periods = "advance_period", self._local.parts.periods
        if self._refuse_apart(to):
            return self._catch_up()
        target = self._together.agreed(what, lambda: periods.check(to))
        gather = self._together.world.control.gather
        targets = gather(target)
        if any(one != target for one in targets):
            raise _shared(
                f"advance_period: the ranks would begin periods {targets} (by rank); run the same "
                "program on every rank"
            )
        # A rank without rows of a table has the config's rules already.
        changed = sorted({name for names in gather(periods.changed()) for name in names})
        if changed:
            self._change_rules(target, changed)
        counts = self._together.agreed(what, lambda: periods.count_bounded(target, changed))
        whole = {name: self._over_ranks(part) for name, part in sorted(counts.items())}
        early = self._together.agreed(what, lambda: periods.find_early(target, whole))
        return self._together.agreed(what, lambda: periods.advance_as(target, changed, early))

    def _refuse_apart(self, to: int | None) -> bool:
        """False where all ranks are in one period; True where they are not, and all ask for the
        latest of theirs.

        Raises:
            ConfigError: they are not, and a rank asks for another one.
        """
        own = self._together.agreed("advance_period", lambda: self._local.period)
        gather = self._together.world.control.gather
        now, asked = gather(own), gather(to)
        if min(now) == max(now):
            return False
        if any(one != max(now) for one in asked):
            raise _shared(
                f"advance_period: the ranks are in periods {now} (by rank), as one failed when "
                f"others had begun theirs; advance_period(to={max(now)}) on every rank brings all "
                "into one period, or restore a checkpoint"
            )
        return True

    def _catch_up(self) -> int:
        """Brings the ranks that are behind into the period of the first one, with what died early
        there: bounds are of all ranks together. What failed may fail again, and be repeated."""
        what, periods = "advance_period", self._local.parts.periods
        own = self._local.period
        early = {name: list(deaths) for name, deaths in periods.early.items()}
        gather = self._together.world.control.gather
        now, found = gather(own), gather(early)
        target = max(now)
        of_first = found[now.index(target)]
        given = {name: EarlyDeaths(*deaths) for name, deaths in of_first.items()}

        def follow() -> int:
            if own == target:
                return target
            changed = periods.changed()
            periods.change_rules(target, changed)
            return periods.advance_as(target, changed, given)

        return self._together.agreed(what, follow)

    def _change_rules(self, target: int, names: Sequence[str]) -> None:
        """All ranks look at their rows before one changes any. Where a pass fails on one of them
        the period stays on all, and the next one makes it again on all."""
        what, periods = "new rules", self._local.parts.periods
        dying = self._together.agreed(what, lambda: periods.count_dying(target, names))
        told = self._together.world.control.gather(dying)
        for name in names:
            if (table := self._local.tables.get(name)) is not None:  # of keys that wait no row goes
                num_dying, num_rows = (sum(one[name][i] for one in told) for i in (0, 1))
                try:
                    refuse_emptied(table, num_dying, num_rows)
                except ConfigError as refusal:
                    raise _shared(str(refusal)) from None
        self._together.agreed(what, lambda: periods.change_rules(target, names))

    def _over_ranks(self, counts: DeathCounts) -> DeathCounts:
        """The sum of what each rank has."""
        places = np.flatnonzero(counts)
        whole = np.zeros_like(counts)
        own = places.tolist(), counts[places].tolist()
        for their_places, numbers in self._together.world.control.gather(own):
            whole[their_places] += np.array(numbers, np.uint64)
        return whole

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """As `ClusterParameterServer.statistics`."""
        refuse_uncounted(self._exchanges.table(table), "statistics")
        array = on_host(as_keys(keys, self._local.device))
        exchanged, own = self._exchanges.swap_on_host(table, array)
        found = self._together.agreed(
            f"statistics of table {table!r}",
            lambda: self._local.statistics(table, exchanged.received),
        )
        # float32 of the counts, int64 of the periods: each in a column of eight bytes.
        columns = [as_numpy(found[name], name) for name in _NAMES]
        whole = np.zeros((len(exchanged.received), len(_NAMES)), np.int64)
        for place, column in enumerate(columns):
            whole[:, place] = column.view(np.int32) if column.itemsize == 4 else column
        came = self._together.world.control.exchange(
            torch.from_numpy(whole), exchanged.counts, own.counts
        )
        mine = came.numpy()[own.places()]
        told = {}
        for place, (name, column) in enumerate(zip(_NAMES, columns, strict=True)):
            part = np.ascontiguousarray(mine[:, place])
            if column.itemsize == 4:
                part = part.astype(np.int32).view(np.float32)
            told[name] = like(part, keys)
        return told


def _shared(text: str) -> ConfigError:
    """What every rank raises."""
    refusal = ConfigError(text)
    refusal.is_shared = True
    return refusal
