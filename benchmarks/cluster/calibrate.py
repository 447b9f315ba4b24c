"""What the simulator is fed with: each stage's work between collectives, and a collective's own.

Above it: cluster_bench.py. Below it: rank.py (one rank alone, stages in turn), wire.py (collectives
alone). No run of several ranks is looked at: what those take is for the simulator to say.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from benchmarks.cluster.rank import RunOptions, Timed
from benchmarks.cluster.ranks import launch
from benchmarks.cluster.simulator import Collective, Machine, Operation, Step, Work

WIRE_BYTES = (1 << 10, 1 << 16, 1 << 19, 1 << 22)
WIRE_SIZES = (2, 4)
# (work alone, for each other rank, for each byte), and the latency.
WireCosts = tuple[tuple[float, float, float], float]


def alone(options: RunOptions, ranks: int) -> RunOptions:
    """One rank by itself, stages in turn, with batches as large as the parts of so many ranks."""
    part = max(1, options.log.batch_size // ranks)
    log = replace(options.log, batch_size=part)
    return replace(options, log=log, depth=0, plain=False)


def steps_of(timed: Timed) -> list[Step]:
    """The recorded steps of a run of one rank at depth 0.

    Between two collectives of a stage lies its work. What lies between the last of keys and the
    first of rows belongs to three stages, which the pipeline's own clock tells apart.
    """
    keys = timed.calls["keys"]
    others = sorted([("rows", call) for call in timed.calls["rows"]]
                    + [("control", call) for call in timed.calls["control"]],
                    key=lambda named: named[1][0])  # fmt: skip
    steps = []
    for began, ended in zip(timed.moments, timed.moments[1:], strict=False):
        own_keys = [("keys", call) for call in keys if began <= call[0] < ended]
        own_rows = [named for named in others if began <= named[1][0] < ended]
        steps.append(_step(timed, (began, ended), own_keys, own_rows))
    return steps


def _step(
    timed: Timed,
    moments: tuple[float, float],
    keys: Sequence[tuple[str, list[float]]],
    rows: Sequence[tuple[str, list[float]]],
) -> Step:
    network, after_keys = _interleaved(moments[0], keys)
    compute, after_rows = _interleaved(rows[0][1][0], rows)
    in_network = after_keys - moments[0]
    rest_of_network = max(0.0, timed.busy["network"] - in_network)
    fetch = timed.busy["fetch"]
    before_rows = max(0.0, rows[0][1][0] - after_keys - rest_of_network - fetch)
    return {
        "network": (*network, Work(rest_of_network)),
        "fetch": (Work(fetch),),
        "compute": (Work(before_rows), *compute, Work(moments[1] - after_rows)),
    }


def _interleaved(
    began: float, calls: Sequence[tuple[str, list[float]]]
) -> tuple[list[Operation], float]:
    """Work and collectives in turn from a moment on, and when the last collective ended."""
    operations: list[Operation] = []
    for channel, (start, end, nbytes) in calls:
        # What a rank does alone in a collective, a copy, it does among others, too.
        operations += [
            Work(max(0.0, start - began)),
            Collective(channel, nbytes),
            Work(end - start),
        ]
        began = end
    return operations, began


def slowdown(single: Sequence[Timed], many: Sequence[Timed], ranks_a_core: float) -> float:
    """How much longer a rank's work takes beside others, beyond its share of the cores.

    Args:
        single: runs of one rank that had the machine to itself.
        many: such runs side by side, that knew nothing of each other.
        ranks_a_core: of the latter.
    """
    longer = median(one.seconds for one in many) / median(one.seconds for one in single)
    return max(1.0, longer / max(1.0, ranks_a_core))


def wire_costs(repetitions: int, sizes: Sequence[int] = WIRE_SIZES) -> WireCosts:
    """A collective's own work and latency.

    Fitted to the processor time and the duration of collectives of several sizes and ranks.
    """
    lines, works, latencies = [], [], []
    for size in sizes:
        arguments = [json.dumps({"bytes": WIRE_BYTES, "repetitions": repetitions})]
        texts = launch("benchmarks.cluster.wire", [arguments] * size)
        said = [json.loads(text) for text in texts]
        for place, nbytes in enumerate(WIRE_BYTES):
            work = median(one[place]["cpu_seconds"] for one in said)
            seconds = median(one[place]["seconds"] for one in said)
            lines.append([1.0, size - 1, nbytes * (1 - 1 / size)])
            works.append(work)
            latencies.append(max(0.0, seconds - work))
    scale = 1.0 / np.maximum(works, 1e-6)  # equal weight to small and large ones
    matrix = np.array(lines) * scale[:, None]
    found, *_ = np.linalg.lstsq(matrix, np.array(works) * scale, rcond=None)
    fixed, a_rank, a_byte = (max(0.0, float(value)) for value in found)
    return (fixed, a_rank, a_byte), min(latencies)


def this_machine(cores: int, slowed: float, wire: WireCosts) -> Machine:
    """One host that all ranks share."""
    return Machine(
        cores=cores,
        ranks_per_host=1 << 20,
        slowdown=slowed,
        call_seconds=wire[0],
        latency_seconds=wire[1],
    )
