"""Every GPU kernel compiles for three generations of devices, without a GPU and without headers.

Above it: pytest. Below it: compilers.py (NVRTC of the development environment, or nvcc).
"""

import dataclasses
import re
from pathlib import Path

import pytest

from hps.gpu_cache.kernels import KernelArgs, compile_kernels
from tests.gpu_cache.compilers import CompileError, Resources, find_compilers, read_report
from tests.gpu_cache.kernel_resources import ARCHITECTURES, differences, read_record

COMPILERS = find_compilers()
# Each takes eight seconds; a kernel that is changed is compiled for all by kernel_resources.py.
SHORT = "sm_90"
SOME = [
    architecture if architecture == SHORT else pytest.param(architecture, marks=pytest.mark.long)
    for architecture in ARCHITECTURES
]
# What would make rows differ from the host's in their last bits.
INEXACT = re.compile(r"\b(?:fma|mad)\.\w*\.?f32|\.ftz\b|\.approx\b|div\.full")
needs_compiler = pytest.mark.skipif(
    not COMPILERS, reason="neither the package nvidia-cuda-nvrtc nor nvcc is here"
)


@needs_compiler
@pytest.mark.parametrize("architecture", SOME)
def test_kernels_compile_exactly_without_local_memory_in_the_registers_recorded(
    architecture: str,
) -> None:
    args = KernelArgs()
    compiled = COMPILERS[0].compile(args.source(), architecture)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.resources.keys() == args.lanes.keys()
    assert differences(read_record()[architecture], compiled.resources) == []
    assert INEXACT.findall(compiled.ptx) == []
    assert "sqrt.rn.f32" in compiled.ptx and "div.rn.f32" in compiled.ptx


@needs_compiler
def test_contracted_and_approximate_arithmetic_would_be_seen() -> None:
    source = """
extern "C" __global__ void inexact(float* x) {
  x[0] = x[1] * x[2] + x[3];
  x[4] = __fdividef(x[5], x[6]);
}
"""
    compiler = type(COMPILERS[0]).__new__(type(COMPILERS[0]))
    compiler.__dict__.update(COMPILERS[0].__dict__, options=("-std=c++17",))
    assert len(INEXACT.findall(compiler.compile(source, ARCHITECTURES[0]).ptx)) == 2


@needs_compiler
def test_a_field_at_another_place_does_not_compile() -> None:
    source = KernelArgs().source()
    check = source.rstrip().splitlines()[-1]
    offset = int(re.fullmatch(r"static_assert\(.* == (\d+)\);", check)[1])
    moved = source.replace(check, check.replace(f"== {offset})", f"== {offset + 8})"))
    assert moved != source
    with pytest.raises(CompileError, match=r"static assertion|static_assert"):
        COMPILERS[0].compile(moved, ARCHITECTURES[0])


@needs_compiler
def test_a_spilling_kernel_is_seen() -> None:
    """A run-time index into a local array needs a stack; the report and the rule must say so."""
    source = """
extern "C" __global__ void local_array(float* values, const int* idx, int count) {
  float copies[64];
  for (int i = 0; i < 64; ++i) copies[i] = values[i * count];
  for (int i = 0; i < count; ++i) copies[idx[i]] *= 2.0f;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += copies[i];
  values[threadIdx.x] = sum;
}
"""
    compiled = COMPILERS[0].compile(source, ARCHITECTURES[1])
    assert compiled.resources["local_array"].stack_bytes == 256
    registers = compiled.resources["local_array"].registers
    assert "stack" in differences({"local_array": registers}, compiled.resources)[0]


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_benchmarks_kernel_compiles_without_local_memory(architecture: str) -> None:
    text = (Path(__file__).parents[2] / "benchmarks" / "gpu_cache" / "ceiling.cu").read_text()
    kernel = COMPILERS[0].compile(text, architecture).resources["read_pieces"]
    assert kernel.registers <= 32, "fewer threads than fit would not reach the ceiling"
    assert kernel.stack_bytes == kernel.spill_bytes == 0


def test_the_record_is_held_against_the_build() -> None:
    kernel = Resources(registers=32, stack_bytes=0, spill_bytes=0)
    build = {"find": kernel}
    assert differences({"find": 25}, build) == []
    assert "takes 32 registers" in differences({"find": 24}, build)[0]
    assert "takes 32 registers" in differences({"find": 33}, build)[0]
    assert "not in the record" in differences({}, build)[0]
    assert "not in the build" in differences({"find": 32}, {})[0]
    assert (
        "spilled"
        in differences({"find": 32}, {"find": dataclasses.replace(kernel, spill_bytes=4)})[0]
    )


def test_reports_are_read_kernel_by_kernel() -> None:
    log = """
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas         .     256 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
    assert read_report(log) == {"first": Resources(32, 256, 12), "second": Resources(8, 0, 0)}


def test_cupys_door_to_nvrtc_compiles_the_kernels() -> None:
    """What a machine with a GPU does at first use; this part of it needs no driver."""
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
    code = compile_kernels(nvrtc, KernelArgs().source(), "sm_90")
    assert code[:4] == b"\x7fELF"
