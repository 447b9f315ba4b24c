"""What a shard does with each mutation, its repeats, its refusals; and that rows come out the same
as without a service, whenever the shard dies.

Above it: pytest. Below it: shard_lab.py.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

import hps
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Statistics
from hps.errors import DeadlineError, FencedError, GapError, NonFiniteError
from hps.parameter_server.server import ParameterServer
from hps.service.shard import mutations
from hps.service.shard.answers import PushStep, RowState
from hps.service.shard.shard import Ack, Identity, Shard, Terms
from hps.table.rows_where import RowsWhere
from tests.lab import keys_of, random_floats, random_keys
from tests.service.shard.shard_lab import Death, ShardLab, hps_config
from tests.service.shard.shard_session import CLIENT, KEYS, Session, ones, trained

# The shard's own thread dies with it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def test_a_push_that_comes_twice_is_applied_once(lab: ShardLab) -> None:
    shard, session = trained(lab)
    first = shard.push(session.next(), "sgd", KEYS, ones())
    again = shard.push(session.again(), "sgd", KEYS, 5 * ones())
    assert (first.is_repeat, again.is_repeat) == (False, True)
    assert again.marks.applied == again.marks.logged == 1
    assert shard.pull("sgd", KEYS).tolist() == (-ones()).tolist()


def test_a_push_ahead_of_its_predecessor_waits_for_it(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "_PREDECESSOR_SECONDS", 60.0)
    shard, session = trained(lab)
    first, second = session.next(), session.next()
    done: list[str] = []

    def push(identity: Identity, name: str) -> None:
        shard.push(identity, "sgd", KEYS, ones())
        done.append(name)

    late = threading.Thread(target=push, args=(second, "second"))
    late.start()
    while not shard.parts.mutations._moves._waiting:
        sleep(0.001)
    push(first, "first")
    late.join()
    assert done[-1] == "second" or shard.stats()["service"]["records"] == 3
    assert shard.open_session(CLIENT, session.incarnation).marks.applied == 2


def test_a_push_waits_for_a_predecessor_that_waits_for_its_turn(lab: ShardLab) -> None:
    shard, session = trained(lab)
    pushes = [session.next() for _ in range(3)]
    marks: list[int] = []

    def push(identity: Identity) -> None:
        marks.append(shard.push(identity, "sgd", KEYS, ones()).marks.applied)

    threads = [threading.Thread(target=push, args=(identity,)) for identity in pushes]
    with shard.parts.store.gate.change(monotonic() + 60):  # a checkpoint, say
        for number, thread in enumerate(threads):
            thread.start()
            while pushes[number] not in shard.parts.mutations._arrived:
                sleep(0.001)
        sleep(0.5)  # longer than a push waits for one that has not come
    for thread in threads:
        thread.join()
    assert len(marks) == 3 and shard.open_session(CLIENT, session.incarnation).marks.applied == 3


def test_a_push_behind_a_refused_one_is_told_of_the_gap_at_once(lab: ShardLab) -> None:
    shard, session = trained(lab)
    first, second = session.next(), session.next()
    with shard.parts.store.gate.change(monotonic() + 60):
        told: list[int] = []

        def be_refused() -> None:
            with pytest.raises(NonFiniteError):
                shard.push(first, "sgd", KEYS, np.nan * ones())

        refused = threading.Thread(target=be_refused)
        refused.start()
        while not shard.parts.store.gate.num_waiting:
            sleep(0.001)

        def follow() -> None:
            with pytest.raises(GapError) as gap:
                shard.push(second, "sgd", KEYS, ones(), terms=Terms(Ack.LOGGED, 1000))
            told.append(gap.value.mark)

        behind = threading.Thread(target=follow)
        behind.start()
        while not shard.parts.mutations._moves._waiting:
            sleep(0.001)
    refused.join()
    behind.join(timeout=60)
    assert told == [0]


def test_a_gap_says_the_mark_and_changes_nothing(lab: ShardLab) -> None:
    shard, session = trained(lab)
    shard.push(session.next(), "sgd", KEYS, ones())
    session.sequence += 1
    started = monotonic()
    with pytest.raises(GapError, match="2 is missing") as gap:
        shard.push(session.next(), "sgd", KEYS, ones())
    assert gap.value.mark == 1
    assert 0.15 < monotonic() - started < 20
    assert shard.pull("sgd", KEYS).tolist() == (-ones()).tolist()


def test_a_crowd_that_comes_too_early_does_not_wait(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "_PREDECESSOR_SECONDS", 60.0)
    shard = lab.open()
    shard.parts.mutations._moves._most = 0
    session = Session(shard)
    session.sequence = 5
    started = monotonic()
    with pytest.raises(GapError):
        shard.push(session.next(), "sgd", KEYS, ones(), terms=Terms(Ack.LOGGED, 1000))
    assert monotonic() - started < 30


def test_a_new_incarnation_fences_the_old_one_and_goes_on_from_its_mark(lab: ShardLab) -> None:
    shard = lab.open()
    old = Session(shard)
    shard.push(old.next(), "sgd", KEYS, ones())
    new = Session(shard)
    assert new.incarnation > old.incarnation and new.sequence == 1
    with pytest.raises(FencedError, match="is the newest"):
        shard.push(old.next(), "sgd", KEYS, ones())
    with pytest.raises(FencedError):
        shard.open_session(CLIENT, old.incarnation)
    shard.push(new.next(), "sgd", KEYS, ones())
    assert shard.pull("sgd", KEYS).tolist() == (-2 * ones()).tolist()
    lab.kill()
    shard = lab.open()
    with pytest.raises(FencedError):
        shard.push(old.next(), "sgd", KEYS, ones())
    assert shard.open_session(CLIENT, new.incarnation).marks.applied == 2


def test_a_session_that_was_dropped_for_newer_ones_is_fenced(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, max_sessions=2)
    shard = lab.open()
    sessions = [Session(shard, name) for name in ("a", "b")]
    shard.push(sessions[0].next(), "sgd", KEYS, ones())  # a is used after b
    third = Session(shard, "c")
    with pytest.raises(FencedError, match="no such session"):
        shard.push(sessions[1].next(), "sgd", KEYS, ones())
    shard.push(sessions[0].next(), "sgd", KEYS, ones())
    again = shard.open_session("b")
    assert not again.is_known and again.incarnation > third.incarnation
    lab.kill()


def test_a_session_that_was_dropped_and_comes_again_is_the_same_after_a_kill(
    tmp_path: Path,
) -> None:
    lab = ShardLab(tmp_path, max_sessions=2)
    shard = lab.open()
    dropped = Session(shard, "a")
    for _ in range(3):
        shard.push(dropped.next(), "sgd", KEYS, ones())
    Session(shard, "b"), Session(shard, "c")
    again = Session(shard, "a")
    shard.push(again.next(), "sgd", KEYS, ones(), terms=Terms(Ack.DURABLE, 5))
    digest = shard.digest("sgd")
    lab.kill()
    shard = lab.open()
    assert shard.digest("sgd") == digest
    assert shard.push(again.again(), "sgd", KEYS, ones()).is_repeat
    lab.kill()


@pytest.mark.parametrize(
    ("error", "name", "keys", "change"),
    [
        (hps.NonFiniteError, "sgd", 3, {"grads": np.full((3, 4), np.nan, np.float32)}),
        (hps.NonFiniteError, "sgd", 2, {"grads": np.full((2, 4), 3e38, np.float32)}),
        (hps.ConfigError, "none", 3, {}),
        (hps.ConfigError, "sgd", 3, {"grads": np.ones((3, 5), np.float32)}),
        (hps.ConfigError, "sgd", 3, {"grads": np.ones((3, 4))}),
        (hps.ConfigError, "sgd", 3, {"step": PushStep(float("nan"))}),
        (hps.CapacityError, "sgd", 500, {}),
    ],
)
def test_a_refused_push_changes_nothing_and_its_sequence_can_be_skipped(
    lab: ShardLab, error: type[Exception], name: str, keys: int, change: dict[str, Any]
) -> None:
    shard, session = trained(lab)
    records = shard.stats()["service"]["records"]
    array = np.arange(keys, dtype=np.uint64) if keys != 2 else keys_of(5, 5)
    given = {"grads": ones(keys), **change}
    identity = session.next()
    for _ in range(2):  # the mark has not moved, so that it is refused again
        with pytest.raises(error):
            shard.push(identity, name, array, **given)
    assert shard.stats()["service"]["records"] == records
    assert shard.num_rows("sgd") == 0 and shard.parts.store.server.pins == 0
    assert not shard.skip(identity).is_repeat
    assert shard.skip(identity).is_repeat
    assert shard.push(session.next(), "sgd", KEYS, ones()).marks.applied == 2


def test_an_assign_that_is_not_finite_is_refused(lab: ShardLab) -> None:
    shard, session = trained(lab)
    identity = session.next()
    with pytest.raises(hps.NonFiniteError):
        shard.assign(identity, "sgd", KEYS, np.inf * ones())
    shard.assign(identity, "sgd", KEYS, ones())
    assert shard.pull("sgd", KEYS).tolist() == ones().tolist()


def test_a_repeated_erase_gives_the_answer_that_was_lost_also_after_a_kill(lab: ShardLab) -> None:
    shard, session = trained(lab)
    shard.push(session.next(), "sgd", KEYS[:2], ones(2))
    first = shard.erase(session.next(), "sgd", KEYS)
    assert first.answer.tolist() == [True, True, False]
    again = shard.erase(session.again(), "sgd", KEYS)
    assert again.is_repeat and again.answer.tolist() == [True, True, False]
    lab.kill()
    shard = lab.open()
    again = shard.erase(session.again(), "sgd", KEYS)
    assert again.is_repeat and again.answer.tolist() == [True, True, False]
    shard.checkpoint()
    lab.kill()
    shard = lab.open()
    again = shard.erase(session.again(), "sgd", KEYS)
    assert again.is_repeat and again.answer is None  # known no more, and it says so


def test_a_repeated_erasure_by_counts_gives_the_number_that_was_lost_also_after_a_kill(
    tmp_path: Path,
) -> None:
    lab = ShardLab(tmp_path)
    lab.config = hps_config(lab.config, tables=_tables(), dram=hps.DramCacheConfig(bytes=30_000))
    shard = lab.open()
    session = Session(shard)
    shard.push(session.next(), "adam", np.repeat(KEYS, [1, 5, 9]), np.ones((15, 3), np.float32))
    where = RowsWhere(show_below=6)
    assert shard.erase_where(session.next(), "adam", where).answer.tolist() == [2]
    shard.push(session.next(), "adam", KEYS, ones()[:, :3])  # which would go, too
    session.sequence -= 1
    for is_killed in (False, True):
        if is_killed:
            lab.kill()
            shard = lab.open()
        again = shard.erase_where(session.again(), "adam", where)
        assert again.is_repeat and again.answer.tolist() == [2] and shard.num_rows("adam") == 3
    shard.checkpoint()
    lab.kill()
    shard = lab.open()
    again = shard.erase_where(session.again(), "adam", where)
    assert again.is_repeat and again.answer is None and shard.num_rows("adam") == 3
    session.sequence += 1
    for table, wrong, words in (
        ("ftrl", where, "has no statistics"),
        ("adam", RowsWhere(score_below=1.0), "has no expiry"),
    ):
        with pytest.raises(hps.ConfigError, match=words):
            shard.erase_where(session.next(), table, wrong)
        session.sequence -= 1  # it was refused, and nothing was logged
    assert shard.erase_where(session.next(), "adam", where).answer.tolist() == [2]
    lab.kill()


def test_a_repeated_create_gives_the_rows_as_they_are_now(lab: ShardLab) -> None:
    shard, session = trained(lab)
    rows = shard.create(session.next(), "sgd", KEYS).answer.copy()
    assert rows.tolist() == np.zeros((3, 4)).tolist() and shard.num_rows("sgd") == 3
    again = shard.create(session.again(), "sgd", KEYS)
    assert again.is_repeat and again.answer.tolist() == rows.tolist()


def test_empty_mutations_move_the_mark(lab: ShardLab) -> None:
    shard, session = trained(lab)
    none = KEYS[:0]
    shard.push(session.next(), "sgd", none, ones(0))
    shard.assign(session.next(), "sgd", none, ones(0))
    assert shard.erase(session.next(), "sgd", none).answer.shape == (0,)
    assert shard.create(session.next(), "sgd", none).answer.shape == (0, 4)
    lab.kill()
    assert lab.open().open_session(CLIENT, session.incarnation).marks.applied == 4


def test_nobody_waits_beyond_a_deadline_while_a_checkpoint_is_taken(lab: ShardLab) -> None:
    shard, session = trained(lab)
    identity = session.next()
    started = monotonic()
    with shard.parts.store.gate.change(monotonic() + 1):
        with pytest.raises(DeadlineError, match="nothing was changed"):
            shard.push(identity, "sgd", KEYS, ones(), terms=Terms(Ack.MEMORY, 0.02))
        assert shard.pull("sgd", KEYS).tolist() == np.zeros((3, 4)).tolist()  # reads go on
    assert monotonic() - started < 20
    assert not shard.push(identity, "sgd", KEYS, ones()).is_repeat


# The same rows as without a service.

STREAM = 70


def _tables() -> list[hps.TableConfig]:
    return [
        hps.TableConfig(
            name="adam", dim=3, optimizer=hps.Adam(lr=0.01), features=["a"], statistics=True
        ),
        hps.TableConfig(name="ftrl", dim=3, optimizer=hps.FTRL(lr=0.1, l1=0.01), features=["f"]),
    ]


def _mutation(seed: int, number: int) -> tuple[str, str, dict[str, Any]]:
    """(verb, table, arguments) of the number-th mutation of the stream."""
    chance = np.random.default_rng((seed, number))
    table = ["adam", "ftrl"][number % 2]
    state_floats = {"adam": 8, "ftrl": 6}[table]
    keys = random_keys(chance, 40, 300)
    verbs = ["push", "push", "push", "assign", "erase", "create", "period", "erase_where"]
    verb = verbs[chance.integers(8)]
    if verb == "period":
        return verb, table, {"to": number}
    if verb == "erase_where":
        where = RowsWhere(show_below=float(chance.integers(2, 12)), unseen_for=1)
        return verb, "adam", {"where": where}
    if verb == "push":
        lr = float(chance.choice([0.01, 0.05, 0.3]))
        shows = chance.integers(1, 9, 40, np.uint32)
        clicks = chance.integers(0, shows + 1, dtype=np.uint32)
        several = Occurrences(shows, clicks)
        labelled = Occurrences(None, np.minimum(clicks, 1))
        step = PushStep(lr, [several, labelled, None][chance.integers(3)])
        return verb, table, {"keys": keys, "grads": random_floats(chance, 40, 3), "step": step}
    if verb == "assign":
        state = np.abs(random_floats(chance, 40, state_floats)) if number % 4 < 2 else None
        if state is not None and table == "adam":
            state[:, :2] = np.minimum(state[:, :2], 1.0)  # 1 - beta^t
        counted = None
        if table == "adam" and chance.integers(2):
            show = chance.integers(0, 2**25, 40).astype(np.float32)
            counted = Statistics(show, show // 2, chance.integers(0, 1, 40))
        beside = RowState(state, counted)
        return verb, table, {"keys": keys, "rows": random_floats(chance, 40, 3), "beside": beside}
    return verb, table, {"keys": keys}


def _feed(server: ParameterServer, seed: int, number: int) -> None:
    verb, table, given = _mutation(seed, number)
    if verb == "create":
        server.pull(table, given["keys"], create=True)
        return
    if verb == "period":
        server.advance_period(given["to"])
    elif verb == "push":
        step, before = given.pop("step"), server.learning_rates[table]
        server.learning_rates[table] = step.lr
        server.parts.rows.push(table, **given, occurrences=step.occurrences)
        server.learning_rates[table] = before
    elif verb == "assign":
        beside = given.pop("beside")
        counted = None if beside.statistics is None else beside.statistics._asdict()
        server.assign(table, **given, state=beside.state, statistics=counted)
    elif verb == "erase_where":
        server.erase_where(table, **given["where"].described())
    else:
        getattr(server, verb)(table, **given)


def _apply(shard: Shard, identity: Identity, seed: int, number: int) -> None:
    verb, table, given = _mutation(seed, number)
    if verb == "period":
        shard.advance_period(identity, given["to"])
    else:
        getattr(shard, verb)(identity, table, **given)


def _digests(server: Any) -> list[str]:
    found = [server.digest(name) for name in ("adam", "ftrl")]
    return [one if isinstance(one, str) else f"{one[1]:016x}{one[0]:016x}" for one in found]


def test_rows_stay_in_their_slots_while_a_push_is_logged(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lab.open()
    session = Session(shard)
    keys, others = np.arange(40, dtype=np.uint64), np.arange(1000, 1120, dtype=np.uint64)
    shard.push(session.next(), "sgd", keys, ones(40))
    log, pulls = lab._opened[-1], []
    inner = log.append

    def append(parts: Any) -> int:
        pulls.append(pool.submit(shard.pull, "sgd", others))  # wants nearly all slots
        with pytest.raises(TimeoutError):
            pulls[-1].result(0.1)
        return int(inner(parts))

    monkeypatch.setattr(log, "append", append)
    with ThreadPoolExecutor(1) as pool:
        shard.push(session.next(), "sgd", keys, ones(40))
        assert (pulls[0].result(30) == 0).all()
    assert shard.stats()["dram_cache"]["evictions"] > 0
    assert (shard.pull("sgd", keys) == -2).all() and shard.parts.store.server.pins == 0


@pytest.mark.parametrize("gpu", [False, True], ids=["dram", "gpu"])
def test_a_stream_of_mutations_gives_the_rows_of_a_plain_server_whenever_the_shard_dies(
    gpu: bool, tmp_path: Path
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    (tmp_path / "plain").mkdir()
    lab = ShardLab(tmp_path, seed, gpu=gpu, log_bytes=15_000)
    lab.config = hps_config(lab.config, tables=_tables(), dram=hps.DramCacheConfig(bytes=30_000))
    plain = hps_config(lab.config, path=tmp_path / "plain" / "store", gpu=None)
    with ParameterServer(plain) as server:
        expected = [_digests(server)]
        for number in range(1, STREAM + 1):
            _feed(server, seed, number)
            expected.append(_digests(server))
        period = server.period
    chance, mark, openings, replayed = random.Random(seed), 0, 0, 0
    checkpoints = kept = 0
    while mark < STREAM:
        try:
            shard = lab.open(chance.randint(1, 60))
            checkpoints += shard.parts.store.history.kept_number > kept
            kept = shard.parts.store.history.kept_number
            session = Session(shard)
            mark, openings = session.sequence, openings + 1
            replayed += shard.stats()["service"]["records_replayed"]
            assert _digests(shard) == expected[mark]
            while mark < STREAM:
                _apply(shard, session.next(), seed, mark + 1)
                mark += 1
        except Death:
            pass
        lab.kill()
    shard = lab.open()
    assert _digests(shard) == expected[STREAM]
    assert openings > 3 and replayed > 10 and checkpoints > 0
    assert shard.period == period > 0
    shard.close()


def test_pushes_of_many_keys_give_the_rows_of_a_plain_server_whenever_the_shard_dies(
    tmp_path: Path,
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    table = hps.TableConfig(name="ads", dim=8, optimizer=hps.Adagrad(lr=0.05))
    (tmp_path / "plain").mkdir()
    lab = ShardLab(tmp_path, seed, log_bytes=2_000_000)
    dram = hps.DramCacheConfig(bytes="4MiB")
    lab.config = hps_config(lab.config, tables=[table], dram=dram)
    pushes = [_large_push(seed, number) for number in range(30)]
    with ParameterServer(hps_config(lab.config, path=tmp_path / "plain" / "store")) as server:
        expected = [server.digest("ads")]
        for keys, grads in pushes:
            server.push("ads", keys, grads)
            expected.append(server.digest("ads"))
    chance, mark, openings, replayed, singly = random.Random(seed), 0, 0, 0, 0
    while mark < len(pushes):
        try:
            shard = lab.open(chance.randint(10, 40))
            session = Session(shard)
            mark, openings = session.sequence, openings + 1
            replayed += shard.stats()["service"]["records_replayed"]
            assert _digest(shard) == expected[mark]
            shard.pull("ads", np.arange(8000, dtype=np.uint64))  # a missing row ends the short way
            for keys, grads in pushes[mark:]:
                shard.push(session.next(), "ads", keys, grads)
                stack = shard.parts.store.server.parts.tables.stacks["ads"]
                singly += stack.plan.num_unique == 0  # keys got no numbers
                mark += 1
        except Death:
            pass
        lab.kill()
    shard = lab.open()
    assert _digest(shard) == expected[-1]
    assert openings > 2 and replayed > 5 and singly > 5
    shard.close()


def _large_push(seed: int, number: int) -> tuple[Any, Any]:
    """Enough keys to be looked up one by one; in each tenth push one of them stands twice."""
    generator = np.random.default_rng((seed, number))
    keys = generator.permutation(8000)[:6000].astype(np.uint64)
    if number % 10 == 9:
        keys[17] = keys[5000]
    grads = random_floats(generator, 6000, 8)
    grads[::7] = -0.0
    return keys, grads


def _digest(shard: Shard) -> str:
    low, high = shard.digest("ads")
    return f"{high:016x}{low:016x}"


def test_a_shard_under_a_gpu_cache_moves_rows_through_all_tiers(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, gpu=True)
    shard, session = trained(lab)
    keys = np.arange(1000, dtype=np.uint64)
    for _ in range(2):
        for first in range(0, 1000, 40):
            shard.push(session.next(), "sgd", keys[first : first + 40], ones(40))
    stats = shard.stats()
    assert stats["gpu_cache"]["evictions"] > 0 and stats["dram_cache"]["evictions"] > 0
    assert (shard.pull("sgd", keys) == -2).all()
    lab.kill()
    assert (lab.open().pull("sgd", keys) == -2).all()
    lab.kill()
