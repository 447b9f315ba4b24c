"""What this machine has, and what hps makes of it: the findings of `hps doctor`.

Above it: hps/cli/doctor.py. Below it: finding.py, processor.py, memory.py, disk.py, device.py,
packages.py; each looks at one thing and changes nothing.
"""

from pathlib import Path

from hps.doctor.device import find_device
from hps.doctor.disk import find_disk
from hps.doctor.finding import Finding
from hps.doctor.memory import find_memory
from hps.doctor.packages import find_packages
from hps.doctor.processor import find_processor


def examine(folder: Path | None, seconds: float) -> list[Finding]:
    """All findings, in the order in which they are shown.

    Args:
        folder: whose disk is measured; None: no disk is.
        seconds: that the measurement of the disk takes, about.
    """
    findings = [*find_processor(), *find_memory(), *find_disk(folder, seconds)]
    return [*findings, *find_device(), *find_packages()]
