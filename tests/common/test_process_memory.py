"""Freed memory is kept, as page faults show; what the environment says stands.

Above it: pytest. Below it: hps/common/process_memory.py, glibc.
"""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")

ROUNDS, BLOCKS, BLOCK_BYTES = 10, 5, 16 * 2**20
# By itself glibc learns to keep twice the largest block that was freed: two of these five.
CODE = f"""
import resource, sys
import numpy as np
from hps.common.process_memory import keep_freed_memory
from hps.config import is_malloc_set

if not is_malloc_set():
    keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for round in range(1 + {ROUNDS}):
    if round == 1:
        before = faults()
    del [np.ones({BLOCK_BYTES}, np.uint8) for _ in range({BLOCKS})][:]
print(faults() - before)
"""
PAGES_OF_ALL = ROUNDS * BLOCKS * BLOCK_BYTES // os.sysconf("SC_PAGE_SIZE")


def page_faults(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


def test_blocks_that_were_freed_are_taken_again_without_a_page_fault() -> None:
    assert page_faults() < PAGES_OF_ALL / 512 / ROUNDS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", str(2**20)),
        ("GLIBC_TUNABLES", f"glibc.malloc.mmap_threshold={2**20}"),
    ],
)
def test_what_the_environment_says_stands(name: str, value: str) -> None:
    """Blocks above a threshold that is said are mapped each time."""
    assert page_faults(**{name: value}) > 0.9 * PAGES_OF_ALL / 512  # which may be huge
