"""Tables of a shard through restores and deaths: none that was made goes, none is in the log and
not in the store.

Above it: pytest. Below it: shard_lab.py.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.errors import MismatchError
from hps.parameter_server.opening import Tiers
from hps.service.shard.shard import Shard
from hps.update_log import Epoch
from tests.lab import keys_of
from tests.service.shard.shard_lab import Death, ShardLab, patch_history
from tests.service.shard.shard_session import CLIENT, KEYS, Session, ones, train, trained
from tests.torture.scratch import scratch_folder
from tests.twins.update_log import TwinLogDisk

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

LATE = hps.TableConfig(
    name="late",
    dim=4,
    optimizer=hps.Adagrad(eps=0.5),
    features=["c"],
    admission=hps.Admission(count=1),  # records are made along with the table
    expiry=hps.Expiry(unseen=5),
    max_rows=1000,
)
LATER = hps.TableConfig(
    name="later", dim=4, optimizer=hps.SGD(lr=1.0), features=["d"], dtype="bfloat16"
)


@pytest.fixture
def lab(lab: ShardLab) -> ShardLab:
    """With memory for more tables."""
    return _roomy(lab)


def _roomy(lab: ShardLab) -> ShardLab:
    lab.config = dataclasses.replace(lab.config, dram=hps.DramCacheConfig(bytes=100_000))
    return lab


def _digests(shard: Shard) -> dict[str, tuple[int, int]]:
    return {table.name: shard.digest(table.name) for table in shard.tables}


def test_a_table_that_is_younger_than_a_restored_checkpoint_stays_and_is_empty(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint("base")
    assert shard.create_table(LATE)
    shard.push(session.next(), "late", KEYS, ones())
    tables = shard.tables
    shard.restore("base")
    assert shard.num_rows("late") == 0 and shard.tables == tables
    lab.kill()
    shard = lab.open()
    assert shard.num_rows("late") == 0 and shard.tables == tables
    session = Session(shard)
    shard.push(session.next(), "late", KEYS, ones())
    digests = _digests(shard)
    lab.kill()
    shard = lab.open()
    assert shard.stats()["service"]["records_replayed"] > 0
    assert _digests(shard) == digests and shard.tables == tables
    assert not shard.create_table(LATE)


def test_a_table_of_that_name_with_other_numbers_is_refused_after_the_restore_too(
    lab: ShardLab,
) -> None:
    shard = lab.open()
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.restore("base")
    wide = dataclasses.replace(LATE, dim=8)
    for _ in range(2):
        with pytest.raises(MismatchError, match="its dim is 4, requested is 8"):
            shard.create_table(wide)
        lab.kill()
        shard = lab.open()


def test_several_tables_come_back_with_the_checkpoint_that_has_them(lab: ShardLab) -> None:
    shard, session = trained(lab, 2)
    shard.checkpoint("base")
    found = {"base": {**_digests(shard)}}
    for table in (LATE, LATER):
        shard.create_table(table)
        shard.push(session.next(), table.name, KEYS, ones())
        shard.checkpoint(table.name)
        found[table.name] = _digests(shard)
    empty = shard.digest("later")
    for tag in ("base", "late", "base", "later", "late", "base"):
        shard.restore(tag)
        session = Session(shard)
        for has_died in (False, True):
            if has_died:
                lab.kill()
                shard = lab.open()
            digests = _digests(shard)
            assert {name: digests[name] for name in found[tag]} == found[tag]
            assert [name for name in digests if shard.num_rows(name)] == [
                name for name in found[tag] if shard.num_rows(name)
            ]
            assert list(digests) == ["sgd", "adagrad", "late", "later"]
        assert digests["later"] != empty or "later" in found[tag]
        session = Session(shard)
        shard.push(session.next(), "later", KEYS, ones())
        digests = _digests(shard)
        lab.kill()
        shard = lab.open()
        assert _digests(shard) == digests


def test_a_crash_before_the_store_goes_forward_again_keeps_the_tables_of_both_checkpoints(
    lab: ShardLab,
) -> None:
    shard = lab.open()
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.checkpoint("with-late")
    shard.create_table(LATER)
    shard.restore("base")
    lab.steps.dies_at, lab.steps.aim, lab.steps.count = 1, "before store.restore", 0
    with pytest.raises(Death):
        shard.restore("with-late")
    lab.kill()
    shard = lab.open()
    assert [table.name for table in shard.tables] == ["sgd", "adagrad", "late", "later"]
    session = Session(shard)
    for name in ("late", "later"):
        shard.push(session.next(), name, KEYS, ones())
    digests = _digests(shard)
    lab.kill()
    assert _digests(lab.open()) == digests


def test_records_are_replayed_with_the_numbers_that_the_tables_had_behind_a_restore(
    lab: ShardLab,
) -> None:
    """The checkpoint that was gone back to describes a table with numbers of before."""
    shard = lab.open()
    shard.checkpoint("base")
    shard.close()
    old = lab.config.tables[1]
    new = dataclasses.replace(old, optimizer=dataclasses.replace(old.optimizer, eps=0.25))
    plain = lab.config
    lab.config = dataclasses.replace(plain, tables=[plain.tables[0], new])
    with pytest.raises(MismatchError, match=r"'adagrad': its optimizer is .*eps=1\.0"):
        lab.open()
    lab.kill()
    with lab.embedded() as server:  # by itself it may
        server.checkpoint()
    lab.kill()
    shard = lab.open()
    shard.restore("base")
    session = Session(shard)
    shard.push(session.next(), "adagrad", KEYS, ones())
    digest = shard.digest("adagrad")
    lab.kill()
    lab.config = dataclasses.replace(plain, tables=[plain.tables[0]])  # the other as it is stored
    shard = lab.open()
    assert shard.tables[1] == new
    assert shard.stats()["service"]["records_replayed"] == 2
    assert shard.digest("adagrad") == digest
    lab.kill()
    with pytest.raises(hps.ConfigError, match=r"eps=.* was 0\.25"):
        lab.embedded(tables=plain.tables)


def test_a_push_without_a_rate_has_the_tables_own_before_and_after_a_death_behind_a_restore(
    lab: ShardLab,
) -> None:
    """The checkpoint that was gone back to was made with another one."""
    shard = lab.open()
    shard.checkpoint("base")
    shard.close()
    halved = dataclasses.replace(lab.config.tables[0], optimizer=hps.SGD(lr=0.5))
    lab.config = dataclasses.replace(lab.config, tables=[halved, lab.config.tables[1]])
    shard = lab.open()
    shard.restore("base")
    for row in (-0.5, -1.0):
        shard.push(Session(shard).next(), "sgd", KEYS, ones())
        assert (shard.pull("sgd", KEYS) == row).all()
        lab.kill()
        shard = lab.open()
        assert shard.tables[0] == halved


def test_the_store_opened_as_it_lies_there_knows_the_tables_that_a_restore_kept(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 1)
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.restore("base")
    session = Session(shard)
    shard.push(session.next(), "late", KEYS, ones())
    low, high = shard.digest("late")
    digest = f"{high:016x}{low:016x}"
    lab.kill()
    with pytest.raises(hps.ConfigError, match="not named here"):
        lab.embedded()
    lab.kill()
    with hps.open(lab.config.path, read_only=False, _tiers=lab.tiers()) as server:
        assert server.tables["late"] == LATE
        assert server.digest("late") == digest
    lab.kill()
    shard = lab.open()
    assert shard.digest("late") == (low, high) and shard.tables[2] == LATE


def test_a_plain_server_that_goes_back_keeps_the_tables_it_does_not_name(lab: ShardLab) -> None:
    shard = lab.open()
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.create_table(LATER)
    tables = shard.tables
    shard.close()
    for checkpoints in (False, True):
        server = lab.embedded(tables=[*lab.config.tables, LATE])
        server.restore("base")
        assert server.num_rows("late") == 0
        if checkpoints:
            server.checkpoint()
        server.close()
        lab.kill()
        shard = lab.open()
        assert shard.tables == tables
        lab.kill()


def test_a_config_may_name_a_table_that_the_restored_checkpoint_lacks(tmp_path: Path) -> None:
    first, second = (dataclasses.replace(table, features=["x"]) for table in (LATE, LATER))
    second = dataclasses.replace(second, features=["y"])
    for engine in _engines():
        path = tmp_path / engine
        budgets: dict[str, Any] = {
            "dram": hps.DramCacheConfig(bytes=100_000),
            "ssd": hps.SsdStoreConfig(engine=engine),
        }
        with hps.ParameterServer(hps.Config(path=path, tables=[first], **budgets)) as server:
            server.push("late", KEYS, ones())
            server.checkpoint("base")
        config = hps.Config(path=path, tables=[first, second], **budgets)
        with hps.ParameterServer(config) as server:
            server.push("later", KEYS, ones())
            server.checkpoint("both")
            server.restore("base")
            assert server.num_rows("late") == 3 and server.num_rows("later") == 0
            server.push("later", keys_of(5), ones(1))
            server.restore("both")
            assert server.num_rows("later") == 3
            server.restore("base")
        with hps.ParameterServer(config) as server:
            assert server.num_rows("later") == 0


def _engines() -> list[str]:
    try:
        import rocksdict  # noqa: F401
    except ImportError:
        return ["segments"]
    return ["segments", "rocksdb"]


def test_tables_and_restores_agree_over_rocksdb_too(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    config = hps.Config(
        path=tmp_path / "store",
        tables=[LATER],
        dram=hps.DramCacheConfig(bytes="128KiB"),
        ssd=hps.SsdStoreConfig(engine="rocksdb"),
        threads=1,
    )
    tiers = Tiers(open_log=TwinLogDisk().open)
    shard = Shard(config, _tiers=tiers)
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.push(Session(shard).next(), "late", KEYS, ones())
    shard.restore("base")
    assert shard.num_rows("late") == 0
    shard.push(Session(shard).next(), "late", KEYS, ones())
    digests = _digests(shard)
    shard.close(checkpoint=False)
    shard = Shard(config, _tiers=tiers)
    assert _digests(shard) == digests and shard.tables == [LATER, LATE]
    shard.close()


def _forget_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """HISTORY as an older hps wrote it."""
    save = Epoch.save
    monkeypatch.setattr(
        Epoch, "save", lambda epoch, *where: save(dataclasses.replace(epoch, tables=()), *where)
    )


def test_a_table_that_an_older_hps_forgot_in_a_restore_is_found_in_a_kept_checkpoint(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget_tables(monkeypatch)
    shard = lab.open()
    shard.checkpoint("base")
    shard.create_table(LATE)
    shard.restore("base")
    shard.push(Session(shard).next(), "late", KEYS, ones())
    digest = shard.digest("late")
    lab.kill()
    assert lab.open().digest("late") == digest
    lab.kill()


Digests = dict[str, tuple[int, int]]


class _Story:
    """Tables made, restored and pushed to; a shard that may die at a step; what it has told.

    Args:
        folder: for the store.
        seed: of the log's moods.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        folder.mkdir()
        self.lab = _roomy(ShardLab(folder, seed, log_bytes=10**9))
        self.shard = shard = self.lab.open()
        self.made = {"sgd", "adagrad"}
        self.states: list[Digests] = []  # one for each time that something was told
        train(Session(shard), 1)
        shard.checkpoint("base")
        self.told()

    def die_at(self, step: int, monkeypatch: pytest.MonkeyPatch) -> str:
        """Runs it up to a death at a step; says what that was, nothing if it came to its end."""
        patch_history(monkeypatch, self.lab)
        self.lab.steps.dies_at = self.lab.steps.count + step
        try:
            self.run()
        except Death:
            return self.lab.steps.last
        finally:
            self.lab.kill()
        return ""

    def open_up_to(self, step: int) -> str:
        """An opening that dies as well; says at what."""
        try:
            self.lab.open(step)
        except Death:
            return self.lab.steps.last
        finally:
            self.lab.kill()
        return ""

    def check(self, states: list[Digests]) -> None:
        """What is there is the state that was told of last, or the one that was under way."""
        shard = self.lab.open()
        assert self.made <= {table.name for table in shard.tables}
        last = len(self.states) - 1
        assert self.states == states[: last + 1]
        # A table that was just made, or is not made yet, is empty either way.
        empty = dict.fromkeys(states[-1], (0, 0))
        found = {**empty, **_digests(shard)}
        assert found in [{**empty, **state} for state in states[last : last + 2]]
        session = Session(shard)
        for table in shard.tables:
            shard.push(session.next(), table.name, KEYS, ones())
        digests = _digests(shard)
        self.lab.kill()
        assert _digests(self.lab.open()) == digests
        self.lab.kill()

    def told(self) -> None:
        """The shard has said that all of this is so."""
        self.made = {table.name for table in self.shard.tables}
        self.states.append(_digests(self.shard))

    def run(self) -> None:
        """Each step of it is told once it has returned."""
        shard = self.shard
        steps: list[Callable[[], Any]] = [
            lambda: shard.create_table(LATE),
            lambda: shard.push(Session(shard).next(), "late", KEYS, ones()),
            lambda: shard.checkpoint("mid"),
            lambda: shard.restore("base", "second"),
            lambda: shard.push(Session(shard).next(), "late", KEYS, ones()),
            lambda: shard.create_table(LATER),
            lambda: shard.push(Session(shard).next(), "later", KEYS, ones()),
            lambda: shard.restore("mid", "third"),
            lambda: shard.push(Session(shard).next(), "later", KEYS, ones()),
        ]
        for step in steps:
            step()
            self.told()


def test_a_death_at_any_step_leaves_the_tables_that_were_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met: Counter[str] = Counter()
    with scratch_folder() as folder:
        whole = _Story(folder / "whole")
        whole.run()
        whole.lab.kill()
        for step in range(1, 400, 2):
            print(f"step {step}")
            story = _Story(folder / str(step), step)
            with monkeypatch.context() as patch:
                died = story.die_at(step, patch)
                met[died or "lived"] += 1
                met[f"opening, {story.open_up_to(1 + step // 2 % 3)}"] += 1
            story.check(whole.states)
            if not died:
                break
    print(met)
    assert met["lived"] == 1
    for name in ("HISTORY", "store.restore", "store.checkpoint", "log.append"):
        assert any(name in where for where in met)
    assert met["opening, after store.restore"]


def test_a_table_that_a_crash_left_half_made_is_made_by_the_retry(lab: ShardLab) -> None:
    """The store's manifest has it and no checkpoint does."""
    shard = lab.open()
    lab.steps.dies_at, lab.steps.aim, lab.steps.count = 3, "before store.checkpoint", 1
    with pytest.raises(Death):
        shard.create_table(LATE)
    lab.kill()
    shard = lab.open()
    assert "late" not in [table.name for table in shard.tables]
    with pytest.raises(MismatchError, match=r"'late'.*dim is 4, requested is 8.*another name"):
        shard.create_table(dataclasses.replace(LATE, dim=8))
    assert [table.name for table in shard.tables] == ["sgd", "adagrad"]
    assert shard.create_table(LATE)
    session = Session(shard)
    assert session.name == CLIENT
    shard.push(session.next(), "late", KEYS, ones())
