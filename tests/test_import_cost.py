"""`import hps` is quick and loads nothing heavy, nor does the command's help.

Above it: pytest. Below it: hps/__init__.py, hps/cli/main.py.
"""

import resource
import subprocess
import sys

import pytest

MOST_SECONDS = 0.3  # of a processor, with Python's own start
HEAVY = ("numpy", "torch", "grpc", "google.protobuf", "pyarrow", "rich", "hps._C")


def processor_seconds(code: str) -> float:
    """Of one process that runs the code: a busy machine does not change it much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_import_takes_less_than_the_page_says() -> None:
    assert min(processor_seconds("import hps") for _ in range(5)) < MOST_SECONDS


def test_the_overview_of_the_command_takes_less_than_that() -> None:
    code = "from hps.cli.main import main; main(['--help'])"
    assert min(processor_seconds(code) for _ in range(5)) < MOST_SECONDS


@pytest.mark.parametrize("code", ["import hps", "import hps; hps.ConfigError; dir(hps)"])
def test_import_loads_nothing_heavy(code: str) -> None:
    script = f"import sys; {code}; print(*[name for name in {HEAVY} if name in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == []
