"""Rounds: the pipelines of all ranks, whose batches' keys are exchanged in rounds, and their end.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises. Below it:
cluster/exchange/key_exchange.py, cluster/world/together.py.
"""

from collections.abc import Mapping
from typing import cast

from hps.cluster.exchange.key_exchange import AnyOwnKeys, ExchangedKeys
from hps.cluster.exchanges import Exchanges
from hps.cluster.rows import RowVerbs
from hps.cluster.world.together import Together, is_shared
from hps.common.arrays import AnyArray
from hps.errors import ConfigError
from hps.gpu_cache.peer_keys import PeerKeys


class Rounds:
    """Those of one rank.

    Args:
        together: all ranks.
        exchanges: has that of the keys.
        rows: knows how many steps there were, for what the others are told at the end.
    """

    def __init__(self, together: Together, exchanges: Exchanges, rows: RowVerbs) -> None:
        self._together = together
        self._exchanges = exchanges
        self._rows = rows
        self._pipeline: object | None = None  # that is open

    @property
    def has_pipeline(self) -> bool:
        """True if the network stage of a pipeline uses the rounds."""
        return self._pipeline is not None

    @property
    def exchanges_keys(self) -> bool:
        """True if there are other ranks."""
        return not self._together.is_alone

    def divide(self, keys: Mapping[str, AnyArray]) -> dict[str, AnyOwnKeys]:
        """Deduplicates a batch's keys of each table, and finds their owners. From any thread.

        Raises:
            ConfigError: unknown table, wrong dtype or shape.
        """
        for table in keys:
            self._exchanges.table(table)
        return self._exchanges.keys.divide(keys)

    def moved(self, exchanged: Mapping[str, object], keys: Mapping[str, AnyArray]) -> None:
        """As Ranks has it."""
        for table, of_table in exchanged.items():
            own = cast("ExchangedKeys", of_table).own
            if isinstance(own, PeerKeys):
                own.came_as(keys[table])

    def exchange(self, own: Mapping[str, object] | None) -> dict[str, ExchangedKeys] | None:
        """One round of all ranks' pipelines, in the network stage; None: a rank has ended it.

        Raises:
            ClusterError: another rank is gone or does not answer.
            ConfigError: the ranks' batches are of different tables; on every rank.
        """
        return self._exchanges.keys.exchange(cast("Mapping[str, AnyOwnKeys] | None", own))

    def pipeline_opened(self, pipeline: object) -> None:
        """A pipeline begins: its network stage calls `exchange` from now on.

        Raises:
            ConfigError: another one is open.
        """
        if self._pipeline is not None:
            raise ConfigError(
                "Pipeline: one is open already; over several ranks there is one at a time, for its "
                "rounds of keys run beside the loop: leave its `with` block first"
            )
        self._pipeline = pipeline
        self._exchanges.keys.open()

    def pipeline_closing(self, pipeline: object, error: BaseException | None) -> None:
        """A pipeline's block has been left: by an error that other ranks do not have, no rank is to
        wait for this one any more."""
        if pipeline is not self._pipeline or error is None or is_shared(error):
            return
        if not isinstance(error, GeneratorExit):  # a generator around the block was left
            self._pipeline = None
            self._together.abort("the pipeline", error)

    def pipeline_closed(self, pipeline: object) -> None:
        """The closing round, in which the ranks agree on the last batch that all of them had.

        Raises:
            ClusterError: another rank is gone or does not answer.
        """
        if pipeline is not self._pipeline:
            return
        self._pipeline = None
        self.meet("has left its pipeline")

    def agree(self, flag: bool) -> bool:
        """True if it is on any rank; every rank calls it."""
        if self._together.is_alone:
            return flag
        with self._together.block("an agreement"):
            return self._together.world.control.any(flag)

    def meet(self, what: str) -> None:
        """Waits until all ranks have come here. Who goes on with its loop is told at once: also one
        whose network stage has no room to come to the closing round."""
        if self._together.is_alone:
            return self._exchanges.keys.close()
        with self._together.block("the end of a loop"):
            self._together.world.halt(f"{what} after {self._rows.num_steps} step(s)")
            self._exchanges.keys.close()
            self._exchanges.keys.meet()
            self._together.world.go_on()

    def halt(self, what: str) -> None:
        """Tells the others that this rank comes to nothing more, and goes on by itself."""
        self._together.world.halt(f"{what} after {self._rows.num_steps} step(s)", is_last=True)
