"""Builds hps._C: one CMake project, driven by setuptools' build_ext."""

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


def drop_stale_cache(build_dir: Path) -> None:
    """Removes a CMake cache that names a tool which is gone (pip's isolated builds leave such)."""
    cache = build_dir / "CMakeCache.txt"
    if not cache.exists():
        return
    for line in cache.read_text().splitlines():
        name, _, value = line.partition("=")
        is_tool = name.startswith(("CMAKE_MAKE_PROGRAM:", "nanobind_DIR:", "Python_EXECUTABLE:"))
        if is_tool and not Path(value).exists():
            cache.unlink()
            return


class CMakeBuild(build_ext):
    """Configures and builds the CMake project, then lets setuptools place the module."""

    def build_extension(self, ext: Extension) -> None:
        import nanobind

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build_dir = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
        build_dir.mkdir(parents=True, exist_ok=True)
        drop_stale_cache(build_dir)
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={nanobind.cmake_dir()}",
            f"-DHPS_MODULE_DIR={target.parent}",
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
        for pattern in ("docs/**/*.md", "proto/**/*.proto"):
            for page in ROOT.glob(pattern):
                target = Path(self.build_lib) / "hps" / page.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page, target)


setup(
    ext_modules=[Extension("hps._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildWithPages},
)
