"""Ranks do not count, and have no periods, yet: they say so before anything is written.

Above it: pytest. Below it: ranks.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import Failure, run_ranks, successes

KEYS = np.arange(4, dtype=np.uint64)


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_refuse_a_table_with_statistics(tmp_path: Path, size: int) -> None:
    table = hps.TableConfig(name="ads", dim=4, statistics=True)

    def body(world: LocalWorld) -> Any:
        return hps.ClusterParameterServer(hps.Config(path=tmp_path / "s", tables=[table]), world)

    for failed in run_ranks(size, body):
        assert isinstance(failed, Failure) and isinstance(failed.error, hps.ConfigError)
        assert "ranks do not count them yet" in str(failed.error)
    assert not (tmp_path / "s").exists()


def test_ranks_have_no_periods(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "s", tables=[hps.TableConfig(name="ads", dim=4)])

    def body(world: LocalWorld) -> str:
        with hps.ClusterParameterServer(config, world) as server:
            verbs: list[Callable[[], object]] = [
                lambda: server.period,
                server.advance_period,
                lambda: server.statistics("ads", KEYS),
            ]
            for verb in verbs:
                with pytest.raises(hps.ConfigError, match=r"over ranks: only hps\.ParameterServer"):
                    verb()
        return "done"

    assert successes(run_ranks(2, body)) == ["done", "done"]


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("ranks", [None, 2])
def test_rows_of_a_store_with_a_period_are_not_divided(
    tmp_path: Path, statistics: bool, ranks: int | None
) -> None:
    table = hps.TableConfig(name="ads", dim=4, statistics=statistics)
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=[table])) as server:
        server.push("ads", KEYS, np.ones((4, 4), np.float32))
        if not statistics:
            server.advance_period()
    held = "table 'ads' with statistics" if statistics else "a period"
    with pytest.raises(hps.ConfigError, match=f"which holds {held}"):
        reshard(tmp_path / "store", tmp_path / "made", ranks)
    assert not (tmp_path / "made").exists()
