"""Logs in a bucket of S3: read, trained on and resumed as files are, and every fault has its URL.

Above it: pytest. Below it: hps/reader/urls.py, s3fs, and a server that speaks S3's protocol.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError, StoreError
from hps.reader import ReaderConfig, open_reader, urls
from hps.reader.files import find_files
from hps.reader.followed import FollowedFolder
from tests.logs import write_criteo
from tests.reader.s3_server import KEY, SECRET, Cut, Refused, Request, S3Server, s3fs
from tests.reader.test_urls import TABLES, read

ROWS = 100
KINDS = {"parquet": "parquet", "criteo": "tsv.gz", "csv": "csv.gz"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def bucket(
    server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A new bucket; s3fs finds the server as a user's does, and waits for nothing."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urls, "_FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    set_access(monkeypatch, server)
    server.gate = lambda request: None
    server.requests.clear()
    name = f"b{abs(hash(request.node.name)):x}"
    server.client.create_bucket(Bucket=name)
    yield name
    server.gate = lambda request: None
    s3fs.S3FileSystem.clear_instance_cache()


def set_access(monkeypatch: pytest.MonkeyPatch, server: S3Server, **changes: Any) -> None:
    """fsspec's own settings for s3://."""
    access: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": server.endpoint}
    access["config_kwargs"] = {"retries": {"max_attempts": 0}}
    monkeypatch.setitem(fsspec.config.conf, "s3", access | changes)
    s3fs.S3FileSystem.clear_instance_cache()


def put(server: S3Server, bucket: str, key: str, data: bytes) -> str:
    server.client.put_object(Bucket=bucket, Key=key, Body=data)
    return f"s3://{bucket}/{key}"


def write_part(path: Path, kind: str, first: int) -> Path:
    rows = range(first, first + ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        table = pa.table({"label": [row % 2 for row in rows], "key": [row * 7 for row in rows]})
        pq.write_table(table, path, row_group_size=32)
        return path
    if kind == "criteo":
        write_criteo(path, ROWS, seed=first)
    else:
        path.write_text("label,key\n" + "".join(f"{row % 2},{row * 7}\n" for row in rows))
    path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return path


def write_days(server: S3Server, bucket: str, folder: Path, kind: str) -> tuple[list[Path], str]:
    """Three files, and the pattern of the same in the bucket, where there is more beside them."""
    names = ("day=01/part-a", "day=01/part-b", "day=02/part-a")
    paths = [
        write_part(folder / f"{name}.{KINDS[kind]}", kind, place * ROWS)
        for place, name in enumerate(names)
    ]
    for path in reversed(paths):
        put(server, bucket, f"logs/{path.relative_to(folder)}", path.read_bytes())
    for beside in ("logs/_SUCCESS", "logs/day=02/", "logs/day=02/_SUCCESS", "logs/day=02/x/part-z"):
        put(server, bucket, beside, b"")
    server.requests.clear()
    return paths, f"s3://{bucket}/logs/day=*/part-*.{KINDS[kind]}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_gives_the_batches_and_positions_of_the_files(
    kind: str, tmp_path: Path, server: S3Server, bucket: str
) -> None:
    paths, pattern = write_days(server, bucket, tmp_path, kind)
    assert [str(file) for file in find_files(pattern)] == [
        f"s3://{bucket}/logs/{path.relative_to(tmp_path)}" for path in paths
    ]
    looks = [one for one in server.requests if one.verb == "HEAD" and "/day=0" in one.path]
    assert not looks, "the listings have told sizes and marks"
    _, wanted = read(paths, kind)
    reader, found = read(pattern, kind)
    assert found == wanted and sum(len(labels) for _, labels, _ in found) == 3 * ROWS
    assert reader.state_dict()["files"] == [[path.name, path.stat().st_size] for path in paths]
    for place, (_, _, state) in enumerate(wanted):
        assert read(pattern, kind, state)[1] == wanted[place + 1 :], "resumed there"
    assert {request.verb for request in server.requests} == {"GET", "HEAD"}
    reads = [request for request in server.requests if "/day=" in request.path]
    assert all(request.verb == "HEAD" or request.is_read for request in reads), "in ranges"


def test_a_run_on_a_bucket_ends_with_the_rows_of_one_on_files(
    tmp_path: Path, server: S3Server, bucket: str
) -> None:
    paths, pattern = write_days(server, bucket, tmp_path, "criteo")
    small = ["--batch-size", "64", "--torch-threads", "1", "--dram", "8MiB"]
    shape = ["--dim", "2", "--hidden", "4"]
    digests, shown = [], []
    # Whole on files, whole on the bucket; stopped within the second object and gone on with.
    for name, log, stops in (
        ("files", list(map(str, paths)), []),
        ("bucket", [pattern], []),
        ("resumed", [pattern], ["--limit", "128"]),
    ):
        words = [*log, "--store", str(tmp_path / name)]
        out = tmp_path / f"{name}.npy"
        assert main(["train", *words, *small, *shape, "--test", *log, *stops]) == 0
        if stops:
            assert main(["train", *words, *small, "--resume", "--test", *log]) == 0
        assert main(["evaluate", *words]) == 0
        assert main(["predict", *words, "--out", str(out)]) == 0
        shown.append(np.load(out))
        with hps.open(tmp_path / name) as opened:
            digests.append([opened.digest(table) for table in opened.tables])
    assert digests[0] == digests[1] == digests[2]
    assert len(shown[0]) == 3 * ROWS
    assert (shown[0] == shown[1]).all() and (shown[0] == shown[2]).all()


def test_what_is_missing_is_told_with_its_url(
    server: S3Server, bucket: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    put(server, bucket, "day=01/a.csv", b"label,key\n1,2\n")
    cases: list[tuple[str, type[Exception], str]] = [
        (f"s3://{bucket}/none.csv", StoreError, r"/none\.csv: there is no such file \(FileNot"),
        ("s3://no-such-bucket/a.csv", StoreError, "no-such-bucket/a.csv: .*bucket does not exist"),
        (f"s3://{bucket}/day=02/*.csv", ConfigError, rf"no file matches 's3://{bucket}/day=02/\*"),
        (
            "s3://no-such-bucket/*.csv",
            ConfigError,
            r"no file matches 's3://no-such-bucket/\*\.csv'",
        ),
        (f"s3://{bucket}/day=01", StoreError, f"{bucket}/day=01: it is a directory"),
        (f"s3://{bucket}", StoreError, f"{bucket}: it is a directory"),
    ]
    for url, kind, text in cases:
        with pytest.raises(kind, match=text):
            find_files(url)
    url = f"s3://{bucket}/none.csv"
    assert main(["train", url, "--store", str(tmp_path / "store")]) != 0
    assert f"cannot read {url}: " in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_refused_credentials_are_told_with_the_url(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = put(server, bucket, "day=01/a.csv", b"label,key\n1,2\n")
    server.knows_nobody(True)
    try:
        for asked in (url, f"s3://{bucket}/day=*/a.csv", f"s3://{bucket}/**.csv"):
            with pytest.raises(StoreError, match="check the credentials") as raised:
                find_files(asked)
            assert f"cannot read {asked}: PermissionError: " in str(raised.value)
            assert SECRET not in str(raised.value)
    finally:
        server.knows_nobody(False)
    assert len(find_files(url)) == 1
    # Nobody has told s3fs who asks.
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    set_access(monkeypatch, server, key=None, secret=None)
    with pytest.raises(StoreError, match=f"cannot read {url}.*Unable to locate credentials"):
        find_files(url)


def test_a_server_that_is_not_there_is_told_with_the_url(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_access(monkeypatch, server, endpoint_url="http://127.0.0.1:1")
    told = f"cannot read s3://{bucket}/x, tried 4 times: .*127.0.0.1"
    with pytest.raises(StoreError, match=told):
        find_files(f"s3://{bucket}/x")


def test_a_folder_that_may_not_be_listed_is_not_left_out(
    tmp_path: Path, server: S3Server, bucket: str
) -> None:
    _, pattern = write_days(server, bucket, tmp_path, "csv")

    def refuse(request: Request) -> Refused | None:
        return Refused() if "prefix=logs/day=02" in request.query else None

    server.gate = refuse
    with pytest.raises(StoreError, match="Access Denied; check the credentials") as raised:
        find_files(pattern)
    assert f"cannot read {pattern}: PermissionError" in str(raised.value)
    server.gate = lambda request: (
        Refused("500 Internal Server Error", b"") if refuse(request) else None
    )
    with pytest.raises(StoreError, match="tried 4 times"):
        find_files(pattern)
    server.gate = lambda request: None
    assert len(find_files(pattern)) == 3


def test_what_comes_later_is_found(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_access(monkeypatch, server, config_kwargs=None)  # s3fs keeps one connection, and lists
    put(server, bucket, "day=01/a.csv", b"label,key\n1,2\n")
    pattern = f"s3://{bucket}/day=*/b.csv"
    for day in ("01", "02"):
        before = [f"s3://{bucket}/day={one}/b.csv" for one in ("01", "02") if one < day]
        if before:
            assert [str(file) for file in find_files(pattern)] == before
        else:
            with pytest.raises(ConfigError, match="no file matches"):
                find_files(pattern)
        put(server, bucket, f"day={day}/b.csv", b"label,key\n1,2\n")
    assert len(find_files(pattern)) == 2


@pytest.mark.parametrize(
    "key", ["день=1/часть.csv", "a b/c+d%20e.csv", "q?/a[1]*.csv", "#1/~x&y=z;'.csv"]
)
def test_any_name_of_an_object_is_read(key: str, server: S3Server, bucket: str) -> None:
    url = put(server, bucket, key, b"label,key\n1,2\n")
    assert read(url, "csv")[1][0][1] == [1.0]
    (file,) = find_files(f"s3://{bucket}/*/*.csv")
    assert file.name == key.rpartition("/")[2]


def big_log(kind: str, value: int) -> bytes:
    """A log of more than one range; those of two values have the same size."""
    if kind == "libsvm":
        return f"1 {value}:1\n".encode() * 800_000
    sink = pa.BufferOutputStream()
    rows = 4000
    table = pa.table({"label": [1] * rows, "key": [value] * rows})
    pq.write_table(table, sink, row_group_size=1000, use_dictionary=False, compression="none")
    return bytes(sink.getvalue())


def after_reads(count: int, act: Callable[[], object]) -> Callable[[Request], None]:
    """A gate that acts once, before a read of an object is answered."""
    num_read = 0

    def gate(request: Request) -> None:
        nonlocal num_read
        num_read += request.is_read
        if request.is_read and num_read == count + 1:
            act()

    return gate


@pytest.mark.parametrize("kind", ["libsvm", "parquet"])
@pytest.mark.parametrize("becomes", ["other", "shorter", "gone"])
def test_an_object_that_changes_within_a_read_is_refused(
    becomes: str, kind: str, server: S3Server, bucket: str
) -> None:
    old, new = big_log(kind, 5), big_log(kind, 6)
    assert len(old) == len(new)
    url = put(server, bucket, "log", old)

    def change() -> None:
        if becomes == "gone":
            server.client.delete_object(Bucket=bucket, Key="log")
        else:
            put(server, bucket, "log", new if becomes == "other" else new[: len(new) // 2])

    config = ReaderConfig(format=kind, batch_size=500)
    reader = open_reader(url, tables=TABLES, config=config)
    server.gate = after_reads(1, change)
    seen: set[int] = set()
    wanted = "FileNotFoundError" if becomes == "gone" else "has changed since this run began"
    with pytest.raises(StoreError, match=wanted) as raised:
        for batch in reader:
            seen.update(batch.features["ads"].keys_L.tolist())
    assert url in str(raised.value)
    assert len(seen) <= 1, "of one version alone"


@pytest.mark.parametrize("kind", ["libsvm", "parquet"])
def test_an_answer_that_is_cut_short_is_asked_for_again_and_then_told(
    kind: str, server: S3Server, bucket: str
) -> None:
    url = put(server, bucket, "log", big_log(kind, 5))
    _, wanted = read(url, kind, batch_size=50_000)
    num_cut = 0

    def cut(request: Request) -> Cut | None:
        nonlocal num_cut
        num_cut += request.is_read
        return Cut() if request.is_read and num_cut <= limit else None

    limit, server.gate = 3, cut
    assert read(url, kind, batch_size=50_000)[1] == wanted
    num_cut, limit = 0, 10**9
    with pytest.raises(StoreError, match=f"cannot read {url}, tried 4 times: "):
        read(url, kind)


def test_a_fresh_process_is_told_of_the_server_by_its_environment_or_a_file(
    tmp_path: Path, server: S3Server, bucket: str
) -> None:
    url = put(server, bucket, "a.csv", b"label,key\n1,2\n")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    access = {"endpoint_url": server.endpoint, "key": KEY, "secret": SECRET}
    (tmp_path / "s3.json").write_text(json.dumps({"s3": access}))
    ways = [
        {
            "FSSPEC_S3_ENDPOINT_URL": server.endpoint,
            "FSSPEC_S3": json.dumps({"key": KEY, "secret": SECRET}),
        },
        {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        },
        {"FSSPEC_CONFIG_DIR": str(tmp_path)},
    ]
    program = (
        "import sys\nfrom hps.reader.files import find_files\n"
        "print(find_files(sys.argv[1])[0].open('rb').read())"
    )
    for way in ways:
        done = subprocess.run(
            [sys.executable, "-c", program, url],
            env=plain | way,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "b'label,key\\n1,2\\n'\n", done.stderr
        assert done.stderr == ""


def test_what_stands_for_a_login_is_in_no_message(server: S3Server, bucket: str) -> None:
    for url in (f"s3://me:hush@{bucket}/x", f"s3://me:hush@{bucket}/x*"):
        with pytest.raises((ConfigError, StoreError)) as raised:
            find_files(url)
        assert "hush" not in str(raised.value)


def test_a_prefix_is_followed_by_its_listing(tmp_path: Path, server: S3Server, bucket: str) -> None:
    folder = FollowedFolder(f"s3://{bucket}/logs/")
    assert folder.look() == []  # a prefix without objects is an empty folder
    paths = [write_part(tmp_path / f"part-{place}", "csv", place * ROWS) for place in range(3)]
    for beside in ("logs/", "logs/_SUCCESS", "logs/sub/part-0"):
        put(server, bucket, beside, b"")
    for path in paths[1::-1]:
        put(server, bucket, f"logs/{path.name}", path.read_bytes())
    found = folder.look()
    put(server, bucket, f"logs/{paths[2].name}", paths[2].read_bytes())
    found += folder.look()
    assert [str(file) for file in found] == [f"s3://{bucket}/logs/{path.name}" for path in paths]
    assert [file.stat().st_size for file in found] == [path.stat().st_size for path in paths]
    server.requests.clear()
    assert folder.look() == [] and len(server.requests) == 1
    assert len(folder.take_notes()) == 2  # of _SUCCESS, and of the folder
    changed = paths[1].read_bytes()[::-1]
    put(server, bucket, f"logs/{paths[1].name}", changed)  # its size is the same
    assert folder.look() == []
    assert "part-1 was written again after it was read" in folder.take_notes()[0]
