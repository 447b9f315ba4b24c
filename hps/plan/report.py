"""A plan as a text table, for people.

Above it: `hps plan`. Below it: plan.py.
"""

from collections.abc import Iterable

from hps.plan.plan import Need, Plan

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_Line = tuple[str, str, str]  # what, how much, of what it is made


def format_plan(plan: Plan) -> str:
    """The table of `hps plan`."""
    question = plan.question
    nodes = -(-plan.ranks // question.ranks_per_node)
    reason = f" (one fewer is short of {', '.join(plan.short_of)})" if plan.short_of else ""
    lines = [
        f"{question.keys:,} keys, dim {question.dim}, {question.optimizer}: rows of "
        f"{plan.row.image} bytes, {_size(question.keys * plan.row.image)} in all",
        f"{_counted(plan.ranks, 'rank')} on {_counted(nodes, 'host')} of up to "
        f"{_counted(question.ranks_per_node, 'rank')}{reason}",
    ]
    sections: list[tuple[str, Iterable[_Line]]] = [
        ("a step", _step_lines(plan)),
        ("GPU of a rank", _gpu_lines(plan)),
        ("DRAM of a rank", _dram_lines(plan)),
        ("SSD of a rank", _ssd_lines(plan)),
        ("network of a rank", _network_lines(plan)),
        ("checkpoints", _checkpoint_lines(plan)),
        ("enough?", _need_lines(plan)),
    ]
    for title, section in sections:
        rows = list(section)
        if rows:
            lines += ["", title, *(_aligned(row) for row in rows)]
    return "\n".join(lines)


def _step_lines(plan: Plan) -> Iterable[_Line]:
    question, step = plan.question, plan.step
    occurrences = question.batch_size * question.features * question.ids_per_feature
    yield "examples", f"{question.batch_size:,}", f"{question.steps_per_second:,.1f} steps a second"
    yield "distinct keys", f"{step.batch_keys:,.0f}", f"of {occurrences:,} occurrences"
    part = f"of {step.rank_occurrences:,.0f} occurrences"
    yield "of a rank's part", f"{step.rank_keys:,.0f}", part
    yield (
        "asked of an owner",
        f"{step.received_keys:,.0f}",
        f"{step.owned_keys:,.0f} of them distinct",
    )


def _gpu_lines(plan: Plan) -> Iterable[_Line]:
    if plan.gpu is None:
        return
    gpu = plan.gpu
    yield "buffers, dense part", _size(gpu.buffers), ""
    least = f"at least {_size(gpu.least_cache)}, for {plan.step.window_keys:,.0f} rows in flight"
    yield "gpu_cache", _size(gpu.cache), least
    yield "of it for batches", _size(gpu.batches), "an eighth if --gpu says nothing else"
    per_second = f"{_size(gpu.copied_per_second)} a second to and from the host"
    yield "misses a step", f"{gpu.misses:,.0f}", per_second


def _dram_lines(plan: Plan) -> Iterable[_Line]:
    dram = plan.dram
    yield "index", _size(dram.index), f"at most {plan.row.index:.1f} bytes a key"
    yield "process, buffers", _size(dram.buffers), ""
    least = f"room for {dram.cache_rows:,.0f} rows; at least {_size(dram.least_cache)}"
    yield "dram_cache", _size(dram.cache), least
    rate = 1 - dram.misses / plan.step.owned_keys
    yield "misses a step", f"{dram.misses:,.0f}", f"hit rate {100 * rate:.1f} %"


def _ssd_lines(plan: Plan) -> Iterable[_Line]:
    ssd = plan.ssd
    yield "live rows", _size(ssd.live), f"{plan.row.ssd:.0f} bytes a row"
    yield "segments, at most", _size(ssd.bound), ""
    yield "kept checkpoints", _size(ssd.checkpoints), "what they alone hold"
    yield "reads", f"{ssd.reads_per_second:,.0f} a second", f"{_size(ssd.read_per_second)} a second"
    yield "writes", f"{_size(ssd.written_per_second)} a second", "with compaction"


def _network_lines(plan: Plan) -> Iterable[_Line]:
    network = plan.network
    yield "keys sent a step", _size(network.keys), ""
    yield "rows", _size(network.rows), plan.question.row_wire
    yield "gradients", _size(network.gradients), plan.question.gradient_wire
    yield "dense gradients", _size(network.dense), "shares to be summed, and their means"
    yield "together", f"{_size(network.step)} a step", f"{_size(network.per_second)} a second"
    yield "leaves a host", f"{_size(network.node_per_second)} a second", "of all its ranks"


def _checkpoint_lines(plan: Plan) -> Iterable[_Line]:
    ssd = plan.ssd
    yield "rows of a rank", f"{ssd.checkpoint_rows:,.0f}", "changed, and still in memory"
    yield "written by a rank", _size(ssd.checkpoint), f"{_size(ssd.checkpoint * plan.ranks)} by all"


def _need_lines(plan: Plan) -> Iterable[_Line]:
    yield from map(_need_line, plan.needs)
    if plan.question.rank_examples_per_second is None:
        yield "computing", "not known", "give --rank-examples-per-second, as hps train says it"


def _need_line(need: Need) -> _Line:
    show = _size if need.unit.startswith("bytes") else lambda value: f"{value:,.0f}"
    unit = need.unit.removeprefix("bytes").strip()
    verdict = "yes" if need.is_met else "NO"
    needed = f"{show(need.needed)} {unit}".strip()
    return need.what, needed, f"of {show(need.available)} {unit}".rstrip() + f": {verdict}"


def _aligned(line: _Line) -> str:
    what, amount, note = line
    return f"  {what:<22}{amount:>20}  {note}".rstrip()


def _counted(number: int, what: str) -> str:
    """
    >>> _counted(1, "rank"), _counted(2000, "rank")
    ('1 rank', '2,000 ranks')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(value: float) -> str:
    """Bytes in decimal units, three digits."""
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("the last unit takes any size")
