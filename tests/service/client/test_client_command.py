"""`hps client` and the flags of servers: what they print, refuse, and write as JSON.

Above it: pytest. Below it: hps.cli.client, hps.cli.server_flags, over real shards.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hps.cli.main import main
from tests.service.client.client_lab import service


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs `hps client VERB ...` against two shards; returns (status, stdout, stderr)."""
    with service(tmp_path, 2) as servers:

        def run(*words: str) -> tuple[int, str, str]:
            where = ["--server", ",".join(servers.addresses), "--client-id", "person"]
            status = main(["client", words[0], *where, *words[1:]])
            return (status, *capsys.readouterr())

        yield run


def test_person_pushes_looks_and_goes_back(ask, tmp_path: Path) -> None:
    assert "not stored" in ask("pull", "ads", "7")[1]
    assert ask("push", "ads", "7", "0xffffffffffffffff", "--value", "1")[1].startswith("pushed 2")
    status, out, _ = ask("pull", "ads", "7", "8")
    assert status == 0 and out.splitlines()[0].startswith("7: ") and "not stored" not in out[:80]
    (line,) = [line for line in ask("tables", "--digest")[1].splitlines() if "ads" in line]
    assert re.search(r" [0-9a-f]{32}$", line)
    assert ask("checkpoint", "day-1")[1].startswith("day-1: 2 rows")
    assert "erased 1 stored" in ask("erase", "ads", "7")[1]
    assert "day-1" in ask("checkpoints")[1]
    assert "day-1" in ask("restore", "day-1")[1]
    tables = tmp_path / "tables.json"
    ask("tables", "--json", str(tables))
    assert json.loads(tables.read_text())["ads"]["rows"] == 2
    assert "disks" in ask("flush", "--durable")[1]
    assert "deleted" in ask("delete-checkpoint", "day-1")[1]
    assert "no checkpoint" in ask("checkpoints")[1]
    assert "dram_cache" in ask("stats")[1]


def test_files_of_keys_gradients_and_rows(ask, tmp_path: Path) -> None:
    keys, grads, rows = (tmp_path / name for name in ("keys.npy", "grads.npy", "rows"))
    np.save(keys, np.arange(2000, dtype=np.uint64))
    signs = np.where(np.arange(2000 * 8) % 3, 1, -1).reshape(2000, 8).astype(np.float32)
    np.save(grads, signs)
    assert ask("pull", "ads", "--keys-file", str(keys), "--out", str(rows))[0] == 0
    before = np.load(rows)
    assert ask("push", "ads", "--keys-file", str(keys), "--grads", str(grads))[0] == 0
    assert ask("pull", "ads", "--keys-file", str(keys), "--out", str(rows))[0] == 0
    assert np.array_equal(np.sign(before - np.load(rows)), signs)
    shown = ask("pull", "ads", "--keys-file", str(keys))[1].splitlines()
    assert len(shown) == 1001 and "2,000 keys in all" in shown[-1]
    out = ask("pull", "ads", "--keys-file", str(keys), "--json", "-")[1]
    assert len(json.loads(out)["rows"]) == 2000  # and nothing else


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "zip", "archive"])
def test_a_file_that_holds_no_array_is_told_by_name(ask, tmp_path: Path, kind: str) -> None:
    bad, keys = tmp_path / "bad.npy", tmp_path / "keys.npy"
    np.save(keys, np.arange(9, dtype=np.uint64))
    if kind == "archive":
        with bad.open("wb") as file:
            np.savez(file, np.arange(9))
    else:
        cut = keys.read_bytes()[:-8]
        bad.write_bytes({"text": b"1 2", "empty": b"", "cut": cut, "zip": b"PK\x03\x04"}[kind])
    reason = "it is an archive of" if kind == "archive" else "it is not a .npy file"
    for words in (
        ["pull", "ads", "--keys-file", str(bad)],
        ["push", "ads", "--keys-file", str(keys), "--grads", str(bad)],
    ):
        status, _, errors = ask(*words)
        assert status == 1 and errors.count("\n") == 1
        assert f"{words[-2]} {bad}: {reason}" in errors


def test_a_flush_waits_for_the_disks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with service(tmp_path, 2) as servers:
        where = ["--server", ",".join(servers.addresses)]
        keys = [str(key) for key in range(20)]
        push = ["client", "push", "ads", *keys, "--value", "1", "--ack", "memory"]
        assert main([*push, *where]) == 0
        logs = [shard.parts.store.log for shard in servers.shards]
        assert all(log.durable < log.appended for log in logs)
        assert main(["client", "flush", *where]) == 0
        assert all(log.durable < log.appended for log in logs)
        assert "in the logs" in capsys.readouterr().out
        assert main(["client", "flush", "--durable", *where]) == 0
        assert all(log.durable == log.appended for log in logs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pull", "none", "1"], "there is no table 'none'"),
        (["pull", "ads"], "give keys"),
        (["push", "ads", "1"], "give the gradient"),
        (["restore", "none"], "no checkpoint 'none'"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_1(ask, words: list[str], message: str) -> None:
    status, _, errors = ask(*words)
    assert status == 1 and message in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "log.tsv"], "give --store DIR or --server"),
        (["train", "log.tsv", "--store", "s", "--server", "a:1"], "give --store DIR or --server"),
        (["train", "log.tsv", "--store", "s", "--tls-ca", "ca.pem"], "--tls-ca needs --server"),
        (["train", "log.tsv", "--server", "a:1", "--gpu", "1GiB"], "the servers' own"),
        (["train", "log.tsv", "--store", "s", "--allow-insecure"], "--allow-insecure needs"),
        (["evaluate", "log.tsv"], "give --store, --server or --model"),
        (["evaluate", "log.tsv", "--server", "a"], "must be 'host:port'"),
        (["client", "stats", "--server", "127.0.0.1:1", "--deadline", "0.2"], "deadline passed"),
    ],
)
def test_flags_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_a_wrong_flag_is_told_in_one_line_that_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, message in (
        (["serve", "--store", "s", "--listn", "a:1"], "unrecognized arguments: --listn a:1"),
        (["client", "pull", "ads", "7", "--server", "a:1", "--tabel", "x"], "--tabel"),
        (["serve"], "--store"),
        (["client", "stats"], "--server"),
        (["client", "stats", "--server", "a:1", "--wire", "float8"], "argument --wire: invalid"),
        (["client", "erase", "ads", "1", "--server", "a:1", "--ack", "soon"], "argument --ack"),
        (["nope"], "invalid choice: 'nope'"),
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        error = capsys.readouterr().err
        assert end.value.code == 2 and error.count("\n") == 1, error
        assert error.startswith("hps: error: ") and message in error
        verb = " ".join(words[: 2 if words[0] == "client" else 1])
        help_of = "hps" if words == ["nope"] else f"hps {verb}"
        assert f"'{help_of} --help'" in error


def test_a_token_file_that_is_not_there_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--server", "127.0.0.1:1", "--token"]
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("\n")
    for name, words in (
        ("t-secret", "No such file or directory; name a file that holds the token"),
        ("binary", "it is not text"),
        ("empty", "holds no token"),
    ):
        assert main(["client", "stats", *where, str(tmp_path / name)]) == 1
        assert f"--token {tmp_path / name}: " in (error := capsys.readouterr().err)
        assert words in error


def test_flags_that_another_table_was_made_with_are_told_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.libsvm"
    log.write_text("1 3:1 4:1\n0 5:1\n" * 8)
    with service(tmp_path, 1, tables=()) as servers:
        words = ["train", str(log), "--format", "libsvm", "--batch-size", "4"]
        where = ["--server", servers.addresses[0], "--progress-seconds", "0", "--depth", "0"]
        figures = tmp_path / "figures.json"
        assert main([*words, *where, "--dim", "4", "--json", str(figures)]) == 0
        assert json.loads(figures.read_text())["stages"]["compute"]["server_seconds"] > 0
        assert main([*words, *where, "--dim", "8", "--optimizer", "sgd"]) == 1
        error = capsys.readouterr().err
    assert "its dim is 5, not 9" in error and "its optimizer is Adagrad" in error
    assert "TableConfig(" not in error
