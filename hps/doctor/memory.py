"""Memory, its limit, and huge pages.

Above it: `hps.doctor.examine`. Below it: control_group.py, /proc, /sys.
"""

import re
from pathlib import Path

from hps.common.control_group import memory_limit
from hps.common.kernel_files import read_text
from hps.doctor.finding import NOTE, OK, Finding

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def find_memory(root: Path = Path("/")) -> list[Finding]:
    """How much there is, how much is free, and whether a cache's rows lie on huge pages."""
    return [_memory(root), _huge_pages(root)]


def _memory(root: Path) -> Finding:
    text = read_text(root / "proc/meminfo") or ""
    kib = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    total, free = kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024
    limit = memory_limit(root)
    most = total if limit is None else min(total, limit)
    found = f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of it free"
    if limit is not None and limit < total:
        found += f"; {limit / 2**30:.1f} GiB for this control group"
    use = (
        "--dram is a limit that hps fills as rows come, 1 GiB if it is not given; a run takes "
        f"torch's and the reader's memory besides, so give {_share(most)} or less"
    )
    figures = {"total_bytes": total, "available_bytes": free, "limit_bytes": limit}
    return Finding("memory", "memory", found, use, OK, figures)


def _share(most: int) -> str:
    """Seven tenths of the bytes, as a size that a flag takes.

    >>> _share(10 * 2**30)
    '7168MiB'
    """
    return f"{most * 7 // 10 // 2**20}MiB"


def _huge_pages(root: Path) -> Finding:
    text = read_text(root / _HUGE_PAGES)
    match = re.search(r"\[(\w+)\]", text or "")
    chosen = match[1] if match else "none"
    if chosen in ("always", "madvise"):
        use, state = "rows of the dram_cache lie on pages of 2 MiB, which look-ups find faster", OK
    else:
        use, state = (
            "rows of the dram_cache lie on pages of 4 KiB, and look-ups are slower; as root: "
            f"echo madvise > /{_HUGE_PAGES}",
            NOTE,
        )
    return Finding("memory", "huge pages", chosen, use, state, {"transparent_huge_pages": chosen})
