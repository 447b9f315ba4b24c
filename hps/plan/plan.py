"""make_plan: what each rank of a cluster needs, whether it has that, and how many ranks are enough.

Above it: `hps plan`. Below it: sizes.py.
"""

from dataclasses import asdict, dataclass

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.plan.question import PlanQuestion
from hps.plan.sizes import DramSizes, GpuSizes, NetworkSizes, RowSizes, Sizer, SsdSizes, StepSizes


@dataclass(frozen=True)
class Need:
    """One thing of which a rank has a limited amount."""

    what: str
    unit: str
    needed: float
    available: float

    @property
    def is_met(self) -> bool:
        """True if there is enough."""
        return self.needed <= self.available


@dataclass(frozen=True)
class Plan:
    """The answer to a PlanQuestion.

    Args:
        question: what was asked.
        ranks: processes, one a GPU.
        needs: what a rank needs beside what it has.
        short_of: what one rank less would be short of; empty where ranks were given.
    """

    question: PlanQuestion
    ranks: int
    row: RowSizes
    step: StepSizes
    gpu: GpuSizes | None
    dram: DramSizes
    ssd: SsdSizes
    network: NetworkSizes
    needs: tuple[Need, ...]
    short_of: tuple[str, ...] = ()

    @property
    def missing(self) -> list[Need]:
        """The needs that are not met."""
        return [need for need in self.needs if not need.is_met]

    def to_dict(self) -> Json:
        """Plain values, for JSON."""
        needs = [{**asdict(need), "is_met": need.is_met} for need in self.needs]
        return {**asdict(self), "needs": needs}


def make_plan(question: PlanQuestion) -> Plan:
    """Sizes a cluster of `question.ranks` ranks, or of as few as have enough of everything.

    Raises:
        ConfigError: ranks are to be found, and no number of them is enough; names what is missing.

    >>> plan = make_plan(PlanQuestion(keys=10**10, dim=16))
    >>> plan.missing, plan.row.image, plan.ranks > 1
    ([], 144, True)
    """
    sizer = Sizer(question)
    if question.ranks:
        return _plan(sizer, question.ranks)
    ranks = _fewest(sizer)
    short_of = [need.what for need in _plan(sizer, ranks - 1).missing] if ranks > 1 else []
    return _plan(sizer, ranks, tuple(short_of))


def _plan(sizer: Sizer, ranks: int, short_of: tuple[str, ...] = ()) -> Plan:
    step = sizer.step(ranks)
    gpu, dram = sizer.gpu(ranks, step), sizer.dram(ranks, step)
    ssd, network = sizer.ssd(ranks, dram), sizer.network(ranks, step)
    needs = _needs(sizer.question, ranks, gpu, dram, ssd, network)
    return Plan(
        sizer.question, ranks, sizer.row, step, gpu, dram, ssd, network, tuple(needs), short_of
    )


def _needs(
    question: PlanQuestion,
    ranks: int,
    gpu: GpuSizes | None,
    dram: DramSizes,
    ssd: SsdSizes,
    network: NetworkSizes,
) -> list[Need]:
    least_dram = dram.index + dram.buffers + dram.least_cache
    needs = [
        Need("DRAM", "bytes", least_dram, float(question.dram)),
        Need("SSD", "bytes", ssd.bound + ssd.checkpoints, float(question.ssd)),
        Need("SSD reads", "a second", ssd.reads_per_second, question.ssd_reads),
        Need("network", "bytes a second", network.per_second, float(question.network)),
    ]
    if gpu is not None and question.gpu is not None:
        needs.insert(0, Need("GPU", "bytes", gpu.buffers + gpu.least_cache, float(question.gpu)))
    if question.rank_examples_per_second is not None:
        rate = question.examples_per_second / ranks
        needs.append(Need("computing", "examples/s", rate, question.rank_examples_per_second))
    return needs


def _fewest(sizer: Sizer) -> int:
    """The smallest number of ranks with enough of everything; the more, the less each needs."""
    most = sizer.question.most_ranks
    low, high = 0, 1
    while missing := _plan(sizer, high).missing:
        if high == most:
            lacks = [f"{need.what} ({need.needed:.4g} {need.unit})" for need in missing]
            raise ConfigError(
                f"plan: {most} ranks are not enough: each lacks {', '.join(lacks)}; raise "
                "that limit, or plan for fewer keys or examples a second"
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _plan(sizer, middle).missing else (low, middle)
    return high
