"""An environment with a wheel of hps in it and nothing else of this checkout, and no compiler.

Above it: test_wheel.py, test_wheels.py. Below it: venv, pip.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


class Bare:
    """A virtual environment whose programs see no other folder of programs.

    Args:
        folder: where it is made.
        python: its interpreter.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"

    def install(self, *words: str) -> None:
        """Installs by the pip of these tests."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-qq"]
        subprocess.run([*pip, "--disable-pip-version-check", *words], check=True)

    def borrow_packages(self) -> None:
        """Lets it import the packages of these tests, after its own. What an editable checkout
        adds to them is not read: it is found by a file that only their own environment reads."""
        script = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = Path(self.run("python", "-c", script).strip())
        (own / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def run(self, program: str, *words: str | Path, folder: Path | None = None) -> str:
        """What a program of it prints; fails with all it said where it fails."""
        done = subprocess.run(
            [self.folder / "bin" / program, *words],
            cwd=folder or self.folder,
            env={"PATH": str(self.folder / "bin"), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{program} {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def has_program(self, name: str) -> bool:
        """True if a program of this name is found where `run` looks."""
        return os.access(self.folder / "bin" / name, os.X_OK)


def train_and_look(bare: Bare, folder: Path) -> None:
    """A small training, its checkpoint, its figures, by the command alone."""
    bare.run("hps", "generate", "log.tsv", "--examples", "3000", "--keys", "300", folder=folder)
    words = ["--model", "fm", "--dim", "8", "--dram", "16MiB", "--tag", "day-1"]
    bare.run("hps", "train", "log.tsv", "--store", "ctr", *words, folder=folder)
    assert "day-1" in bare.run("hps", "checkpoints", "ctr", folder=folder)
    assert "features" in bare.run("hps", "stats", "ctr", folder=folder)
    bare.run("hps", "verify", "ctr", folder=folder)
    assert "auc" in bare.run("hps", "evaluate", "log.tsv", "--store", "ctr", folder=folder).lower()


ROWS = """
import sys
import numpy as np
import hps
keys = np.arange(5000, dtype=np.uint64)
digests = set()
for name in sys.argv[1:]:
    tables = [hps.TableConfig(name="ads", dim=16, optimizer=hps.Adagrad(lr=0.05))]
    config = hps.Config(path=f"rows-{name}", tables=tables, instruction_set=name)
    with hps.ParameterServer(config) as server:
        for step in range(5):
            rows = server.pull("ads", keys[: 1000 * (step + 1)])
            server.push("ads", keys[: 1000 * (step + 1)], rows - np.float32(0.5))
        server.checkpoint(tag="day-1")
        digests.add(str(server.digest("ads")))
    with hps.open(f"rows-{name}", read_only=True, checkpoint="day-1") as reader:
        assert reader.num_rows("ads") == 5000
assert len(digests) == 1, digests
print(hps.__file__)
"""


def rows_are_equal(bare: Bare, folder: Path) -> str:
    """Trains rows by each instruction set that the module takes here; the bits must be equal.
    Returns where hps lies."""
    sets = "from hps import _C; print(*_C.instruction_sets())"
    found = bare.run("python", "-c", sets).split()
    assert found[-1] == "plain"
    return bare.run("python", "-c", ROWS, *found, folder=folder).strip()
