"""Small files by which the kernel tells of a machine.

Above it: control_group.py, `hps.doctor`. Below it: nothing.
"""

from pathlib import Path


def read_text(path: Path) -> str | None:
    """The text of a small file of the kernel without spaces around it; None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
