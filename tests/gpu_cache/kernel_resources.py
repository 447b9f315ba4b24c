"""The registers that each GPU kernel takes, as committed in kernel_resources.json, and as compiled.

`python -m tests.gpu_cache.kernel_resources` writes the file anew. Above it: test_kernel_compile.py.
Below it: compilers.py.

A multiprocessor hands out registers to a thread in steps of eight, so only a change of the count
rounded up to eight changes how many threads fit; that is the tolerance. It also spans the small
differences between NVRTC's and nvcc's front ends. Local memory has no tolerance: no kernel may have
a stack or spill, on any architecture.
"""

import json
from pathlib import Path
from typing import Any

from hps.gpu_cache.kernels import KernelArgs
from tests.gpu_cache.compilers import Resources, find_compilers

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
RECORD = Path(__file__).with_name("kernel_resources.json")
RENEW = "renew it with: python -m tests.gpu_cache.kernel_resources"
_STEP = 8


def differences(record: dict[str, int], compiled: dict[str, Resources]) -> list[str]:
    """What speaks against a build, one line a kernel; `record` is registers by kernel."""
    lines = []
    for name in sorted(record.keys() | compiled.keys()):
        if name not in compiled or name not in record:
            where = "the record" if name not in record else "the build"
            lines.append(f"{name} is not in {where}; {RENEW}")
            continue
        now = compiled[name]
        if now.stack_bytes or now.spill_bytes:
            lines.append(
                f"{name} uses local memory: {now.stack_bytes} bytes of stack, {now.spill_bytes} "
                "spilled; index no local array by a run-time value, keep fewer values at once"
            )
        if -(-now.registers // _STEP) != -(-record[name] // _STEP):
            lines.append(
                f"{name} takes {now.registers} registers, recorded are {record[name]}; if that is "
                f"meant, {RENEW}"
            )
    return lines


def read_record() -> dict[str, dict[str, int]]:
    """Registers by architecture and kernel."""
    record: dict[str, dict[str, int]] = json.loads(RECORD.read_text())
    return record


def main() -> None:
    """Writes the record by the first compiler at hand."""
    compiler: Any = find_compilers()[0]
    source = KernelArgs().source()
    record = {}
    for architecture in ARCHITECTURES:
        resources = compiler.compile(source, architecture).resources
        record[architecture] = {name: resources[name].registers for name in sorted(resources)}
        for name, one in sorted(resources.items()):
            print(f"{architecture} {name}: {one}")
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
