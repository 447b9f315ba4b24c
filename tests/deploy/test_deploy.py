"""What deploy/ starts is what hps takes: its flags are parsed, its files looked at by their tools.

Above it: pytest. Below it: deploy/, docs/deployment.md. No container was run and no job submitted.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hps.cli.main import make_parser
from hps.common.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "hps-serve@.service"


def parsed(words: list[str]) -> Any:
    """What hps makes of the words of a command that begins with its own name."""
    assert words[0].endswith("hps"), words
    return make_parser(words[1]).parse_args(words[1:])


def settings(unit: str) -> dict[str, str]:
    lines = [line for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    program = tmp_path / "hps"
    program.touch(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/hps/bin/hps", str(program)))
    words = [tool, "verify", "--man=no", str(unit)]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 0 and UNIT.stem not in said.stderr, said.stderr
    unit.write_text(unit.read_text().replace("Type=exec", "Type=exec\nRestart=sometimes"))
    assert "restart" in subprocess.run(words, capture_output=True, text=True).stderr


def test_the_unit_starts_a_server() -> None:
    command = settings(UNIT.read_text())["ExecStart"]
    for name, value in (("${HPS_STORE}", "/var/lib/hps/s"), ("${HPS_SHARD}", "0/2")):
        assert name in command
        command = command.replace(name, value)
    given = parsed(shlex.split(command.replace("$HPS_FLAGS", "--dram 1GiB")))
    assert given.command == "serve" and given.shard and str(given.store) == "/var/lib/hps/s"


def test_the_servers_of_kubernetes_are_as_many_as_their_shards() -> None:
    service, servers = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert service["spec"]["clusterIP"] == "None" and servers["kind"] == "StatefulSet"
    assert servers["spec"]["serviceName"] == service["metadata"]["name"]
    pod = servers["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"].endswith(__version__)
    (script,) = container["args"]
    words = shlex.split(script.removeprefix("exec ").replace("${HOSTNAME##*-}", "1"))
    given = parsed(words)
    assert given.shard == parsed(["hps", "serve", "--store", "s", "--shard", "1/2"]).shard
    assert servers["spec"]["replicas"] == 2 and "/2" in script
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    for path in (given.store, given.tls_cert, given.tokens):
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path
    ports = {one["containerPort"] for one in container["ports"]}
    for address in (given.listen, given.metrics):
        assert int(str(address).rpartition(":")[2]) in ports
    assert container["resources"]["limits"].keys() == {"memory"}


def test_the_job_of_slurm_trains() -> None:
    script = (DEPLOY / "train.sbatch").read_text()
    subprocess.run(["bash", "-n", DEPLOY / "train.sbatch"], check=True)
    command = script.split(" -m hps ")[1].replace("\\\n", " ")
    command = re.sub(r'"\$\{HPS_DATA[^"]*"', "log.tsv", command).replace('"$store"', "model")
    given = parsed(["hps", *shlex.split(command)])
    assert given.resume_if_any and given.command == "train"
    options = [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "--signal=TERM@600" in options and "--requeue" in options


def test_the_job_of_slurm_gives_torchrun_what_it_takes(tmp_path: Path) -> None:
    """srun prints its words here, and scontrol the names of two hosts."""
    for name, says in (("srun", 'printf "%s " "$@"'), ("scontrol", "echo n0; echo n1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPS_DATA": "day-1.tsv"}
    environment |= {"SLURM_JOB_NODELIST": "n[0-3]", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "7"}
    said = subprocess.run(
        [DEPLOY / "train.sbatch"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    words = said.split()
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
    assert given.nnodes == "4" and given.rdzv_endpoint == "n0:29400"
    assert given.training_script == "hps" and given.module
    assert given.training_script_args[:2] == ["train", "day-1.tsv"]


def test_the_container_file_is_linted() -> None:
    own = ROOT / "build" / "hadolint" / "bin" / "hadolint"
    tool = shutil.which("hadolint") or (str(own) if own.exists() else None)
    if tool is None:
        pytest.skip("no hadolint: make container-lint installs it")
    said = subprocess.run([tool, DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_the_container_installs_the_wheel_that_make_wheel_makes() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert "hps_ctr-*-cp312-abi3-*.whl" in text
    version = re.search(r"^FROM python:3\.(\d+)-slim-bookworm$", text, re.MULTILINE)
    assert version and int(version[1]) >= 12
    assert f"EXPOSE {50051} 9100" in text
