"""Recipe Q1 of the service at full count: hostile requests, one after the other, at a real server.

Above it: test_service_faults.py, run.py. Below it: tests/service/server/test_server_hostile.py,
whose requests and rules these are (a typed status, a process that goes on, bounded memory), and
which is the recipe's short form; service_shards.py.
"""

import contextlib
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase

from hps.v1 import parameter_server_pb2 as pb
from tests.service.server.test_server_hostile import METHODS, Target, requests
from tests.torture.scratch import scratch_folder
from tests.torture.service_kills import ServiceReport
from tests.torture.service_shards import Nursery, Shard, ShardFailure

NEEDED = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
PLANT = "damage-unexpected"
_FLAGS = ["--max-message", "4MiB", "--max-requests", "8", "--max-tables", "3", "--max-dim", "64"]
_FLAGS += ["--max-flight", "32MiB", "--max-client-flight", "32MiB"]
_TABLE = "name=ads,dim=4,optimizer=sgd,lr=1,init=constant:0"


class Victim:
    """A shard as tests/service calls a server process."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.address = shard.address
        self.popen = self

    def poll(self) -> int | None:
        """As Popen.poll, of a process that somebody else will reap."""
        return -1 if self._shard.has_ended() else None

    def peak_bytes(self) -> int:
        """The most memory that the process has had."""
        status = Path(f"/proc/{self._shard.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10


def run_hostile(process: Nursery, seed: int, attacks: int, plant: str = "") -> ServiceReport:
    """Sends hostile requests until so many are answered or one is not as it should be.

    Args:
        process: where the server comes from.
        seed: of the requests.
        attacks: how many.
        plant: a bug of service_planted.py, or "".
    """
    report = ServiceReport()
    with scratch_folder() as folder:
        shard = Shard(process, folder, 0, 1, plant)
        shard.options = ["--table", _TABLE, *_FLAGS]
        try:
            shard.start()
            shard.wait_until_ready()
            _attack(Target(Victim(shard)), seed, attacks, report)  # type: ignore[arg-type]
        except (AssertionError, ShardFailure) as error:
            report.violations.append(f"Q1, seed {seed}: {error}")
        finally:
            shard.end()
    return report


def _attack(target: Target, seed: int, attacks: int, report: ServiceReport) -> None:
    target.channel.call("OpenSession", pb.OpenSessionRequest(client_id="a"))
    settings = hypothesis.settings(
        max_examples=attacks,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(request=requests(sorted(METHODS)))
    def attack(request: tuple[str, bytes]) -> None:
        report.tallies["requests"] += 1
        target.attack(*request)

    with contextlib.closing(target.channel.channel):
        attack()
        report.tallies.update(target.answers)
