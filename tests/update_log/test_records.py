"""Records say what was encoded, whole, or that they cannot be read; marks and trails."""

import random
import struct

import numpy as np
import pytest

import hps
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Statistics
from hps.errors import CorruptionError, FencedError
from hps.table.rows_where import RowsWhere
from hps.update_log import Identity, Kind, Mutation, Sessions, decode, encode
from hps.update_log.sessions import Trail


def _payload(mutation: Mutation) -> bytes:
    return b"".join(bytes(memoryview(part).cast("B")) for part in encode(mutation))


def _mutations(seed: int) -> list[Mutation]:
    chance = np.random.default_rng(seed)
    edge = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    mutations = [
        Mutation(Kind.SESSION, Identity("a", 3, 1)),
        Mutation(Kind.NOTHING, Identity("ü" * 32, 2**63 - 1, 2**63 - 1)),
        Mutation(Kind.ERASE, Identity("a-b", 1, 9), "ads", 0.5, edge),
        Mutation(Kind.CREATE, Identity("a-b", 1, 10), "t" * 64, 0.1, edge),
        Mutation(Kind.PUSH, Identity("c", 1, 1), "ads", 0.1, edge[:0], np.empty((0, 4), "f4")),
    ]
    for length in (1, 4, 33):
        keys = chance.integers(0, 2**64, length, np.uint64)
        floats = chance.standard_normal((length, 5)).astype(np.float32)
        state = chance.standard_normal((length, 3)).astype(np.float32)
        identity = Identity(f"client-{length}", 7, length)
        mutations += [
            Mutation(Kind.PUSH, identity, "ads", 1 / 3, keys, floats),
            Mutation(Kind.ASSIGN, identity, "ads", 0.1, keys, floats, state),
            Mutation(Kind.ASSIGN, identity, "sgd", 0.1, keys, floats, state[:, :0]),
            Mutation(Kind.ASSIGN, identity, "ads", 0.1, keys, floats, None),
        ]
        shows = chance.integers(1, 2**32, length, np.uint32)
        counted = Statistics(*chance.random((2, length), np.float32), chance.integers(0, 9, length))
        mutations += [
            Mutation(Kind.PUSH, identity, "ads", 0.1, keys, floats, occurrences=each)
            for each in (Occurrences(shows), Occurrences(None, shows), Occurrences(shows, shows))
        ]
        mutations += [
            Mutation(Kind.ASSIGN, identity, "ads", 0.1, keys, floats, of, statistics=counted)
            for of in (state, None)
        ]
        mutations.append(Mutation(Kind.PERIOD, identity, period=length))
        mutations += [
            Mutation(Kind.ERASE_WHERE, identity, "ads", where=where)
            for where in (
                RowsWhere(show_below=length / 3),
                RowsWhere(unseen_for=2**31 - 1, click_below=1e-300, score_below=1e30),
            )
        ]
    return mutations


@pytest.mark.parametrize("mutation", _mutations(1), ids=lambda one: one.kind.name)
def test_a_record_says_what_was_encoded(mutation: Mutation) -> None:
    found = decode(1, _payload(mutation))
    assert (found.kind, found.identity, found.table) == (
        mutation.kind,
        mutation.identity,
        mutation.table,
    )
    assert found.lr == mutation.lr
    assert found.keys.tolist() == mutation.keys.tolist()
    assert found.floats.shape == mutation.floats.shape
    assert found.floats.tobytes() == mutation.floats.tobytes()
    assert (found.state is None) == (mutation.state is None)
    if found.state is not None and mutation.state is not None:
        assert found.state.shape == mutation.state.shape
        assert found.state.tobytes() == mutation.state.tobytes()
    assert found.period == mutation.period
    for one, other in (
        (found.occurrences, mutation.occurrences),
        (found.statistics, mutation.statistics),
    ):
        assert (one is None) == (other is None)
        for part, expected in zip(one or (), other or (), strict=True):
            assert (part is None) == (expected is None)
            if part is not None and expected is not None:
                assert part.dtype == expected.dtype and part.tolist() == expected.tolist()


def test_a_record_of_before_there_were_counts_is_the_same_bytes() -> None:
    keys, floats = np.array([7, 8], np.uint64), np.ones((2, 1), np.float32)
    mutation = Mutation(Kind.PUSH, Identity("a", 1, 2), "ads", 0.5, keys, floats)
    old = struct.pack(
        "<BBBBIQQdIIII4s4x2Q2f", 1, 2, 1, 3, 2, 1, 2, 0.5, 1, 0, 0, 0, b"aads", 7, 8, 1, 1
    )
    assert _payload(mutation) == old
    found = decode(1, old)
    assert found.occurrences is None and found.statistics is None and found.period == 0


def test_a_record_that_is_cut_short_or_longer_is_refused() -> None:
    for mutation in _mutations(2):
        payload = _payload(mutation)
        for length in {0, 1, 47, 48, len(payload) - 8, len(payload) - 1} - {len(payload)}:
            with pytest.raises(CorruptionError, match="record 9"):
                decode(9, payload[: max(0, length)])
        with pytest.raises(CorruptionError, match="record 9"):
            decode(9, payload + b"\0")


def _erasure(*numbers: float) -> bytes:
    """Of a predicate with these numbers."""
    mutation = Mutation(Kind.ERASE_WHERE, Identity("a", 1, 1), where=RowsWhere(unseen_for=3))
    whole = _payload(mutation)
    return whole[: len(whole) - 32] + np.array(numbers, np.float64).tobytes()


def test_an_erasure_by_counts_without_a_possible_predicate_is_refused() -> None:
    none = float("nan")
    assert decode(1, _erasure(none, none, 3, none)).where == RowsWhere(unseen_for=3)
    for numbers in (
        (none, none, float("inf"), none),
        (none, none, -float("inf"), none),
        (none, none, 1.5, none),
        (none, none, 2.0**31, none),
        (float("inf"), none, none, none),
        (none, none, none, none),
    ):
        with pytest.raises(CorruptionError, match="record 7: erase_where"):
            decode(7, _erasure(*numbers))
    bare = Mutation(Kind.ERASE_WHERE, Identity("a", 1, 1), "ads")
    with pytest.raises(CorruptionError, match="record 7: version 1 with flags 0"):
        decode(7, _payload(bare))


def test_a_record_of_another_version_or_kind_is_refused() -> None:
    payload = _payload(Mutation(Kind.NOTHING, Identity("a", 1, 1)))
    for place, value in ((0, 2), (1, 99), (40, 2), (40, 16), (44, 1)):
        changed = bytearray(payload)
        changed[place : place + 1] = struct.pack("<B", value)
        with pytest.raises(CorruptionError, match="another version"):
            decode(1, bytes(changed))


@pytest.mark.parametrize(
    ("client", "incarnation", "sequence"),
    [("", 1, 1), ("x" * 65, 1, 1), ("a\n", 1, 1), ("a", -1, 1), ("a", 1, 0), ("a", 1, 2**63)],
)
def test_an_identity_outside_its_limits_is_refused(
    client: str, incarnation: int, sequence: int
) -> None:
    with pytest.raises(hps.ConfigError):
        Identity(client, incarnation, sequence)


def test_a_trail_never_says_more_than_is_so() -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    trail, number, durable = Trail(0), 0, 0
    holds = {0: 0}  # sequence -> record
    for sequence in range(1, 2000):
        number += chance.randint(1, 3)
        trail.add(number, sequence)
        holds[sequence] = number
        if chance.random() < 0.02:
            durable = chance.randint(durable, number)
            trail.forget(durable)
        if chance.random() < 0.2:
            asked = chance.randint(durable, number)
            found = trail.sequence_at(asked)
            assert holds[found] <= asked
            assert trail.sequence_at(number) == sequence
            old = chance.randint(1, sequence)
            record = trail.record_of(old)
            assert record >= holds[old] or holds[old] <= durable
            assert record <= number
    assert len(trail._steps) <= 64


def test_sessions_come_out_of_a_checkpoint_as_they_went_in() -> None:
    sessions = Sessions()
    for number, name in enumerate(("a", "b", "c"), 1):
        sessions.renew(name, number, 0)
    sessions.advance(Identity("a", 1, 1), 7)
    sessions.fence = 2
    found = Sessions.from_json(sessions.to_json())
    assert found.to_json() == sessions.to_json()
    assert [name for name, _ in found] == ["b", "c", "a"]  # least recently used first
    with pytest.raises(FencedError, match="restore ended"):
        found.find("b", 2)
    assert found.find("c", 3).mark == 0


def test_an_incarnation_is_never_given_twice_though_its_session_was_dropped() -> None:
    sessions = Sessions()
    sessions.renew("a", sessions.incarnations + 1, 0)
    sessions.renew("b", sessions.incarnations + 1, 0)
    sessions.trim(1)
    with pytest.raises(FencedError, match="no such session"):
        sessions.find("a", 1)
    sessions.renew("a", sessions.incarnations + 1, 0)
    assert sessions.find("a", 3).mark == 0
