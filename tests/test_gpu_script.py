"""tools/gpu.sh: every part is tried, told in one line, and counted in the exit status.

Above it: pytest. Below it: tools/gpu.sh, with programs of a machine with a GPU that are not those.
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch

PARTS = ("build", "tests", "steps", "verbs", "memcheck", "racecheck", "synccheck", "initcheck")
_SCRIPT = Path(__file__).parents[1] / "tools" / "gpu.sh"
# A Python that sees a GPU; what it is asked to run fails where its words have $FAILS in them.
_PYTHON = """#!/bin/bash
case "$*" in
  *getDeviceCount*) exit 0 ;;
  *getsitepackages*) exit 0 ;;
  *"$FAILS"*) echo "a part that fails"; exit 3 ;;
  *"$SLEEPS"*) sleep 60 ;;
esac
echo "ran $*"
"""
_SANITIZER = """#!/bin/bash
while [ "$1" != "$PYTHON" ]; do shift; done
exec "$@"
"""


def run(folder: Path, *, has_sanitizer: bool, **more: str) -> tuple[int, dict[str, str], str]:
    """Exit status, the summary by part, and what was printed."""
    programs = folder / "bin"
    programs.mkdir()
    texts = {"python": _PYTHON, "cmake": "#!/bin/bash\necho built\n"}
    if has_sanitizer:
        texts["compute-sanitizer"] = _SANITIZER
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = os.environ | {
        "PYTHON": str(programs / "python"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OUT": str(folder / "out"),
        "FAILS": "nothing fails",
        "SLEEPS": "nothing sleeps",
    }
    done = subprocess.run(
        ["bash", str(_SCRIPT)],
        env=environment | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = (folder / "out" / "summary.txt").read_text().splitlines()
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert tuple(found) == PARTS
    return done.returncode, found, done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which the script finds")
def test_without_a_gpu_each_part_says_so(tmp_path: Path) -> None:
    blind = tmp_path / "python"
    blind.write_text("#!/bin/bash\nexit 1\n")
    blind.chmod(0o755)
    status, found, text = run(
        tmp_path, has_sanitizer=True, PYTHON=str(blind), PATH=f"/usr/bin:/bin:{tmp_path}"
    )
    assert status == 2
    assert set(found.values()) == {"not run: no GPU"}
    assert [text.count(f"gpu: {part} ") for part in PARTS] == [1] * len(PARTS)


def test_all_parts_that_go_well_are_status_0(tmp_path: Path) -> None:
    status, found, _ = run(tmp_path, has_sanitizer=True)
    assert status == 0 and all(line.startswith("ok") for line in found.values()), found
    log = (tmp_path / "out" / "initcheck.log").read_text()
    assert "ran -m pytest" in log and "memcheck" in log


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    status, found, text = run(tmp_path, has_sanitizer=False, FAILS="pipeline_steps")
    assert status == 1 and found.pop("steps").endswith("(exit 3)") and "a part that fails" in text
    tools = [found.pop(tool) for tool in PARTS[4:]]
    assert set(tools) == {"not run: no compute-sanitizer was found"}
    assert all(line.startswith("ok") for line in found.values()), found


def test_a_part_that_takes_too_long_is_ended_and_the_rest_told(tmp_path: Path) -> None:
    status, found, _ = run(tmp_path, has_sanitizer=True, SLEEPS="pipeline_steps", BUDGET="10")
    assert status == 1 and "took too long" in found["steps"]
    assert found["build"].startswith("ok")
    assert all("no time is left" in found[part] for part in PARTS[3:]), found
