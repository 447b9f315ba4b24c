"""Memory is taken as it is used: a budget is a limit, not what a process begins with.

Above it: pytest. Below it: a process each, whose peak the system counts.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hps.cli import flags
from tests.logs import write_criteo

MIB = 2**20
PEAK = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
MARKS = 4  # bytes of a slot beside its row

SERVER = """
import sys
import numpy as np
import hps
count, dram = int(sys.argv[1]), sys.argv[2]
table = hps.TableConfig(name="ads", dim=16, optimizer=hps.Adagrad())
config = hps.Config(path=sys.argv[3], tables=[table], dram=hps.DramCacheConfig(bytes=dram))
with hps.ParameterServer(config) as server:
    for first in range(0, count, 8192):
        keys = np.arange(first, min(count, first + 8192), dtype=np.uint64)
        server.push("ads", keys, np.ones((len(keys), 16), np.float32))
    stats = server.stats()["dram_cache"]
    assert stats["rows"] + stats["evictions"] == count and stats["evictions"] < count / 1000 + 1
    assert stats["bytes"] < 1.3 * count * (144 + 4) + 40 * 2**20, stats["bytes"]
"""


def peak_of(code: str, *words: str) -> int:
    """Peak memory of a process that runs `code`, in bytes."""
    command = [sys.executable, "-c", code + PEAK, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize(("count", "dram"), [(8_000, "1GiB"), (8_000, "20GiB"), (400_000, "4GiB")])
def test_memory_of_a_server_follows_its_rows_and_not_its_budget(
    tmp_path: Path, count: int, dram: str
) -> None:
    imported = peak_of("import numpy\nimport hps\nhps.ParameterServer\n")
    peak = peak_of(SERVER, str(count), dram, str(tmp_path / "s"))
    row_bytes = 16 + 2 * 16 * 4 + MARKS
    assert peak - imported < 1.3 * count * row_bytes + 100 * MIB


def test_memory_of_a_training_follows_its_rows_and_not_its_budget(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log.tsv", 2000)
    imported = peak_of("import hps.train\n")
    code = "import sys\nfrom hps.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
    words = ["train", str(log), "--store", str(tmp_path / "s"), "--dram", "8GiB"]
    peak = peak_of(code, *words, "--batch-size", "256", "--progress-seconds", "0")
    assert peak - imported < 400 * MIB  # torch at work takes about a hundred of them


def test_a_budget_beyond_the_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.dram("64MiB") == "64MiB"
    assert capsys.readouterr().err == ""
    assert flags.dram("1024TiB") == "1024TiB"
    assert re.search(
        r"warning: --dram 1024TiB is more than the [\d.]+ GiB of memory here; .*: give less\n",
        capsys.readouterr().err,
    )
