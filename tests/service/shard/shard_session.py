"""One client of a shard that numbers its mutations by itself, and pushes that move rows.

Above it: the tests of the shard. Below it: shard_lab.py.
"""

from typing import Any

import numpy as np

from hps.service.shard.shard import Identity, Shard
from tests.lab import keys_of
from tests.service.shard.shard_lab import ShardLab

CLIENT = "trainer-0"
KEYS = keys_of(7, 8, 2**64 - 1)
_ALL = np.arange(400, dtype=np.uint64)


class Session:
    """One client's, that numbers by itself."""

    def __init__(self, shard: Shard, name: str = CLIENT) -> None:
        self.shard, self.name = shard, name
        opened = shard.open_session(name)
        self.incarnation, self.sequence = opened.incarnation, opened.marks.applied

    def next(self) -> Identity:
        """The identity of the next mutation."""
        self.sequence += 1
        return self.again()

    def again(self) -> Identity:
        """The identity of the last mutation."""
        return Identity(self.name, self.incarnation, self.sequence)


def ones(count: int = 3) -> Any:
    """Gradients of so many keys of table sgd."""
    return np.ones((count, 4), np.float32)


def train(session: Session, count: int) -> None:
    """Pushes that move rows between the tiers."""
    for number in range(count):
        keys = _ALL[40 * number % 400 :][:40]
        session.shard.push(session.next(), "sgd", keys, ones(len(keys)))


def trained(lab: ShardLab, count: int = 0) -> tuple[Shard, Session]:
    """A shard in a new life, and a session of it with so many pushes behind it."""
    shard = lab.open()
    session = Session(shard)
    train(session, count)
    return shard, session
