"""One rank's training run: a DeepFM over a ClusterParameterServer, timed step by step.

Above it: ranks.py, which runs several at once. Below it: hps, workload.py, recorded_world.py. All
rows lie in DRAM and batches in memory, so that the run shows what the exchange costs, not the disk.
"""

import argparse
import json
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import hps
from benchmarks.cluster.recorded_world import RecordedWorld
from benchmarks.cluster.workload import TABLE, Workload
from hps.cluster.config import ClusterConfig
from hps.cluster.world.local_world import local_worlds
from hps.cluster.world.torch_world import torch_world
from hps.cluster.world.world import World
from hps.models import DeepFM
from hps.train.dense import average_in_rank_order

HIDDEN = (256, 128)
_MAKING = threading.Lock()  # models of several ranks of a process draw from one generator


class _LeaveUnsaved(hps.HpsError):
    """Thrown through a server's `with` block, which then saves no checkpoint."""


@dataclass(frozen=True)
class RunOptions:
    """One run; the same on all its ranks.

    Args:
        log: whose parts the ranks train on.
        threads: of the native core of a rank, and of torch where a rank is a process.
        plain: one rank without any exchange: an hps.ParameterServer of its own.
        cluster: fields of ClusterConfig.
    """

    log: Workload
    dim: int = 16
    depth: int = 2
    steps: int = 40
    warm_up: int = 12
    threads: int = 1
    dram: str = "256MiB"
    plain: bool = False
    cluster: dict[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> "RunOptions":
        """What `to_text` wrote."""
        values = json.loads(text)
        return RunOptions(**{**values, "log": Workload(**values["log"])})


@dataclass(frozen=True)
class Timed:
    """What one rank took a step.

    Args:
        seconds: of the clock.
        busy: stage -> busy seconds; the time in a collective counts.
        waits: channel -> seconds in its collectives.
        cpu_seconds: of the whole process.
        bytes_sent: to other ranks by keys and rows. At a depth above 0 what was sent ahead at the
            first timed step is missing, and what was at the last is in it.
        least_bytes: for the distinct keys that others own, their rows and gradients.
        moments: of the clock at the end of each step, with the one before the first.
        calls: channel -> [[began, ended, bytes], ...] of all timed steps.
        digest: of the table, where asked for.
    """

    seconds: float
    busy: dict[str, float]
    waits: dict[str, float]
    cpu_seconds: float
    bytes_sent: float
    least_bytes: float
    moments: list[float]
    calls: dict[str, list[list[float]]]


class RankRun:
    """A run as one of its ranks.

    Args:
        folder: for the stores, the same for all ranks.
        world: None with `options.plain`.
    """

    def __init__(self, options: RunOptions, folder: Path, world: World | None) -> None:
        self._options = options
        self._folder = folder
        self._world = None if world is None else RecordedWorld(world)
        self._rank = 0 if world is None else world.rank
        self._size = 1 if world is None else world.size
        self.digest = ""

    def run(self, wants_digest: bool = False) -> Timed:
        """Trains; the first batches are not timed. Nothing is saved."""
        timed = None
        with suppress(_LeaveUnsaved), hps.ParameterServer(self._config()) as local:
            with self._server(local) as server:
                timed = self._train(server)
                if wants_digest:
                    self.digest = server.digest(TABLE)
            assert local.stats()["dram_cache"]["evictions"] == 0, "rows gave way: raise `dram`"
            raise _LeaveUnsaved
        assert timed is not None
        if self._world is not None:
            self._world.close()
        return timed

    def _config(self) -> hps.Config:
        options = self._options
        table = hps.TableConfig(name=TABLE, dim=options.dim + 1, optimizer=hps.Adagrad(lr=0.02))
        return hps.Config(
            path=self._folder / f"rank{self._rank}",
            tables=[table],
            dram=hps.DramCacheConfig(bytes=options.dram),
            threads=options.threads,
        )

    def _server(self, local: hps.ParameterServer) -> Any:
        if self._world is None:
            return nullcontext(local)
        options = ClusterConfig(**self._options.cluster)
        server = hps.ClusterParameterServer.over(local, self._world, options)
        server._together.is_alone = False  # the exchange's path, also of the only rank
        return server

    def _train(self, server: Any) -> Timed:
        options, log = self._options, self._options.log
        with _MAKING:
            torch.manual_seed(0)
            model = DeepFM(server, {TABLE: log.features}, log.dense, HIDDEN)
        rows, dense = hps.RowOptimizer(server), torch.optim.Adam(model.parameters(), lr=0.001)
        criterion = torch.nn.BCEWithLogitsLoss()
        last = options.warm_up + options.steps
        count = last + 2 * options.depth + 2  # while the last ones are timed, others are prepared
        moments: list[float] = []
        busy, after, cpu, sent = {}, {}, 0.0, 0
        parts = log.parts(self._rank, self._size, count)
        with hps.Pipeline(parts, server, options.depth) as batches:
            for number, batch in enumerate(batches, 1):
                criterion(model(batch), batch.labels).backward()
                rows.step()
                self._average(model)
                dense.step()
                dense.zero_grad()
                if number == options.warm_up:
                    busy, cpu, sent = batches.seconds(), time.process_time(), self._bytes_sent()
                if options.warm_up <= number <= last:
                    moments.append(time.perf_counter())
                if number == last:
                    after, cpu = batches.seconds(), time.process_time() - cpu
                    sent = self._bytes_sent() - sent
        steps = options.steps
        assert len(moments) == steps + 1, "the log ended early"
        calls = self._calls(moments[0], moments[-1])
        return Timed(
            seconds=(moments[-1] - moments[0]) / steps,
            busy={
                stage: (times["busy_seconds"] - busy[stage]["busy_seconds"]) / steps
                for stage, times in after.items()
            },
            waits={name: sum(c[1] - c[0] for c in made) / steps for name, made in calls.items()},
            cpu_seconds=cpu / steps,
            bytes_sent=sent / steps,
            least_bytes=self._least_bytes(),
            moments=moments,
            calls=calls,
        )

    def _average(self, model: torch.nn.Module) -> None:
        """Dense gradients averaged as `hps train` does, in a channel of their own."""
        if self._world is None or self._size == 1:
            return
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        mean = average_in_rank_order(self._world.control, flat)
        for grad, part in zip(grads, mean.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def _bytes_sent(self) -> int:
        return 0 if self._world is None else self._world.bytes_sent()

    def _least_bytes(self) -> float:
        """Of a key that another rank owns: eight bytes, then its row here and its gradient back.

        Summed over ranks that is what all send; one rank of equal shares sends as much.
        """
        options, log = self._options, self._options.log
        numbers = range(options.warm_up, options.warm_up + options.steps)
        foreign = {n % log.distinct: 0 for n in numbers}
        for number in foreign:
            foreign[number] = log.foreign_keys(number, self._rank, self._size)
        mean = sum(foreign[number % log.distinct] for number in numbers) / options.steps
        return mean * (8 + 2 * 4 * (options.dim + 1))

    def _calls(self, began: float, ended: float) -> dict[str, list[list[float]]]:
        if self._world is None:
            return {}
        channels = {name: getattr(self._world, name) for name in ("keys", "rows", "control")}
        return {
            name: [
                [call.began, call.ended, call.nbytes]
                for call in channel.calls
                if began <= call.began < ended
            ]
            for name, channel in channels.items()
        }


def main() -> int:
    """One rank as a process of torchrun's kind; prints its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("options", type=RunOptions.from_text)
    parser.add_argument("--by-itself", action="store_true", help="at once with others, knows none")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.options.threads)
    world = None if arguments.options.plain else torch_world("gloo", timeout_seconds=120.0)
    arguments.options.log.keys_of(0)  # draws them, before the others are waited for
    if world is not None and arguments.by_itself:
        world.control.barrier()
        folder = arguments.folder / f"world{world.rank}"
        timed = RankRun(arguments.options, folder, local_worlds(1)[0]).run()
        world.close()
    else:
        timed = RankRun(arguments.options, arguments.folder, world).run()
    json.dump(asdict(timed), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
