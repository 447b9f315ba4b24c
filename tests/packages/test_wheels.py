"""What `make wheel` has made, installed with each Python that it is for: `make wheel-test`.

Above it: pytest -m wheel. Below it: dist/, bare.py. Packages come from the registry, as a user's
pip gets them; torch is borrowed where the interpreter is that of these tests, and elsewhere rows
are trained without it. That the sdist builds alone is what tools/wheels.sh does for each wheel.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hps.common.version import __version__
from tests.packages.bare import Bare, rows_are_equal, train_and_look

pytestmark = pytest.mark.wheel
ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
WHEELS = sorted(DIST.glob("*.whl"))
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ALLOWED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}


def python_of(version: str) -> str:
    """An interpreter of a version, as tools/wheels.sh finds it; skips without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), sys.executable]
    found += [str(path) for path in pyenv.glob(f"versions/{version}*/bin/python3")]
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in found:
        if path is None:
            continue
        said = subprocess.run([path, "-c", script], capture_output=True, text=True)
        if said.stdout.strip() == version:
            return path
    pytest.skip(f"no Python {version} on this machine")


def wheel_for(version: str) -> Path:
    tag = "cp311-cp311" if version == "3.11" else "cp312-abi3"
    found = next((path for path in WHEELS if tag in path.name), None)
    if found is None:
        pytest.skip(f"dist/ has no wheel of {tag}: make wheel was told of other PYTHONS")
    return found


def test_each_wheel_is_manylinux_with_nothing_grafted() -> None:
    assert WHEELS, "make wheel"
    for wheel in WHEELS:
        assert f"hps_ctr-{__version__}-" in wheel.name and "manylinux_2_" in wheel.name
        names = zipfile.ZipFile(wheel).namelist()
        assert len([name for name in names if ".so" in name]) == 1  # no libraries beside it
        assert wheel.stat().st_size < 6e6
        said = subprocess.run(
            [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True
        ).stdout
        linked = {word.strip(",;") for word in said.split() if ".so." in word}
        assert linked and linked <= ALLOWED


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_it_works_in_a_bare_environment(version: str, tmp_path: Path) -> None:
    bare = Bare(tmp_path / "environment", python_of(version))
    bare.install(str(wheel_for(version)))
    assert not any(map(bare.has_program, ("gcc", "g++", "cc", "cmake", "ninja")))
    assert "serve-model" in bare.run("hps", "--help")
    assert Path(rows_are_equal(bare, tmp_path)).is_relative_to(bare.folder)
    assert (bare.folder / "share" / "man" / "man1" / "hps-train.1").is_file()
    assert "0 problem(s)" in bare.run("hps", "doctor", str(tmp_path), "--seconds", "0.2")
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        bare.borrow_packages()
        train_and_look(bare, tmp_path)
