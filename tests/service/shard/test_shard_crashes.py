"""A shard that dies between any two steps opens at exactly its marks, over and over.

Above it: pytest. Below it: shard_lab.py, the oracle of tests/torture. Several clients push at once,
repeat themselves and come too early, while checkpoints are taken; each life of the shard goes on
from the files of the one before it. Every planted bug is seen found.
"""

import json
import random
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hps.errors import FencedError, HpsError
from hps.service.shard.acknowledge import Acknowledger
from hps.service.shard.mutations import Mutations
from hps.service.shard.shard import Shard
from hps.update_log import History, open_update_log
from hps.update_log.history import SERVICE
from tests.service.shard.shard_lab import (
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
from tests.twins.update_log import TwinUpdateLog

replay_module = import_module("hps.update_log.replay")  # the package has its function


class Lives:
    """A shard's lives, one after the other, over one folder."""

    def __init__(self, folder: Path, seed: int, **options: Any) -> None:
        print(f"seed {seed}")
        self.lab = ShardLab(folder, seed, **options)
        self.oracle = Oracle(seed)
        self.clients = make_clients(self.oracle, seed)
        self.chance = random.Random(seed)
        self.met: Counter[str] = Counter()
        self.loses = True  # a death takes what the log had not written

    def live(self, dies_at: int, aim: str, pushes: int) -> None:
        """One life, up to its death or for so many pushes of each client."""
        try:
            shard = self.lab.open(dies_at, aim)
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
        for _ in range(lives):
            aim, longest = self.chance.choice(_AIMS)
            self.live(self.chance.randint(1, longest), aim, pushes=12)
        self.live(0, "", pushes=3)

    def lacks(self) -> list[str]:
        """What should have been met and was not: a run without it proves nothing."""
        wanted = ["openings", "replayed", "evictions", "checkpoints", "by themselves"]
        aims = {aim for aim, _ in _AIMS}
        deaths = [aim for aim in aims if not any(name.endswith(aim) for name in self.met)]
        lacking = [name for name in wanted if not self.met[name]]
        lost = ["went_back"] if self.loses else []
        for name in ("repeats", "gaps", "acknowledged", *lost):
            if not sum(getattr(client, name) for client in self.clients):
                lacking.append(name)
        return lacking + deaths


# The shard's own thread dies with it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


# Where a life ends, and after how many such steps at most.
_AIMS = [
    ("", 12),
    ("", 250),
    ("log.append", 80),
    ("store.append", 200),
    ("store.checkpoint", 6),
    ("log.cut", 4),
    ("log.open", 1),
]


def _fresh_seed() -> int:
    return random.randrange(10**9)


@pytest.mark.parametrize("kind", ["dram", "gpu", "native log"])
def test_a_shard_that_dies_at_any_step_opens_at_its_marks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder() as folder:
        lives = Lives(folder, _fresh_seed(), gpu=kind == "gpu")
        if kind == "native log":
            lives.lab.open_log = open_update_log
            lives.loses = False
        patch_history(monkeypatch, lives.lab)
        for _ in range(40):  # what has not come in one round comes in another
            lives.run(20)
            if not lives.lacks():
                break
    print(lives.met)
    assert not lives.lacks(), f"the run proves nothing: {lives.met}"


def _forget_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come before is applied again."""
    mutate = Mutations._mutate

    def planted(self: Mutations, mutation: Any, terms: Any) -> Any:
        session = self._store.history.sessions.get(mutation.identity.client_id)
        session.mark = min(session.mark, mutation.identity.sequence - 1)
        return mutate(self, mutation, terms)

    monkeypatch.setattr(Mutations, "_mutate", planted)


def _plant_in_checkpoints(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """A checkpoint holds the rows of now, and one field of the checkpoint before."""
    extras = History.extras
    kept: dict[str, Any] = {}

    def planted(self: History, group: str) -> dict[str, bytes]:
        value = json.loads(extras(self, group)[SERVICE])
        before, kept[field] = kept.get(field, value[field]), value[field]
        return {SERVICE: json.dumps({**value, field: before}).encode()}

    monkeypatch.setattr(History, "extras", planted)


def _old_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and marks of a checkpoint are of two moments."""
    _plant_in_checkpoints(monkeypatch, "sessions")


def _old_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint says that it holds fewer records than it does, and nothing is cut."""
    _plant_in_checkpoints(monkeypatch, "number")
    monkeypatch.setattr(TwinUpdateLog, "cut", lambda self, number: None)


def _replay_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay applies every record two times."""
    apply = replay_module._apply

    def planted(server: Any, *arguments: Any) -> Any:
        apply(server, *arguments)
        return apply(server, *arguments)

    monkeypatch.setattr(replay_module, "_apply", planted)


def _acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the log."""
    monkeypatch.setattr(Acknowledger, "wait", lambda *arguments: None)


def _drop_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay passes over some records, but moves the marks."""
    apply = replay_module._apply

    def planted(server: Any, history: Any, mutation: Any, number: int) -> Any:
        return None if number % 7 == 0 else apply(server, history, mutation, number)

    monkeypatch.setattr(replay_module, "_apply", planted)


PLANTED = {
    "marks-forgotten": _forget_marks,
    "marks-of-the-checkpoint-before": _old_marks,
    "records-applied-again": _old_number,
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
