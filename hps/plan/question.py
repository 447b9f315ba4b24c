"""PlanQuestion: the model, its log and the machine of one rank, as `hps plan` is asked about them.

Above it: hps.plan.plan, `hps plan`. Below it: the limits and names of hps.config.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from hps.common.byte_sizes import parse_bytes
from hps.common.field_checks import require_number, require_whole
from hps.common.optimizers import OPTIMIZERS
from hps.common.row_layout import RowLayout
from hps.common.sharding import NUM_VIRTUAL
from hps.common.wire import Wire
from hps.config import TableConfig
from hps.errors import ConfigError

_BITS = re.compile(r"[A-Za-z](b|bit|bits|bps)\s*$")
_SIZES = ("dram", "ssd", "network", "gpu")


def counts_bits(size: str) -> bool:
    """True of a size such as 10Gb or 10Gbit, as network cards are sold.

    >>> counts_bits("10Gb"), counts_bits("10GB")
    (True, False)
    """
    return _BITS.search(size) is not None


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What is to be trained, how fast, and on what.

    Args:
        keys: that are stored, of all features.
        dim: floats of a row's weights, a first-order column counted.
        optimizer: of rows; a name in `hps.common.optimizers.OPTIMIZERS`.
        features: of an example; they share no key, the largest has a thousand times the keys of the
            smallest (as `hps generate` deals them out).
        ids_per_feature: keys that an example has of each feature.
        alpha: exponent of each feature's Zipf law; 0 is uniform.
        batch_size: examples a step, over all ranks.
        examples_per_second: over all ranks.
        ranks: how many; 0 is as few as will do.
        ranks_per_node: that share a host, its network apart.
        depth: batches prepared ahead.
        row_wire, gradient_wire: how they travel: "float32", "float16", "bfloat16" or "int8".
        dense_parameters: of the model's dense part.
        checkpoint_seconds: between two checkpoints.
        gpu: bytes of device memory of a rank; None trains on the host.
        dram: bytes of host memory of a rank.
        ssd: bytes of disk of a rank.
        network: bytes a second that a rank can send.
        ssd_reads: random reads a second that a rank's disk can do.
        rank_examples_per_second: that a rank by itself reaches, as `hps train` says; None sets no
            limit.

    Raises:
        ConfigError: a field outside its limits.

    >>> PlanQuestion(keys=10**9, dim=16).layout.row_bytes
    144
    """

    most_ranks: ClassVar[int] = NUM_VIRTUAL
    keys: int
    dim: int
    optimizer: str = "adagrad"
    features: int = 26
    ids_per_feature: int = 1
    alpha: float = 1.05
    batch_size: int = 65536
    examples_per_second: float = 1e6
    ranks: int = 0
    ranks_per_node: int = 8
    depth: int = 2
    row_wire: str = "float32"
    gradient_wire: str = "float32"
    dense_parameters: int = 1_000_000
    checkpoint_seconds: float = 1800.0
    gpu: int | str | None = "80GB"
    dram: int | str = "256GB"
    ssd: int | str = "4TB"
    network: int | str = "10GB"
    ssd_reads: float = 500_000.0
    rank_examples_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"plan: optimizer={self.optimizer!r} must be one of {tuple(OPTIMIZERS)}"
            )
        TableConfig(name="rows", dim=self.dim)  # its limits
        Wire.named(self.row_wire, "plan: row_wire")
        Wire.named(self.gradient_wire, "plan: gradient_wire")
        require_whole("plan: features", self.features, 1, 2**16)
        require_whole("plan: keys", self.keys, self.features, 2**53)
        require_whole("plan: ids_per_feature", self.ids_per_feature, 1, 2**16)
        require_whole("plan: batch_size", self.batch_size, 1, 2**31)
        require_whole("plan: ranks", self.ranks, 0, self.most_ranks)
        require_whole("plan: ranks_per_node", self.ranks_per_node, 1, self.most_ranks)
        require_whole("plan: depth", self.depth, 0, 64)
        require_whole("plan: dense_parameters", self.dense_parameters, 0, 2**53)
        require_number("plan: alpha", self.alpha)
        if self.alpha > 8:
            raise ConfigError(f"plan: alpha={self.alpha!r} must be from 0 to 8")
        for field in ("examples_per_second", "checkpoint_seconds", "ssd_reads"):
            require_number(f"plan: {field}", getattr(self, field), above=0)
        if self.rank_examples_per_second is not None:
            require_number("plan: rank_examples_per_second", self.rank_examples_per_second, above=0)
        for field in _SIZES:
            size = getattr(self, field)
            if isinstance(size, str) and counts_bits(size):
                raise ConfigError(
                    f"plan: {field}={size!r} counts bits; write bytes, e.g. '1.25GB' for 10 Gb"
                )
            if size is not None:
                object.__setattr__(self, field, parse_bytes(size, f"plan: {field}"))

    @property
    def layout(self) -> RowLayout:
        """The row."""
        return RowLayout(self.optimizer, self.dim)

    @property
    def steps_per_second(self) -> float:
        """Steps that the whole cluster makes."""
        return self.examples_per_second / self.batch_size
