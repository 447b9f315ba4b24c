"""A shard that dies between any two steps opens at exactly its marks, over and over.

Above it: pytest. Below it: shard_lab.py, the oracle of tests/torture. Several clients push at once,
repeat themselves and come too early, while checkpoints are taken; each life of the shard goes on
from the files of the one before it. Every planted bug is seen found.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hps.errors import FencedError, HpsError
from hps.service.shard import Shard
from hps.update_log import History, Sessions
from hps.update_log import replay as replay_module
from tests.service.shard_lab import (
    Death,
    ShardLab,
    TestClient,
    check_rows,
    make_clients,
    patch_history,
    run_together,
)
from tests.torture.oracle import Oracle, OracleViolation
from tests.torture.scratch import scratch_folder


class Lives:
    """A shard's lives, one after the other, over one folder."""

    def __init__(self, folder: Path, seed: int, **options: Any) -> None:
        print(f"seed {seed}")
        self.lab = ShardLab(folder, seed, **options)
        self.oracle = Oracle(seed)
        self.clients = make_clients(self.oracle, seed)
        self.chance = random.Random(seed)
        self.met: Counter[str] = Counter()

    def live(self, dies_at: int, pushes: int) -> None:
        """One life, up to its death or for so many pushes of each client."""
        try:
            shard = self.lab.open(dies_at)
            self.met["openings"] += 1
            self.met["replayed"] += shard.stats()["service"]["records_replayed"]
            for client in self.clients:
                client.connect(shard)
            self.check(shard)
            workers = [self._worker(client, shard, pushes) for client in self.clients]
            run_together([*workers, lambda: self._checkpoints(shard)])
            errors = [error for client in self.clients for error in client.errors]
            if errors:
                raise errors[0]
            self.met["evictions"] += shard.stats()["dram_cache"]["evictions"]
            self.met["by themselves"] += shard.stats()["service"]["checkpoints"]
        except Death:
            self.met["deaths before a push"] += 1
        self.met[f"died {self.lab.steps.last}" if self.lab.steps.is_dead else "lived"] += 1
        self.lab.kill()

    def _worker(self, client: TestClient, shard: Shard, pushes: int) -> Any:
        return lambda: client.live(shard, pushes)

    def _checkpoints(self, shard: Shard) -> None:
        try:
            for _ in range(self.chance.randint(0, 2)):
                shard.checkpoint(self.chance.choice([None, "kept"]))
                self.met["checkpoints"] += 1
        except Death:
            return

    def check(self, shard: Shard) -> None:
        """Rows and marks agree."""
        marks = [client.next - 1 for client in self.clients]
        check_rows(shard, self.oracle, marks)

    def run(self, lives: int) -> None:
        """So many lives, the last of them to its end."""
        for number in range(lives):
            # Now and then at one of the first steps: that is within the opening.
            longest = 12 if number % 4 == 0 else 250
            self.live(self.chance.randint(1, longest), pushes=12)
        self.live(0, pushes=3)


def _fresh_seed() -> int:
    return random.randrange(10**9)


@pytest.mark.parametrize("gpu", [False, True], ids=["dram", "gpu"])
def test_a_shard_that_dies_at_any_step_opens_at_its_marks(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder() as folder:
        lives = Lives(folder, _fresh_seed(), gpu=gpu)
        patch_history(monkeypatch, lives.lab)
        lives.run(30)
    print(lives.met)
    met = lives.met
    for premise in ("openings", "replayed", "evictions", "checkpoints", "by themselves"):
        assert met[premise] > 0, premise
    assert len([name for name in met if name.startswith("died")]) > 5
    assert sum(client.repeats for client in lives.clients) > 0
    assert sum(client.gaps for client in lives.clients) > 0
    assert sum(client.went_back for client in lives.clients) > 0  # memory pushes that were lost
    assert all(client.acknowledged > 0 for client in lives.clients)


def _forget_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is not looked at: whatever comes is applied."""
    find = Sessions.find

    def planted(self: Sessions, client_id: str, incarnation: int) -> Any:
        session = find(self, client_id, incarnation)
        session.mark = 0
        return session

    monkeypatch.setattr(Sessions, "find", planted)


def _old_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds the rows of now and the marks of the one before."""
    extras = History.extras
    kept: dict[int, dict[str, bytes]] = {}

    def planted(self: History, group: str) -> dict[str, bytes]:
        now = extras(self, group)
        before, kept[0] = kept.get(0, now), now
        return before

    monkeypatch.setattr(History, "extras", planted)


def _same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not say which records it holds: all are applied again."""
    take = History._take

    def planted(self: History, cut: Any) -> None:
        take(self, cut)
        self.number = max(0, self.number - 1)

    monkeypatch.setattr(History, "_take", planted)


def _replay_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay applies every record two times."""
    apply = replay_module._apply

    def planted(server: Any, *arguments: Any) -> Any:
        apply(server, *arguments)
        return apply(server, *arguments)

    monkeypatch.setattr(replay_module, "_apply", planted)


def _acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the log."""
    monkeypatch.setattr(Shard, "_await", lambda *arguments: None)


def _drop_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay passes over some records, but moves the marks."""
    apply = replay_module._apply

    def planted(server: Any, history: Any, mutation: Any, number: int) -> Any:
        return None if number % 7 == 0 else apply(server, history, mutation, number)

    monkeypatch.setattr(replay_module, "_apply", planted)


PLANTED = {
    "marks-forgotten": _forget_marks,
    "marks-of-the-checkpoint-before": _old_marks,
    "records-applied-again": _same_number,
    "replayed-twice": _replay_twice,
    "acknowledged-early": _acknowledge_early,
    "records-passed-over": _drop_tail,
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found_by_deaths(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[plant](monkeypatch)
    with scratch_folder() as folder:
        lives = Lives(folder, _fresh_seed())
        with pytest.raises((OracleViolation, HpsError)) as found:
            lives.run(40)
        assert not isinstance(found.value, FencedError)
        lives.lab.kill()
    print(found.value)
