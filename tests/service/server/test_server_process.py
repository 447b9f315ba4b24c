"""`hps serve` as a process: its start, its end, and what a start after a kill finds.

Above it: pytest. Below it: hps.cli.serve over a real store and log.
"""

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.table_text import parse_table
from hps.v1 import parameter_server_pb2 as pb
from tests.ports import HeldPort
from tests.service.serving import ROOT, Channel, process
from tests.torture.scratch import scratch_folder

DIM = 4
TABLE = f"name=ads,dim={DIM},optimizer=sgd,lr=1,init=constant:0"
KEYS = np.arange(100, dtype=np.uint64)


@pytest.fixture
def store() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder / "store"


class Trainer:
    """A client of one shard that pushes -1 to the same keys."""

    def __init__(self, address: str) -> None:
        self.channel = Channel(address)
        reply = self.channel.call("OpenSession", pb.OpenSessionRequest(client_id="trainer-0"))
        self.incarnation, self.mark = reply.incarnation, reply.marks.applied

    def request(self, sequence: int, ack: "pb.Ack") -> pb.PushRequest:
        grads = np.full((len(KEYS), DIM), -1, np.float32)
        return pb.PushRequest(
            id=pb.Identity(client_id="trainer-0", incarnation=self.incarnation, sequence=sequence),
            table="ads",
            ack=ack,
            keys=KEYS.tobytes(),
            grads=grads.tobytes(),
        )

    def push(self, ack: "pb.Ack" = pb.LOGGED) -> pb.PushReply:
        self.mark += 1
        reply: pb.PushReply = self.channel.call("Push", self.request(self.mark, ack))
        return reply

    def value(self) -> float:
        """What every float of every row is."""
        reply = self.channel.call("Pull", pb.PullRequest(table="ads", keys=KEYS.tobytes()))
        values = set(np.frombuffer(reply.rows, np.float32).tolist())
        assert len(values) == 1
        return float(values.pop())


def test_a_server_that_is_told_to_stop_saves_a_checkpoint(store: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with process(store, "--table", TABLE) as server:
            trainer = Trainer(server.address)
            trainer.push(pb.MEMORY)
            assert server.stop(number) == 0
            events = [line["event"] for line in server.log()]
            assert events[0] == "listening" and events[-2:] == ["draining", "stopped"]
    with hps.open(store, read_only=True, checkpoint="last") as reader:
        assert reader.pull("ads", KEYS).tolist() == [[2.0] * DIM] * len(KEYS)


def test_a_server_that_is_killed_comes_back_with_what_it_logged(store: Path) -> None:
    port = HeldPort()
    with process(store, "--table", TABLE, listen=port.address) as server:
        trainer = Trainer(server.address)
        for _ in range(5):
            trainer.push(pb.LOGGED)
        server.popen.kill()
        server.popen.wait()
    # On the same address, and without being told of tables again.
    with port, process(store, listen=port.address) as again:
        assert again.address == server.address
        assert trainer.value() == 5.0  # the same channel finds it
        repeat = trainer.channel.call("Push", trainer.request(5, pb.LOGGED))
        assert repeat.is_repeat and repeat.marks.applied == 5
        assert trainer.push().marks.logged == 6 and trainer.value() == 6.0
        assert Trainer(again.address).incarnation == trainer.incarnation + 1
        stale = trainer.channel.refusal("Push", trainer.request(7, pb.LOGGED))
        assert (stale.code, stale.kind) == ("ABORTED", "FENCED")


def test_pushes_in_flight_at_the_end_are_answered_or_refused_and_never_lost(store: Path) -> None:
    with process(store, "--table", TABLE) as server:
        trainer = Trainer(server.address)

        def requests() -> Iterator[pb.PushRequest]:
            for sequence in range(1, 100_000):
                yield trainer.request(sequence, pb.MEMORY)

        replies = trainer.channel.stream("PushStream", requests(), timeout=60)
        answered = 0
        try:
            for reply in replies:
                answered = reply.marks.applied
                if answered == 20:
                    server.popen.send_signal(signal.SIGTERM)
        except Exception as error:
            assert error.code().name in ("UNAVAILABLE", "CANCELLED")  # type: ignore[attr-defined]
        assert server.popen.wait(30) == 0 and answered >= 20
    with process(store) as again:
        kept = Trainer(again.address)
        assert kept.mark >= answered and kept.value() == kept.mark


def test_checkpoints_and_restores_over_the_wire(store: Path) -> None:
    with process(store, "--table", TABLE) as server:
        trainer = Trainer(server.address)
        call = trainer.channel.call
        trainer.push()
        saved = call("Checkpoint", pb.CheckpointRequest(tag="one", model=b"m", group="g"))
        assert saved.sessions["trainer-0"].sequence == 1
        trainer.push()
        listed = {
            info.tag: info
            for info in call("ListCheckpoints", pb.ListCheckpointsRequest()).checkpoints
        }
        assert listed["one"].group == "g" and listed["one"].rows == len(KEYS)
        state = call("CheckpointState", pb.CheckpointStateRequest(tag="one"))
        assert state.model == b"m" and not state.HasField("reader") and state.group == "g"
        wrong = trainer.channel.refusal("Restore", pb.RestoreRequest(tag="one", group="other"))
        assert (wrong.code, wrong.kind) == ("FAILED_PRECONDITION", "MISMATCH")
        call("Restore", pb.RestoreRequest(tag="one", group="g", prepare=True))
        assert trainer.value() == 2.0
        restored = call("Restore", pb.RestoreRequest(tag="one", group="g", lineage="after-one"))
        assert restored.lineage == "after-one" and trainer.value() == 1.0
        fenced = trainer.channel.refusal("Push", trainer.request(3, pb.LOGGED))
        assert fenced.kind == "FENCED"
        old = pb.PullRequest(table="ads", keys=KEYS.tobytes(), lineage="0")
        assert trainer.channel.refusal("Pull", old).kind == "MISMATCH"
        fresh = Trainer(server.address)
        assert fresh.mark == 1 and fresh.push().marks.applied == 2
        call("DeleteCheckpoint", pb.DeleteCheckpointRequest(tag="one"))
        gone = trainer.channel.refusal("CheckpointState", pb.CheckpointStateRequest(tag="one"))
        assert gone.kind == "CONFIG"


def test_every_verb_over_the_wire_does_what_it_does_embedded(store: Path, tmp_path: Path) -> None:
    table = hps.TableConfig(name="new", dim=3, optimizer=hps.Adagrad(lr=0.5))
    config = hps.Config(path=tmp_path / "twin", tables=[table])
    keys = np.array([5, 6, 5, 2**63], np.uint64)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    with process(store) as server, hps.ParameterServer(config) as twin:
        call = Channel(server.address).call
        made = pb.Table(name="new", dim=3, optimizer=pb.Optimizer(kind="adagrad", lr=0.5))
        assert call("CreateTable", pb.CreateTableRequest(table=made)).is_new
        assert not call("CreateTable", pb.CreateTableRequest(table=made)).is_new
        session = call("OpenSession", pb.OpenSessionRequest(client_id="a"))

        def common(sequence: int) -> dict[str, object]:
            identity = pb.Identity(
                client_id="a", incarnation=session.incarnation, sequence=sequence
            )
            return {"id": identity, "table": "new", "ack": pb.DURABLE}

        def fields(array: np.ndarray) -> bytes:
            return array.tobytes()

        created = call("Create", pb.CreateRequest(keys=fields(keys), **common(1)))
        assert created.rows == twin.pull("new", keys, create=True).tobytes()
        call("Push", pb.PushRequest(keys=fields(keys), grads=fields(rows), **common(2)))
        twin.push("new", keys, rows)
        call(
            "Assign", pb.AssignRequest(keys=fields(keys[1:2]), rows=fields(rows[1:2]), **common(3))
        )
        twin.assign("new", keys[1:2], rows[1:2])
        state = np.full((1, 3), 9, np.float32)
        request = pb.AssignRequest(
            keys=fields(keys[3:]), rows=fields(rows[3:]), state=fields(state), **common(4)
        )
        call("Assign", request)
        twin.assign("new", keys[3:], rows[3:], state)
        erased = call("Erase", pb.EraseRequest(keys=fields(keys[:1]), **common(5)))
        assert erased.erased == b"\x01" and erased.marks.durable == 5
        assert twin.erase("new", keys[:1]).tolist() == [True]
        call("Skip", pb.SkipRequest(id=common(6)["id"]))
        call("Flush", pb.FlushRequest(ack=pb.DURABLE))
        stored = call("Contains", pb.ContainsRequest(table="new", keys=fields(keys)))
        assert stored.stored == b"\0\1\0\1"
        low_high = call("Digest", pb.DigestRequest(table="new"))
        assert f"{low_high.high:016x}{low_high.low:016x}" == twin.digest("new")
        assert call("NumRows", pb.NumRowsRequest(table="new")).num_rows == 2


def test_a_store_is_served_by_one_process(store: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hps",
        "serve",
        "--store",
        str(store),
        "--listen",
        "127.0.0.1:0",
    ]
    with process(store, "--table", TABLE) as server:
        second = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert second.returncode == 1 and str(server.popen.pid) in second.stderr
    assert "listening" not in second.stdout


def test_tables_that_a_restore_has_emptied_take_durable_pushes_that_a_kill_keeps(
    store: Path,
) -> None:
    late = hps.TableConfig(
        name="late",
        dim=DIM,
        optimizer=hps.SGD(lr=1.0),
        features=["c"],
        expiry=hps.Expiry(unseen=3, min_score=0.1),
        admission=hps.Admission(count=1),
        dtype="bfloat16",
    )
    base = f"{TABLE},features=a"
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                process(store.parent / f"s{i}", "--shard", f"{i}/2", "--table", base)
            )
            for i in range(2)
        ]
        addresses = [server.address for server in servers]
        client = stack.enter_context(hps.RemoteParameterServer(addresses, "trainer"))
        client.checkpoint("base")
        client.create_table(late)
        client.push("late", KEYS, np.ones((len(KEYS), DIM), np.float32))
        client.restore("base")
        assert client.num_rows("late") == 0
        client.push("late", KEYS, np.ones((len(KEYS), DIM), np.float32), ack="durable")
        digest = client.digest("late")
        servers[1].stop(signal.SIGKILL)  # one has what a kill leaves, the other is stopped
        servers[0].stop()
    with ExitStack() as stack:
        addresses = [stack.enter_context(process(store.parent / f"s{i}")).address for i in range(2)]
        client = stack.enter_context(hps.RemoteParameterServer(addresses, "trainer"))
        assert client.tables["late"] == late and client.num_rows("late") == len(KEYS)
        assert client.digest("late") == digest


BAD_FLAGS = [
    (["--listen", "0.0.0.0:0"], "--allow-insecure"),
    (["--listen", "nowhere"], "HOST:PORT"),
    (["--shard", "2/2"], "I/N"),
    (["--table", "name=ads"], "dim= is missing"),
    (["--table", "name=ads,dim=4,dim=5"], "given twice"),
    (["--table", "name=ads,dim=x"], "dim='x' must be from 1 to 4096"),
    (["--table", "name=ads,dim=4,optimizer=none"], "none"),
    (["--table", "name=ads,dim=4,eps=1,beta=2"], "no numbers"),
    (["--table", "name=ads,dim=4,init=normal:1:2:3"], "too many"),
    (["--tls-cert", "cert.pem"], "both or none"),
    (["--tls-client-ca", "ca.pem"], "--tls-cert"),
    (["--max-message", "1KiB"], "message_bytes"),
    (["--tokens", "/nowhere"], "--tokens"),
    (["--shard", f"0/{'9' * 5000}"], "--shard"),
]


@pytest.mark.parametrize(("flags", "words"), BAD_FLAGS)
def test_flags_that_cannot_work_are_refused(
    store: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hps.cli.main import main

    assert main(["serve", "--store", str(store), *flags]) == 1
    assert words in capsys.readouterr().err and not store.exists()


@pytest.mark.parametrize("flag", ["--listen", "--metrics"])
def test_a_port_that_is_taken_leaves_no_store_behind(
    store: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hps.cli.main import main

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        flags = ["--table", "name=ads,dim=4", flag, taken]
        assert main(["serve", "--store", str(store), *flags]) == 1
    assert f"{flag} {taken}: cannot listen there" in capsys.readouterr().err
    assert not store.exists()


def test_a_table_is_described_in_one_flag() -> None:
    text = "name=ads,dim=16,optimizer=adam,lr=0.01,beta1=0.8,init=uniform:-0.1:0.1,features=C1+C2"
    table = parse_table(text)
    assert table.optimizer == hps.Adam(lr=0.01, betas=(0.8, 0.999))
    assert table.initializer == hps.Uniform(low=-0.1, high=0.1) and table.features == ("C1", "C2")
    assert parse_table("name=a,dim=4,statistics=true").statistics
    assert parse_table("name=b,dim=2,statistics=false") == hps.TableConfig(name="b", dim=2)
    assert parse_table("name=b,dim=2") == hps.TableConfig(name="b", dim=2)


@pytest.mark.parametrize(
    "text",
    ["name=a,dim=inf", "name=a,dim=-1", "name=a,dim=1e99", "name=a,dim=9999", "name=a,dim=2.5",
     "name=a,dim=4,share=nan", "name=a,dim=4,share=1e999", "name=a,dim=4,lr=nan",
     "name=a,dim=4,statistics=1"],
)  # fmt: skip
def test_a_number_of_a_table_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(hps.ConfigError, match=r"dim|share|lr|statistics= must be one of"):
        parse_table(text)


def test_serving_imports_no_torch_and_starts_soon(store: Path) -> None:
    code = (
        "import sys; import hps.cli.serve, hps.service.server.server; print('torch' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.stdout == "False\n", ran.stderr
    imports = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with process(store, "--table", TABLE) as server:
        # 0.4, in as much time, on a quiet machine; most of it to import.
        assert server.cpu_seconds() < max(1.5, 3 * imports)
