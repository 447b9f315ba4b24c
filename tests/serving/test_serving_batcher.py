"""Requests that wait together are scored as one batch, and answered apart.

Above it: pytest. Below it: hps.serving.batcher over a function in the place of a model.
"""

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from hps.errors import ConfigError, CorruptionError
from hps.service.messages.status import Refusal
from hps.serving.batcher import Batcher, BatchOptions
from hps.serving.figures import ScoreFigures
from hps.serving.merge import merged
from hps.types import Batch, Ids

LONG = 30.0


def batch_of(values: list[int]) -> Batch:
    """An example for each value, which is its key and its dense value."""
    keys = torch.tensor(values)
    ids = Ids(keys, torch.arange(len(values) + 1))
    dense = keys.float().reshape(-1, 1)
    return Batch({"ads": ids}, dense, torch.zeros(len(values)))


class Scores:
    """Scores an example as its value; can be held up, and refuses negative values."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.is_open = threading.Event()
        self.is_open.set()
        self.has_begun = threading.Event()
        self.version = "1"

    def __call__(self, batch: Batch) -> tuple[Any, str]:
        keys = batch.features["ads"].keys_L.tolist()
        assert batch.dense[:, 0].tolist() == keys
        self.batches.append(keys)
        self.has_begun.set()
        assert self.is_open.wait(LONG)
        if min(keys) < 0:
            raise CorruptionError(f"row {min(keys)} is damaged")
        return np.array(keys, np.float32), self.version


class Asking:
    """A request in a thread of its own."""

    def __init__(self, batcher: Batcher, values: list[int], seconds: float = LONG) -> None:
        self.found: Any = None
        self._ask = (batcher, values, time.monotonic() + seconds)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        batcher, values, deadline = self._ask
        try:
            scores, version = batcher.score(batch_of(values), deadline)
            self.found = (scores.tolist(), version)
        except Exception as error:
            self.found = error

    def result(self) -> Any:
        self._thread.join(LONG)
        assert not self._thread.is_alive()
        return self.found


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)


def held(options: BatchOptions) -> tuple[Batcher, Scores, Asking]:
    """A batcher whose first batch does not end until `scores.is_open` is set."""
    scores = Scores()
    scores.is_open.clear()
    batcher = Batcher(scores, options, ScoreFigures())
    first = Asking(batcher, [1])
    assert scores.has_begun.wait(LONG)
    return batcher, scores, first


def ask_in_turn(batcher: Batcher, requests: list[list[int]]) -> list[Asking]:
    asked = []
    for number, values in enumerate(requests, 1):
        asked.append(Asking(batcher, values))
        wait_for(lambda number=number: batcher.num_waiting == number)  # type: ignore[misc]
    return asked


def test_requests_that_wait_are_one_batch_and_get_their_own_scores() -> None:
    batcher, scores, first = held(BatchOptions())
    asked = ask_in_turn(batcher, [[2, 3], [4], [5, 6, 7]])
    scores.is_open.set()
    assert first.result() == ([1.0], "1")
    assert [one.result() for one in asked] == [
        ([2.0, 3.0], "1"),
        ([4.0], "1"),
        ([5.0, 6.0, 7.0], "1"),
    ]
    assert scores.batches == [[1], [2, 3, 4, 5, 6, 7]]
    assert batcher.num_waiting == 0 and batcher.score(batch_of([9]), time.monotonic() + LONG)


def test_a_batch_has_no_more_examples_than_it_may() -> None:
    batcher, scores, _ = held(BatchOptions(max_batch=3))
    asked = ask_in_turn(batcher, [[2, 3], [4], [5, 6, 7, 8], [9]])
    scores.is_open.set()
    assert [one.result()[0] for one in asked] == [[2, 3], [4], [5, 6, 7, 8], [9]]
    assert scores.batches == [[1], [2, 3, 4], [5, 6, 7, 8], [9]]


def test_a_request_that_cannot_be_scored_spoils_no_other() -> None:
    batcher, scores, _ = held(BatchOptions())
    asked = ask_in_turn(batcher, [[2], [-3], [4]])
    scores.is_open.set()
    assert asked[0].result() == ([2.0], "1") and asked[2].result() == ([4.0], "1")
    assert isinstance(asked[1].result(), CorruptionError)
    assert scores.batches == [[1], [2, -3, 4], [2], [-3], [4]]


def test_a_request_leaves_at_its_deadline_while_others_wait_on() -> None:
    batcher, scores, _ = held(BatchOptions())
    late = Asking(batcher, [2], seconds=0.05)
    wait_for(lambda: batcher.num_waiting == 1)
    other = Asking(batcher, [3])
    error = late.result()
    assert isinstance(error, Refusal) and error.code.name == "DEADLINE_EXCEEDED"
    wait_for(lambda: batcher.num_waiting == 1)
    scores.is_open.set()
    assert other.result() == ([3.0], "1") and scores.batches == [[1], [3]]


def test_what_is_late_when_its_batch_begins_is_not_scored() -> None:
    scores = Scores()
    batcher = Batcher(scores, BatchOptions(), ScoreFigures())
    with pytest.raises(Refusal, match="deadline passed"):
        batcher.score(batch_of([1]), time.monotonic() - 1)
    assert scores.batches == []
    assert batcher.score(batch_of([2]), time.monotonic() + LONG)[0].tolist() == [2]


def test_a_delay_gathers_requests_until_the_batch_is_full() -> None:
    scores = Scores()
    batcher = Batcher(scores, BatchOptions(max_batch=3, max_delay=LONG), ScoreFigures())
    begun = time.monotonic()
    asked = [Asking(batcher, [number]) for number in (1, 2, 3)]
    assert sorted(one.result()[0] for one in asked) == [[1.0], [2.0], [3.0]]
    assert time.monotonic() - begun < LONG / 2
    assert len(scores.batches) == 1 and sorted(scores.batches[0]) == [1, 2, 3]


def test_a_delay_ends_by_itself() -> None:
    scores = Scores()
    batcher = Batcher(scores, BatchOptions(max_delay=0.05), ScoreFigures())
    begun = time.monotonic()
    batcher.score(batch_of([1]), time.monotonic() + LONG)
    assert 0.05 <= time.monotonic() - begun < LONG / 2
    begun = time.monotonic()
    batcher.score(batch_of([1]), time.monotonic() + 0.05)  # half of its time at most
    assert time.monotonic() - begun < 0.05


def test_several_batches_are_scored_at_once_where_that_is_asked_for() -> None:
    batcher, scores, first = held(BatchOptions(at_once=2))
    second = Asking(batcher, [2])
    wait_for(lambda: len(scores.batches) == 2)
    asked = ask_in_turn(batcher, [[3], [4]])
    scores.is_open.set()
    assert [one.result()[0] for one in (first, second, *asked)] == [[1], [2], [3], [4]]
    assert batcher._num_leading == 0


@pytest.mark.parametrize("at_once", [1, 3])
def test_many_threads_get_their_own_scores(at_once: int) -> None:
    scores = Scores()
    batcher = Batcher(scores, BatchOptions(max_batch=64, at_once=at_once), ScoreFigures())
    wrong: list[Any] = []

    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(60):
            values = random.integers(-1 if number == 0 else 0, 1000, random.integers(1, 9)).tolist()
            try:
                found = batcher.score(batch_of(values), time.monotonic() + LONG)[0].tolist()
            except CorruptionError:
                found = values if min(values) < 0 else None
            if found != values:
                wrong.append((values, found))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and batcher._num_leading == 0 and batcher.num_waiting == 0


def test_what_was_scored_is_counted_by_version() -> None:
    figures = ScoreFigures()
    scores = Scores()
    batcher = Batcher(scores, BatchOptions(), figures)
    for version in range(12):
        scores.version = str(version)
        batcher.score(batch_of([0, 1]), time.monotonic() + LONG)
    found = figures.snapshot()
    assert found.num_rows == 24 and found.rows.total == 24 and sum(found.rows.counts) == 12
    assert list(found.scores) == [str(version) for version in range(4, 12)]  # the newest
    assert found.scores["11"].total == 1.0 and found.scores["11"].counts[0] == 1
    assert found.scores["11"].counts[-1] == 1


@pytest.mark.parametrize("field", [{"max_batch": 0}, {"max_delay": -1.0}, {"at_once": 0}])
def test_options_that_cannot_work_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"BatchOptions.{next(iter(field))}"):
        BatchOptions(**field)


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("most", [1, 3])
def test_merged_batches_have_every_bag_in_its_place(has_weights: bool, most: int) -> None:
    """Against bags in lists."""
    random = np.random.default_rng(most)
    parts, bags = [], []
    for number, rows in enumerate([3, 1, 4]):
        of_part = [
            [random.integers(0, 99, most if most == 1 else random.integers(0, most)).tolist()]
            for _ in range(2 * rows)
        ]
        flat = [one for (one,) in of_part]
        keys = torch.tensor([key for bag in flat for key in bag], dtype=torch.int64)
        offsets = torch.tensor(np.cumsum([0, *map(len, flat)]))
        weights = keys.float() / 7 if has_weights and number != 1 else None
        parts.append(
            Batch({"t": Ids(keys, offsets, weights)}, torch.ones(rows, 1), torch.zeros(rows))
        )
        bags.append((flat[:rows], flat[rows:]))
    ids = merged(parts).features["t"]
    expected = [bag for feature in (0, 1) for part in bags for bag in part[feature]]
    ends = ids.offsets.tolist()
    found = [ids.keys_L[begin:end].tolist() for begin, end in pairwise(ends)]
    assert found == expected and len(merged(parts)) == 8
    if not has_weights:
        assert ids.weights_L is None
        return
    assert ids.weights_L is not None
    owners = [
        number for feature in (0, 1) for number, part in enumerate(bags) for _ in part[feature]
    ]
    for bag, owner, begin in zip(found, owners, ends, strict=False):
        weights = ids.weights_L[begin : begin + len(bag)].tolist()
        plain = [1.0] * len(bag) if owner == 1 else (torch.tensor(bag).float() / 7).tolist()
        assert weights == plain
