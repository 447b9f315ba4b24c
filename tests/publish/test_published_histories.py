"""Random histories of a store, published now and then: what is served is the checkpoint's rows.

Above it: pytest, Hypothesis. Below it: hps/publish, PublishedRows. Histories have updates, erasure,
periods in which rows die, admission, returns to older checkpoints, compaction, and processes that
end; readers begin anew at any version, or follow from one to the next.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import hps
from hps.publish.destination import open_destination
from hps.publish.version import listed_versions
from hps.train.published_rows import PublishedRows, RowMemory
from tests.publish.publish_lab import AnyServer, Rows, a_table, push, rows_of, served

TABLES = (
    a_table(),
    a_table("users", 2, expiry=hps.Expiry(unseen=2, min_score=0.05, decay=0.5)),
    a_table("items", 3, admission=hps.Admission(count=2)),
)
NAMES = [table.name for table in TABLES]
KEYS = st.lists(st.integers(0, 60), min_size=1, max_size=12)


class PublishedHistory(RuleBasedStateMachine):
    """One store and one destination; `_truth` has the rows of every version."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="hps-published-"))
        self._place = self._folder / "pub"
        self._truth: dict[int, dict[str, Rows]] = {}
        self._num_caches = 0
        self._follower: PublishedRows | None = None
        self._tags: list[str] = []
        self._server: AnyServer = self._opened()

    def _opened(self) -> AnyServer:
        config = hps.Config(
            path=self._folder / "store",
            tables=TABLES,
            dram=hps.DramCacheConfig(bytes=60_000),
            ssd=hps.SsdStoreConfig(segment_bytes="64KiB"),
            seed=1,
        )
        return hps.ParameterServer(config)

    def _rows(self) -> dict[str, Rows]:
        return {name: rows_of(self._server, name) for name in NAMES}

    @rule(keys=KEYS, table=st.sampled_from(NAMES), value=st.floats(-2, 2, width=16))
    def update(self, keys: list[int], table: str, value: float) -> None:
        push(self._server, np.array(keys, np.uint64), value, table)

    @rule(keys=KEYS, table=st.sampled_from(NAMES))
    def erase(self, keys: list[int], table: str) -> None:
        self._server.erase(table, np.array(keys, np.uint64))

    @rule(periods=st.integers(1, 3))
    def advance(self, periods: int) -> None:
        self._server.advance_period(to=self._server.period + periods)

    @rule()
    def checkpoint(self) -> None:
        tag = f"t{len(self._tags)}"
        self._server.checkpoint(tag=tag)
        self._tags.append(tag)

    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        if self._tags:
            self._server.restore(data.draw(st.sampled_from(self._tags)))

    @rule()
    def compact(self) -> None:
        assert isinstance(self._server, hps.ParameterServer)
        self._server.compact()

    @rule(is_saved=st.booleans())
    def start_again(self, is_saved: bool) -> None:
        if is_saved:
            self._server.checkpoint()
        self._server.close()
        self._server = self._opened()

    @rule(kind=st.sampled_from(["auto", "auto", "auto", "base"]))
    def publish(self, kind: str) -> None:
        made = self._server.publish(self._place, kind=kind)
        rows = self._rows()
        assert made["rows"] == sum(map(len, rows.values()))
        self._truth[made["version"]] = rows

    @rule(data=st.data())
    def read_anew(self, data: Any) -> None:
        numbers = listed_versions(open_destination(self._place))
        if numbers:
            number = data.draw(st.sampled_from(numbers))
            self._num_caches += 1
            cache = self._folder / f"cache{self._num_caches}"
            for name in NAMES:
                assert served(self._place, cache, number, name) == self._truth[number][name]

    @rule()
    def follow(self) -> None:
        """From what the follower has, if changes lead on; else anew; as a process does that starts
        again over the same folder."""
        if not self._truth:
            return
        if self._follower is not None:
            self._follower.close()
        cache = self._folder / "cache"
        cache.mkdir(exist_ok=True)
        place = open_destination(self._place)
        self._follower = PublishedRows.open(place, None, cache, RowMemory(60_000))
        found = {name: rows_of(self._follower.server, name) for name in NAMES}
        assert found == self._truth[max(self._truth)]

    @invariant()
    def nothing_is_half_there(self) -> None:
        """Every version that is listed is one that a publish has returned."""
        assert set(listed_versions(open_destination(self._place))) <= set(self._truth)

    def teardown(self) -> None:
        if self._follower is not None:
            self._follower.close()
        self._server.close()
        shutil.rmtree(self._folder)


@pytest.mark.slow
def test_what_is_served_is_what_the_checkpoint_holds_whatever_came_before() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        PublishedHistory,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
