"""The native log and its readable twin do the same: random appends, waits, cuts and openings.

Above it: pytest. Below it: hps._C.UpdateLog, tests/twins/update_log.py.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from hps import _C
from hps.errors import StoreError
from hps.update_log import open_update_log
from tests.twins.update_log import TwinLogDisk


class Pair:
    """Both logs, and the records that they must have."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.twin_disk = TwinLogDisk(seed, file_bytes=2000)
        self.records: dict[int, bytes] = {}
        self.kept = 0  # in a checkpoint
        self.epoch = 1
        self.num_read = 0
        self.open()

    def open(self) -> None:
        """Opens both behind `kept`, and reads what they hold."""
        (self.folder / "native").mkdir(exist_ok=True)
        native = _C.UpdateLog.open(
            str(self.folder / "native"), 7, self.epoch, self.kept, file_bytes=4096
        )
        twin = self.twin_disk.open(str(self.folder / "twin"), 7, self.epoch, self.kept)
        self.logs: tuple[Any, Any] = (native, twin)
        expected = [(number, self.records[number]) for number in sorted(self.records)]
        expected = [(number, record) for number, record in expected if number > self.kept]
        for log in self.logs:
            found = []
            while piece := log.read(500):
                found += [(number, bytes(record)) for number, record in piece]
            assert found == expected
            assert log.appended == log.logged == log.durable == max([self.kept, *self.records])
        self.num_read += len(expected)

    def append(self, parts: list[bytes]) -> None:
        """One record, the same number in both."""
        numbers = {log.append(parts) for log in self.logs}
        assert len(numbers) == 1
        self.records[numbers.pop()] = b"".join(parts)

    def take_back(self) -> None:
        """The last record never was."""
        number = max(self.records)
        for log in self.logs:
            log.take_back(number)
        del self.records[number]

    def cut(self, chance: random.Random) -> None:
        """A checkpoint has some of the records."""
        self.kept = chance.randint(self.kept, max([self.kept, *self.records]))
        for log in self.logs:
            log.cut(self.kept)

    def reopen(self, chance: random.Random) -> None:
        """Closed and opened; now and then in another epoch, or behind a newer checkpoint."""
        for log in self.logs:
            log.close()
            with pytest.raises(StoreError):
                log.append([b"x"])
        what = chance.randrange(4)
        if what == 0:
            self.epoch, self.kept = self.epoch + 1, chance.choice([0, 5])
            self.records.clear()
        elif what == 1:  # a checkpoint that holds more than the log
            self.kept = max([self.kept, *self.records]) + chance.choice([0, 0, 3])
            self.records.clear()
        self.open()

    def check(self) -> None:
        """What both say of themselves."""
        for log in self.logs:
            assert log.appended == max([self.kept, *self.records])
            assert log.durable <= log.logged <= log.appended


def test_native_log_and_twin_agree(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pair = Pair(tmp_path, seed)
    can_take_back, reopened = False, 0
    for _ in range(600):
        step = chance.random()
        if step < 0.6:
            sizes = [chance.choice([0, 1, 8, 100, 700]) for _ in range(chance.randint(1, 4))]
            pair.append([chance.randbytes(size) for size in sizes])
            can_take_back = True
        elif step < 0.8:
            number, durable = max([pair.kept, *pair.records]), chance.random() < 0.5
            for log in pair.logs:
                assert log.wait(number, durable, 10.0)
                assert (log.durable if durable else log.logged) >= number
        elif step < 0.85 and can_take_back:
            pair.take_back()
            can_take_back = False
        elif step < 0.93:
            pair.cut(chance)
            can_take_back = False
        elif step < 0.96:
            pair.reopen(chance)
            can_take_back, reopened = False, reopened + 1
        pair.check()
    pair.reopen(chance)
    for log in pair.logs:
        log.close()
    assert reopened > 3 and pair.num_read > 3


def test_the_door_opens_the_native_log(tmp_path: Path) -> None:
    log = open_update_log(str(tmp_path / "log"), 7, 1, 0)
    assert log.append([b"one", b"two"]) == 1
    log.close()
    assert open_update_log(str(tmp_path / "log"), 7, 1, 0).read(1) == [(1, b"onetwo")]
