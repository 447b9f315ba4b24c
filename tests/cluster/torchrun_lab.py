"""`hps train` under the real torchrun, in which chosen ranks are killed at chosen steps.

Above it: tests/cluster/test_rank_training.py, tests/torture/rank_kills.py. Below it: torchrun,
`hps.cli.main`. Run as a program it is one rank.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster.rank_nursery import ROOT, kill_after
from tests.ports import HeldPort

KILLS = "HPS_TEST_KILLS"
KILLED = "killed, as planned"
Kill = tuple[int, int]  # a rank, and the steps after which it is killed


def run_torchrun(
    words: Sequence[str], size: int, kills: Sequence[Kill], flags: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Trains on `size` ranks of this host; each attempt but the last ends with a kill.

    Args:
        words: of the command line, after `hps`.
        size: ranks.
        kills: one an attempt. Where it comes, standard error has the line that `KILLED` begins.
        flags: of torchrun, besides.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    command += ["--max-restarts", str(len(kills)), "--monitor-interval", "0.1"]
    with HeldPort() as port:
        command += flags or ["--master-port", str(port.number)]
        return subprocess.run(
            [*command, "-m", "tests.cluster.torchrun_lab", *words],
            cwd=ROOT,
            env={**os.environ, KILLS: json.dumps(list(kills))},
            capture_output=True,
            text=True,
            timeout=400 + 60 * len(kills),
            check=False,
        )


def stop_torchrun(
    words: Sequence[str], size: int, kills: Sequence[Kill], number: int
) -> tuple[int, str, str]:
    """As run_torchrun, of a training that does not end by itself: once rank 0 of the last attempt
    has told of some batches, torchrun gets a signal.

    Returns:
        Its exit status, standard output and error.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    command += ["--max-restarts", str(len(kills)), "--monitor-interval", "0.1"]
    with HeldPort() as port:
        command += ["--master-port", str(port.number), "-m", "tests.cluster.torchrun_lab", *words]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, KILLS: json.dumps(list(kills))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            said = ""
            for awaited in [*[KILLED] * len(kills), " examples "]:
                line = next((line for line in process.stderr if awaited in line), "")
                assert line, f"no rank has said {awaited!r}"
                said += line
            process.send_signal(number)
            out, err = process.communicate(timeout=240)
    return process.returncode, out, said + err


def main() -> int:
    """One rank."""
    from hps.cli.main import main as run_command
    from hps.train.trainer import Trainer

    kills = json.loads(os.environ[KILLS])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < len(kills) and int(os.environ["RANK"]) == kills[attempt][0]:
        kill_after(Trainer, kills[attempt][1], f"{KILLED}, in attempt {attempt}")
    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
