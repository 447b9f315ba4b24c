"""Cores and instruction sets.

Above it: `hps.doctor.examine`. Below it: control_group.py, hps.config, hps._C.
"""

import os
import platform
import re
from pathlib import Path

from hps import _C
from hps.common.control_group import core_limit
from hps.common.kernel_files import read_text
from hps.config import MAX_THREADS, num_cores
from hps.doctor.finding import NOTE, OK, Finding


def find_processor(root: Path = Path("/")) -> list[Finding]:
    """The processor, the cores that this process may use, and the loops that the core takes."""
    return [_model(root), _cores(root), _instruction_sets()]


def _model(root: Path) -> Finding:
    text = read_text(root / "proc/cpuinfo") or ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = match[1] if match else platform.machine()
    use = "hps is made for x86-64"
    return Finding("processor", "processor", name, use, OK, {"machine": platform.machine()})


def _cores(root: Path) -> Finding:
    usable, there, limit = num_cores(root), os.cpu_count() or 1, core_limit(root)
    threads = min(usable, MAX_THREADS)
    found = f"{usable} of {there}"
    use = (
        f"{threads} thread(s), one for each core that this process may use; --threads N for others"
    )
    state = OK
    if limit is not None and limit < len(os.sched_getaffinity(0)):
        found = f"the time of {limit:g} of {there}, by the control group"
        use = f"{threads} thread(s), one for each core of that; --threads N for others"
        state = NOTE
    figures = {"cores": usable, "cores_of_machine": there, "cores_of_control_group": limit}
    return Finding("processor", "cores", found, use, state, figures)


def _instruction_sets() -> Finding:
    found = _C.instruction_sets()
    best = found[0]
    state, use = OK, f"{best}: the best that it has, chosen at run time; all give equal bits"
    if best == "plain":
        state, use = NOTE, "plain loops, the slowest: the processor has neither AVX2 nor AVX-512"
    return Finding("processor", "instruction sets", ", ".join(found), use, state, {"chosen": best})
