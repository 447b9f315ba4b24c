"""What `hps doctor` finds: on this machine, and on others by their files of /proc and /sys.

Above it: pytest. Below it: hps/doctor, hps/cli/doctor.py.
"""

import errno
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hps import _C
from hps.cli.main import main
from hps.common.control_group import core_limit, memory_limit
from hps.config import num_cores
from hps.doctor import disk, disk_rates, packages, processor, versions
from hps.doctor.device import find_device
from hps.doctor.disk import file_system_of, find_disk
from hps.doctor.disk_rates import measure
from hps.doctor.finding import NOTE, OK, PROBLEM, Finding
from hps.doctor.memory import find_memory
from hps.doctor.packages import find_packages
from hps.doctor.processor import find_processor


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def named(findings: list[Finding], name: str) -> Finding:
    return next(one for one in findings if one.name == name)


MEMINFO = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
V2 = "0::/user.slice/train.scope\n"


def test_memory_is_that_of_the_control_group_or_of_one_above_it(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": V2,
            "sys/fs/cgroup/user.slice/train.scope/memory.max": "max",
            "sys/fs/cgroup/user.slice/memory.max": str(2**30),
        },
    )
    found = named(find_memory(root), "memory")
    assert found.figures == {
        "total_bytes": 2**34,
        "available_bytes": 2**33,
        "limit_bytes": 2**30,
    }
    assert "716MiB" in found.use and "1.0 GiB for this control group" in found.found


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    root = lay(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": V2})
    found = named(find_memory(root), "memory")
    assert found.figures["limit_bytes"] is None and "11468MiB" in found.use
    # cgroup v1 writes a number that is none.
    lay(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})
    assert memory_limit(root) is None
    lay(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"})
    assert memory_limit(root) == 4096


def test_cores_whose_time_is_limited_get_a_note(tmp_path: Path) -> None:
    root = lay(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000"})
    found = named(find_processor(root), "cores")
    assert found.state == NOTE and found.figures["cores_of_control_group"] == 0.5
    assert found.figures["cores"] == 1 and found.use.startswith("1 thread(s)")
    lay(root, {"sys/fs/cgroup/cpu.max": "max 100000"})
    found = named(find_processor(root), "cores")
    assert found.state == OK and found.figures["cores"] == num_cores()
    v1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
    lay(root, {f"sys/fs/cgroup/cpu/{name}": text for name, text in v1.items()})
    assert core_limit(root) == 1.5


@pytest.mark.parametrize(
    ("text", "state"),
    [("always [madvise] never", OK), ("[always] madvise never", OK), ("always [never]", NOTE)],
)
def test_huge_pages_that_the_kernel_withholds_get_a_note(
    text: str, state: str, tmp_path: Path
) -> None:
    root = lay(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    found = named(find_memory(root), "huge pages")
    assert found.state == state and (state == OK) == ("madvise >" not in found.use)


def test_instruction_sets_are_those_that_the_core_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = named(find_processor(), "instruction sets")
    flags = Path("/proc/cpuinfo").read_text()
    assert ("avx2" in found.found) == (" avx2 " in flags)
    assert found.figures["chosen"] == _C.instruction_sets()[0] and found.found.endswith("plain")
    poor = SimpleNamespace(instruction_sets=lambda: ["plain"])
    monkeypatch.setattr(processor, "_C", poor)
    assert named(find_processor(), "instruction sets").state == NOTE


def test_a_refused_io_uring_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_C", SimpleNamespace(uses_io_uring=lambda: False))
    found = find_disk(None, 1.0, lay(tmp_path, {"proc/sys/kernel/io_uring_disabled": "2"}))
    assert found[0].state == NOTE and "io_uring_disabled is 2" in found[0].use


def test_a_disk_is_measured_in_its_time_and_nothing_stays(tmp_path: Path) -> None:
    before = threading.active_count()
    rates = measure(tmp_path, 0.3)
    assert rates.written > 0 and rates.read > 0 and rates.small_reads > 0
    assert 0 < rates.small_read_us < 1e6 and rates.seconds < 30
    assert not list(tmp_path.iterdir()) and threading.active_count() == before


def test_nothing_stays_where_a_file_must_have_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return real(path, flags, mode)

    monkeypatch.setattr(disk_rates.os, "open", refuse)
    rates = measure(tmp_path, 0.2)
    assert not rates.is_direct and rates.read > 0
    assert not list(tmp_path.iterdir())


def test_what_fails_in_a_reading_thread_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def fail(reader: int, buffers: list[memoryview], place: int) -> int:
        if len(buffers[0]) == 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(reader, buffers, place)

    monkeypatch.setattr(disk_rates.os, "preadv", fail)
    found = named(find_disk(tmp_path, 0.2), "folder")
    assert found.state == PROBLEM and "Input/output error" in found.use


def test_a_disk_without_room_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_bavail=100, f_frsize=4096)
    monkeypatch.setattr(disk_rates.os, "statvfs", lambda _: full)
    found = named(find_disk(tmp_path, 0.2), "folder")
    assert found.state == PROBLEM and "No space left" in found.use


def test_the_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    mounts = (
        "24 23 0:9 / /data/my\\040ram rw shared:1 - tmpfs tmpfs rw\n"
        "23 22 8:2 / /data rw - xfs /dev/sdb rw\n"
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
    )
    root = lay(tmp_path, {"proc/self/mountinfo": mounts})
    assert file_system_of(Path("/data/my ram/store"), root) == "tmpfs"
    assert file_system_of(Path("/data"), root) == "xfs"
    assert file_system_of(Path("/database"), root) == "ext4"


def test_a_driver_without_cupy_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [one.found for one in find_device(tmp_path)] == ["none"]
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n"
    root = lay(tmp_path, {"proc/driver/nvidia/version": line})
    monkeypatch.setattr("hps.doctor.device.version_of", lambda *names: None)
    found = find_device(root)
    assert found[0].figures["driver"] == "580.65.06"
    for name in ("GPU", "CuPy", "NVRTC"):
        assert named(found, name).state == NOTE and "hps-ctr[cuda]" in named(found, name).use


def fake_cupy(count: int, error: type[Exception] | None = None) -> SimpleNamespace:
    def num_devices() -> int:
        if error is not None:
            raise error("no device")
        return count

    about = {"name": b"GPU Model", "totalGlobalMem": 80 * 2**30, "major": 9, "minor": 0}
    runtime = SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        getDeviceCount=num_devices,
        getDeviceProperties=lambda number: about,
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    ("cupy", "state", "said"),
    [
        (fake_cupy(2), OK, "GPU Model, 80 GiB, sm_90; GPU Model, 80 GiB, sm_90; driver 580.65"),
        (fake_cupy(0), NOTE, "CUDA_VISIBLE_DEVICES"),
        (fake_cupy(1, RuntimeError), PROBLEM, "CUDA refuses it, so --gpu does not work"),
    ],
)
def test_gpus_are_told_as_cupy_sees_them(
    cupy: SimpleNamespace, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy is a stand-in here: no test has seen a real one."""
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n"
    root = lay(tmp_path, {"proc/driver/nvidia/version": line})
    monkeypatch.setattr("hps.doctor.device.version_of", lambda *names: "13.6")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    found = named(find_device(root), "GPU")
    assert found.state == state and said in f"{found.found} {found.use}"


def test_a_package_that_hps_needs_and_that_is_old_or_missing_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not [one for one in find_packages() if one.state != OK]
    there = {"numpy": "1.25.0", "torch": "2.0.0"}
    monkeypatch.setattr(packages, "version_of", lambda *names: there.get(names[0]))
    found = {one.name: one for one in find_packages()}
    assert found["numpy"].state == PROBLEM and "needs 1.26" in found["numpy"].use
    assert found["grpcio"].state == PROBLEM  # which the core asks for, and which is not there
    assert found["torch"].state == NOTE and "pip install 'hps-ctr[train]'" in found["torch"].use
    assert found["rich"].state == OK and "'hps-ctr[terminal]'" in found["rich"].use


def test_every_package_that_is_told_of_is_one_that_hps_asks_for() -> None:
    assert set(packages._USES) <= set(versions.wanted())


def test_the_command_tells_all_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(tmp_path), "--seconds", "0.2", "--json", "-"]) == 0
    said = capsys.readouterr()
    listed = json.loads(said.out)
    names = [one["name"] for one in listed["findings"]]
    for name in ("cores", "memory", "huge pages", "io_uring", "direct I/O", "writes", "GPU"):
        assert name in names and name in said.err
    assert listed["problems"] == 0 and "0 problem(s)" in said.err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "no-such-folder"]) == 1
    said = capsys.readouterr().out
    assert "No such file or directory" in said and "1 problem(s)" in said
