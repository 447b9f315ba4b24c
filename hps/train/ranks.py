"""TrainingRanks: this process among those that train one model together, or alone.

Above it: the training run and its parts. Below it: `hps.cluster.world.world.World`, what torchrun
says (`hps.config.RankEnvironment`).
"""

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hps.config import RankEnvironment, num_cores
from hps.errors import ConfigError
from hps.options.run import AUTO
from hps.train.depth import AHEAD

if TYPE_CHECKING:
    from hps.cluster.world.world import World
    from hps.train.options import TrainOptions

_BUSY_CORES = 2
T = TypeVar("T")


class TrainingRanks:
    """What a part of a training run asks of the others; alone it answers for itself.

    Args:
        world: of the ranks; None for a process alone.
    """

    def __init__(self, world: "World | None" = None) -> None:
        self.world = world
        self.rank = 0 if world is None else world.rank
        self.size = 1 if world is None else world.size

    @property
    def part(self) -> tuple[int, int]:
        """What of each batch this rank reads, as `ReaderConfig.part`."""
        return self.rank, self.size

    def gather(self, value: T) -> list[T]:
        """Every rank's value in rank order; what JSON holds. Every rank calls it."""
        return [value] if self.world is None else self.world.control.gather(value)

    def any(self, flag: bool) -> bool:
        """True if it is on any rank. Every rank calls it."""
        return flag if self.world is None else self.world.control.any(flag)

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers. Every rank calls it. Cost: one small collective."""
        if self.world is None:
            return number
        return max(self.world.control.exchange_counts([number] * self.size))

    def exchange_seconds(self) -> float:
        """Spent by the compute stage in exchanges with other ranks so far, waits for slower ones
        included. (Those of keys are waits of the network stage, by its own clock.)"""
        return 0.0 if self.world is None else self.world.rows.seconds + self.world.control.seconds

    def bytes_sent(self) -> int:
        """Sent to other ranks so far."""
        if self.world is None:
            return 0
        channels = (self.world.keys, self.world.rows, self.world.control)
        return sum(channel.bytes_sent for channel in channels)

    def seed(self, seed: int, num_batches: int) -> int:
        """What seeds this rank's dropout from a batch on: another on each rank."""
        text = f"{seed} {self.rank} {self.size} {num_batches}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

    def agreed_depth(self, depth: int | str) -> int | str:
        """The depth of a run: of several ranks "auto" is one fixed choice, the same on all.

        To time both would have the ranks wait for each other's choices. 2 where every rank has two
        cores to itself, else 0: with one, the stages only take turns on it.
        """
        if self.world is None or depth != AUTO:
            return depth
        least = min(self.gather(cores_of_rank()))
        return AHEAD if least >= 2 else 0


def first_depth() -> int:
    """At which a run begins that is to measure its depth: 0 where torch's and hps's threads take
    all cores, so that stages that overlap take them from each other; 2 where some may idle."""
    return 0 if cores_of_rank() <= _BUSY_CORES else AHEAD


def cores_of_rank() -> int:
    """Cores of this host that a rank has to itself; at least one."""
    place = RankEnvironment.of()
    return max(1, num_cores() // (1 if place is None else place.local_size))


def options_of_rank(
    options: "TrainOptions", place: RankEnvironment, is_restarted: bool
) -> "TrainOptions":
    """The options of a run under torchrun, as this rank has them.

    Its own share of the host's cores and its own GPU; after a restart it resumes.

    Args:
        options: as the flags say, the same on every rank.
        place: of this rank.
        is_restarted: torchrun has started the ranks anew, after one of them died.

    Raises:
        ConfigError: options that several ranks cannot have.
    """
    if options.remote is not None:
        raise ConfigError(
            "--server under torchrun: the ranks hold the rows themselves; give --store, or start "
            "one process without torchrun"
        )
    device = options.device
    if options.gpu is not None and device in (None, "cuda"):
        device = f"cuda:{place.local_rank}"
    elif device not in (None, "cpu", f"cuda:{place.local_rank}"):
        raise ConfigError(
            f"--device {device} under torchrun: rank {place.local_rank} of a host takes "
            f"cuda:{place.local_rank}; leave it out, and choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    return replace(
        options,
        device=device,
        threads=options.threads or cores_of_rank(),
        resume=options.resume or is_restarted,
        resume_from=None if is_restarted else options.resume_from,
        # Ranks that died before the first checkpoint begin anew.
        resume_if_any=options.resume_if_any or (is_restarted and not options.resume),
        # The first attempt has left a checkpoint at the beginning of the new data.
        new_data=options.new_data and not is_restarted,
        change_features=options.change_features and not is_restarted,
        trace=None if options.trace is None else f"{options.trace}.rank-{place.rank}",
    )


def restart_warning(place: RankEnvironment) -> list[str]:
    """What a user should know who lets torchrun restart ranks; maybe nothing."""
    if place.max_restarts == 0 or not place.shares_store or place.local_size == place.size:
        return []
    return [
        f"--max-restarts {place.max_restarts} over several hosts: a host that is started anew "
        "finds the others only with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment "
        "and --rdzv-backend c10d; else all attempts meet in one store, and wait there in vain"
    ]
