"""A wheel of this checkout, made of its sdist, in an environment without a compiler.

Above it: pytest. Below it: setup.py, MANIFEST.in, tools/shell_pages.py. The native module is the
one that these tests run with, packed as it is: `make wheel-test` compiles it of the sdist.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hps import _C
from hps.cli.main import COMMANDS
from tests.packages.bare import Bare, rows_are_equal, train_and_look

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("hps", "csrc", "docs", "proto", "tools")  # folders; and all files of the top


def source_files() -> list[str]:
    """Files of the checkout of which the sdist is made."""
    words = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("no checkout of git: the sdist would be made of what lies here")
    kept = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [name for name in kept if "/" not in name or name.split("/")[0] in PACKED]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], Path]:
    """(names in the sdist, the wheel)."""
    folder = tmp_path_factory.mktemp("wheel")
    tree, unpacked = folder / "tree", folder / "unpacked"
    for name in source_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    python = [sys.executable, "-m"]
    subprocess.run([*python, "tools.shell_pages", str(tree)], cwd=ROOT, check=True)
    build = [*python, "build", "--no-isolation", "--skip-dependency-check", "--outdir", str(folder)]
    subprocess.run([*build, "--sdist", str(tree)], check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(unpacked, filter="data")
    source = next(unpacked.iterdir())
    environment = {"HPS_BUILT_MODULE": str(_C.__file__), "PATH": str(Path(sys.executable).parent)}
    words = [*build, "--wheel", str(source)]
    subprocess.run(words, check=True, env=environment, capture_output=True)
    return names, next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(made: tuple[set[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Bare:
    environment = Bare(tmp_path_factory.mktemp("bare") / "environment")
    environment.install("--no-deps", "--no-index", str(made[1]))
    environment.borrow_packages()
    return environment


def test_the_sdist_has_all_that_the_build_reads(made: tuple[set[str], Path]) -> None:
    names = made[0]
    wanted = {name for name in source_files() if name.startswith(("hps/", "csrc/", "proto/"))}
    wanted |= {"CMakeLists.txt", "setup.py", "pyproject.toml", "tools/embed_kernels.py", "LICENSE"}
    wanted |= {f"man/hps-{command}.1" for command in COMMANDS}
    assert len(wanted) > 300
    assert wanted - names == set()
    assert not [name for name in names if name.startswith(("tests/", "build/")) or ".so" in name]


def test_the_wheel_has_the_pages_the_proto_and_one_module(made: tuple[set[str], Path]) -> None:
    names = set(zipfile.ZipFile(made[1]).namelist())
    assert len([name for name in names if ".so" in name]) == 1
    in_package = {name for name in source_files() if name.startswith(("docs/", "proto/"))}
    wanted = {f"hps/{name}" for name in in_package if name.endswith((".md", ".proto"))}
    wanted |= {name for name in source_files() if name.startswith("hps/") and name.endswith(".py")}
    assert wanted - names == set()
    shared = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert shared == {
        "share/man/man1/hps.1",
        *(f"share/man/man1/hps-{command}.1" for command in COMMANDS),
        "share/bash-completion/completions/hps",
        "share/zsh/site-functions/_hps",
    }
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hps", "hps_ctr"}


def test_it_trains_where_there_is_no_compiler(bare: Bare, tmp_path: Path) -> None:
    assert not any(map(bare.has_program, ("gcc", "g++", "cc", "cmake", "ninja")))
    assert "serve-model" in bare.run("hps", "--help")
    where = rows_are_equal(bare, tmp_path)
    assert Path(where).is_relative_to(bare.folder)
    train_and_look(bare, tmp_path)


def test_its_pages_are_found_beside_it(bare: Bare) -> None:
    said = bare.run("hps", "serve", "--help")
    folder = said.split("docs/ lies in ")[1].strip()
    assert Path(folder).is_relative_to(bare.folder)
    assert (Path(folder) / "docs" / "service.md").is_file()
    assert (Path(folder) / "proto/hps/v1/parameter_server.proto").is_file()
