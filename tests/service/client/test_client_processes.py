"""A client against `hps serve` as processes: kills and restarts while it pushes, TLS, tokens, CLI.

Above it: pytest. Below it: hps.cli.serve, `hps.RemoteParameterServer`, the README's own commands.
"""

import hashlib
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.errors import RemoteError
from hps.service.client.parameter_server import RemoteParameterServer
from tests.logs import write_criteo
from tests.ports import HeldPort
from tests.service.server.test_server_access import make_certificates
from tests.service.serving import ROOT, Process, process

TABLE = "--table=name=ads,dim=8,optimizer=adagrad,lr=0.05"
ADS = hps.TableConfig(name="ads", dim=8, optimizer=hps.Adagrad(lr=0.05))


class Shards:
    """`hps serve` processes that can be killed and started again on their address."""

    def __init__(self, folder: Path, count: int, *flags: str) -> None:
        self._folder, self._count, self._flags = folder, count, flags
        self._stack = ExitStack()
        self.processes: list[Process] = []

    def __enter__(self) -> "Shards":
        for i in range(self._count):
            port = self._stack.enter_context(HeldPort())
            self.processes.append(self._start(i, port.address))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, i: int, listen: str) -> Process:
        shard = ("--shard", f"{i}/{self._count}")
        flags = (*shard, *self._flags)
        return self._stack.enter_context(process(self._folder / f"shard{i}", *flags, listen=listen))

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.processes]

    def client(self, **options: Any) -> RemoteParameterServer:
        return RemoteParameterServer(self.addresses, "trainer-0", **options)

    def kill(self, i: int) -> None:
        assert self.processes[i].stop(signal.SIGKILL) == -signal.SIGKILL

    def restart(self, i: int) -> None:
        self.processes[i] = self._start(i, self.addresses[i])


def batches(count: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(count)
    return [
        (
            random.integers(0, 400, 300).astype(np.uint64),
            random.normal(size=(300, 8)).astype(np.float32),
        )
        for _ in range(count)
    ]


def local_digest(folder: Path, pushed: list[tuple[Any, Any]]) -> str:
    with hps.ParameterServer(hps.Config(path=folder, tables=[ADS])) as local:
        for keys, grads in pushed:
            local.push("ads", keys, grads)
        return local.digest("ads")


@pytest.mark.parametrize("ack", ["memory", "logged"])
def test_kills_and_restarts_while_pushing_neither_lose_nor_repeat(tmp_path: Path, ack: str) -> None:
    pushed = batches(60)
    with Shards(tmp_path, 2, TABLE) as shards, shards.client(deadline=120) as client:
        done = threading.Event()

        def kill_now_and_then() -> None:
            for i in (0, 1, 0):
                time.sleep(0.3)
                shards.kill(i)
                shards.restart(i)
            done.set()

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        count = 0
        while not done.is_set() or count < 20:
            client.push("ads", *pushed[count % len(pushed)], ack=ack)
            count += 1
        killer.join()
        client.flush()
        digest = client.digest("ads")
        assert client._connections.sessions[0].window.incarnation == 1  # nothing was lost
    sequence = [pushed[i % len(pushed)] for i in range(count)]
    assert digest == local_digest(tmp_path / "local", sequence)


def test_mutual_tls_and_tokens(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    secret = "trainer-secret-0123456789"
    entry = {
        "name": "trainer",
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "tables": {"ads": ["write"]},
        "clients": ["trainer-*"],
    }
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": [entry]}))
    flags = [f"--tls-cert={tmp_path}/server.pem", f"--tls-key={tmp_path}/server.key"]
    flags += [f"--tls-client-ca={tmp_path}/ca.pem", f"--tokens={tmp_path}/tokens.json", TABLE]
    own = {"cert": tmp_path / "client.pem", "key": tmp_path / "client.key"}
    tls = hps.TlsConfig(ca=tmp_path / "ca.pem", **own)
    keys, grads = batches(1)[0]
    with Shards(tmp_path, 2, *flags) as shards:
        with RemoteParameterServer(
            shards.addresses, "trainer-0", token=secret, tls=tls, deadline=120
        ) as client:
            client.push("ads", keys, grads)
            with pytest.raises(RemoteError, match="PERMISSION_DENIED"):
                client.checkpoint("day-1")
        for options, words in (
            ({"token": secret}, "the server talks TLS"),
            ({"token": secret, "tls": hps.TlsConfig(ca=tmp_path / "ca.pem")}, "with a certificate"),
            ({"token": "wrong-secret-0123456789", "tls": tls}, "UNAUTHENTICATED"),
            ({"tls": tls}, "UNAUTHENTICATED"),
        ):
            with pytest.raises(RemoteError, match=words):
                RemoteParameterServer(shards.addresses, "trainer-0", deadline=1.0, **options)
        with RemoteParameterServer(
            shards.addresses, "other", token=secret, tls=tls, deadline=120
        ) as other:
            assert other.pull("ads", keys).any()
            with pytest.raises(RemoteError, match="PERMISSION_DENIED"):
                other.push("ads", keys, grads)
    assert local_digest(tmp_path / "local", [(keys, grads)])


# Page and the words before its commands, and the programs that these call.
PAGES = {
    "README.md": ("**Against servers.**", ["hps", "hps", "hps"]),
    "docs/service.md": ("A certificate for a trial", ["openssl", "hps", "hps"]),
}


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_train_against_servers(
    tmp_path: Path,
    page: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, programs = PAGES[page]
    text = (ROOT / page).read_text().split(before)[1]
    block = text.split("```sh\n")[1].split("```")[0]
    lines = [line for line in block.replace("\\\n", " ").splitlines() if line]
    held = [HeldPort(), HeldPort()]
    for number, port in zip(("50051", "50052"), held, strict=True):
        lines = [line.replace(number, str(port.number)) for line in lines]
    write_criteo(tmp_path / "log.tsv", 1000)
    monkeypatch.chdir(tmp_path)
    servers = []
    commands = [shlex.split(line) for line in lines]
    assert [words[0] for words in commands] == programs
    try:
        for words in commands:
            if words[-1] == "&":
                command = [sys.executable, "-m", "hps", *words[1:-1], "--dram", "16MiB"]
                servers.append(subprocess.Popen(command, cwd=tmp_path))
            elif words[0] == "openssl":
                subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
            else:
                assert main([*words[1:], "--json", "out.json"]) == 0
        where = words[words.index("--server") :]
        figures = json.loads((tmp_path / "out.json").read_text())
        assert figures["examples"] == 1000 and len(servers) == programs.count("hps") - 1
        for verb, answer in (
            (["evaluate", "log.tsv"], "auc"),
            (["client", "tables"], "features"),
        ):
            assert main([*verb, *where]) == 0
            assert answer in capsys.readouterr().out
    finally:
        for server in servers:
            server.terminate()
        statuses = [server.wait(120) for server in servers]
        for port in held:
            port.close()
    assert set(statuses) == {0}
