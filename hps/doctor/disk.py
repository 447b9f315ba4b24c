"""io_uring, and the file system and the disk behind a folder, measured for a second or two.

Above it: `hps.doctor.examine`. Below it: disk_rates.py, hps._C, the system's calls for files.
"""

import os
from pathlib import Path

from hps import _C
from hps.common.kernel_files import read_text
from hps.doctor.disk_rates import Rates, measure
from hps.doctor.finding import NOTE, OK, PROBLEM, Figures, Finding

_IN_MEMORY = ("tmpfs", "ramfs")
_ON_NETWORK = ("nfs", "nfs4", "cifs", "fuse", "9p", "ceph", "lustre")


def find_disk(folder: Path | None, seconds: float, root: Path = Path("/")) -> list[Finding]:
    """io_uring; of the folder, if one is given, its file system, direct I/O and rates."""
    findings = [_io_uring(root)]
    if folder is None:
        use = "no disk was measured: name the folder of a store to come, as hps doctor DIR"
        return [*findings, Finding("disk", "folder", "none given", use, OK, {})]
    try:
        rates = measure(folder, seconds)
    except OSError as error:
        use = f"a store cannot lie there: {error.strerror}; name a folder that may be written to"
        return [*findings, Finding("disk", "folder", str(folder), use, PROBLEM, {})]
    return [*findings, _folder(folder, root), _direct_io(rates), *_rates(rates)]


def _io_uring(root: Path) -> Finding:
    if _C.uses_io_uring():
        use = "batches of rows are read by it, many reads under way at once"
        return Finding("disk", "io_uring", "granted", use, OK, {"is_granted": True})
    setting = read_text(root / "proc/sys/kernel/io_uring_disabled")
    why = "the kernel lacks it" if setting is None else f"io_uring_disabled is {setting}"
    if setting == "0":
        why = "a container's rules forbid it, or there is no memory to lock"
    use = f"rows are read by threads instead, with more processor time a read ({why})"
    return Finding("disk", "io_uring", "refused", use, NOTE, {"is_granted": False})


def file_system_of(folder: Path, root: Path = Path("/")) -> str:
    """The type of the file system that a folder lies on, as the kernel names it; else "unknown"."""
    best, kind = "", "unknown"
    path = str(folder.resolve())
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace(r"\040", " ")
        inside = path == place or path.startswith(f"{place.rstrip('/')}/")
        if inside and len(place) >= len(best):
            best, kind = place, after.split()[0]
    return kind


def _folder(folder: Path, root: Path) -> Finding:
    kind = file_system_of(folder, root)
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    found = f"{kind}, {free / 2**30:.1f} GiB free"
    state, use = OK, "a store's files grow to twice the live rows and what kept checkpoints hold"
    if kind in _IN_MEMORY:
        state, use = NOTE, "a store there takes memory, and is gone when the machine stops"
    elif kind.split(".")[0] in _ON_NETWORK:
        state, use = (
            NOTE,
            "a store there waits for the network, whose locks may not hold "
            "(docs/reliability.md): a disk of this machine is better",
        )
    figures: Figures = {"file_system": kind, "free_bytes": free}
    return Finding("disk", "folder", found, use, state, figures)


def _direct_io(rates: Rates) -> Finding:
    figures: Figures = {"is_possible": rates.is_direct}
    if rates.is_direct:
        use = "taken if SsdStoreConfig(direct_io=True) asks for it; else the page cache is used"
        return Finding("disk", "direct I/O", "possible", use, OK, figures)
    use = "SsdStoreConfig(direct_io=True) would be refused here; the rates are of the page cache"
    return Finding("disk", "direct I/O", "refused", use, NOTE, figures)


def _rates(rates: Rates) -> list[Finding]:
    numbers: Figures = {
        "written_bytes_per_second": rates.written,
        "read_bytes_per_second": rates.read,
        "reads_of_4_kib_per_second": rates.small_reads,
        "read_of_4_kib_median_us": rates.small_read_us,
        "measured_seconds": rates.seconds,
    }
    writes = Finding(
        "disk", "writes", f"{rates.written / 1e6:,.0f} MB/s, synced",
        "rows that leave memory, and checkpoints, are appended", OK, numbers,
    )  # fmt: skip
    reads = Finding(
        "disk", "reads", f"{rates.read / 1e6:,.0f} MB/s; {rates.small_reads:,.0f} of 4 KiB a "
        f"second, {rates.small_read_us:,.0f} us each",
        "a batch's missing rows are read beside training: about this many rows a second, as far "
        "as threads of Python measure it", OK, numbers,
    )  # fmt: skip
    return [writes, reads]
