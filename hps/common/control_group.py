"""Limits of the control group that this process is in, and of those above it.

Above it: hps.config, `hps.doctor`. Below it: kernel_files.py; files of cgroup v2, or of v1, below
/sys/fs/cgroup.
"""

from collections.abc import Iterator
from pathlib import Path

from hps.common.kernel_files import read_text

_GROUPS = "sys/fs/cgroup"


def memory_limit(root: Path) -> int | None:
    """Bytes that all processes of the group may have together; None: no limit.

    Args:
        root: of the file system, "/".
    """
    texts = [read_text(folder / "memory.max") for folder in _folders(root, "")]
    texts += [read_text(one / "memory.limit_in_bytes") for one in _folders(root, "memory")]
    limits = [int(text) for text in texts if text is not None and text.isdecimal()]
    return min((limit for limit in limits if limit < 2**60), default=None)  # v1 has a number for it


def core_limit(root: Path) -> float | None:
    """Cores whose time all processes of the group may use together; None: no limit.

    Args:
        root: of the file system, "/".
    """
    limits = []
    for folder in _folders(root, ""):
        quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        if quota.isdecimal() and period.isdecimal():
            limits.append(int(quota) / int(period))
    for folder in _folders(root, "cpu"):
        quota = read_text(folder / "cpu.cfs_quota_us") or ""
        period = read_text(folder / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal():
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder and those above it: of v2, or of a controller of v1. In a container the
    name of its group is often that of the host, and its own folder is the top."""
    top = root / _GROUPS / controller
    yield top
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") if controller else names == "":
            inner = Path(path.lstrip("/"))
            for part in (inner, *inner.parents):
                if part.parts:
                    yield top / part
