"""Builds hps._C: one CMake project, driven by setuptools' build_ext; packs pages beside it.

Above it: pip, tools/bootstrap.sh, tools/wheels.sh. Below it: CMakeLists.txt. Read from the
environment: HPS_CMAKE_ARGS (more arguments for CMake), HPS_BUILD_DIR (CMake's folder, which
wheels for several Pythons share, so that the core is compiled once), HPS_BUILT_MODULE (a module
that is built already and is packed as it is).
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
# From Python 3.12 on one module serves all newer ones; free-threaded ones have no such ABI.
IS_STABLE = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
# Where man and the shells look, below the folder that a wheel is installed to.
SHARED = {
    "share/man/man1": "man/*.1",
    "share/bash-completion/completions": "completions/hps",
    "share/zsh/site-functions": "completions/_hps",
}


def drop_stale_cache(build_dir: Path) -> None:
    """Removes a CMake cache that names a tool which is gone (pip's isolated builds leave such), or
    another Python. Objects stay: those of the core do not depend on Python."""
    cache = build_dir / "CMakeCache.txt"
    if not cache.exists():
        return
    for line in cache.read_text().splitlines():
        name, _, value = line.partition("=")
        is_tool = name.startswith(("CMAKE_MAKE_PROGRAM:", "nanobind_DIR:", "Python_EXECUTABLE:"))
        is_other = name.startswith("Python_EXECUTABLE:") and value != sys.executable
        if is_tool and (is_other or not Path(value).exists()):
            cache.unlink()
            return


class CMakeBuild(build_ext):
    """Configures and builds the CMake project, then lets setuptools place the module."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        if built := os.environ.get("HPS_BUILT_MODULE"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built, target)
            return
        import nanobind

        own = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
        build_dir = Path(os.environ.get("HPS_BUILD_DIR") or own)
        build_dir.mkdir(parents=True, exist_ok=True)
        drop_stale_cache(build_dir)
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={nanobind.cmake_dir()}",
            f"-DHPS_MODULE_DIR={target.parent}",
            f"-DHPS_STABLE_ABI={'ON' if ext.py_limited_api else 'OFF'}",
            *os.environ.get("HPS_CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build_dir), "--target", "_C"], check=True)


class BuildWithPages(build_py):
    """Copies the packages, and beside them the pages and the .proto that help and messages name."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout has them
        for pattern in ("docs/**/*.md", "docs/**/*.svg", "proto/**/*.proto"):
            for page in ROOT.glob(pattern):
                target = Path(self.build_lib) / "hps" / page.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page, target)


setup(
    ext_modules=[Extension("hps._C", sources=[], py_limited_api=IS_STABLE)],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildWithPages},
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if IS_STABLE else {},
    # `make pages` has made them; a build of a checkout without them packs none.
    data_files=[
        (folder, sorted(page.relative_to(ROOT).as_posix() for page in found))
        for folder, pattern in SHARED.items()
        if (found := list(ROOT.glob(pattern)))
    ],
)
