"""JSON that comes from outside: too deep, too long or broken, it is refused by the right error.

Above it: pytest. Below it: hps/common/json_text.py, and what reads JSON: parquet files,
checkpoints, token files.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hps
from hps.checkpoint.blobs import RATES, READER, TABLES, decode_json
from hps.cli.main import main
from hps.common.json_text import MAX_DEPTH, check_depth, parse_json
from hps.parameter_server.parquet import describe, export_table
from hps.service.server.auth import TokenFile
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.cluster.catalog import _head as cluster_head
from hps.ssd_store.rocksdb.manifest import RocksDbManifest
from hps.ssd_store.rocksdb.manifest import _head as rocksdb_head
from hps.update_log.epoch import Epoch
from hps.update_log.epoch import _head as epoch_head
from hps.update_log.history import ServedCheckpoint

DEEP = "[" * 100_000 + "]" * 100_000


def test_text_is_parsed_to_the_depth_and_the_length_that_are_allowed() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(deepest, "it")) == deepest
    assert parse_json("[" * 3 + "]" * 3, "it", max_depth=3) == [[[]]]
    with pytest.raises(hps.CorruptionError, match=f"it nests JSON more than {MAX_DEPTH} levels"):
        parse_json(f"[{deepest}]", "it")
    with pytest.raises(hps.ConfigError, match="it has 12 bytes of JSON; 11 at most"):
        parse_json(b'"0123456789"', "it", error=hps.ConfigError, max_bytes=11)


def test_brackets_in_strings_and_beside_each_other_are_no_depth() -> None:
    for text in (
        json.dumps("[" * 1000),
        json.dumps({"a": '"[{' * 1000, "b": "\\" * 7 + "["}),
        json.dumps([[] for _ in range(1000)]),
        json.dumps({str(idx): {"a": [idx]} for idx in range(1000)}),
    ):
        assert parse_json(text, "it") == json.loads(text)


@pytest.mark.parametrize(
    "text",
    ["", "[", '"', '"\\', "9" * 5000, b"\xff\xfe\xfd", b"\xff[[", "{'a': 1}", '"[' * 40, "]" * 99],
)
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(hps.ConfigError, match=r"^it is not JSON: "):
        parse_json(text, "it", error=hps.ConfigError)


def test_a_text_of_open_strings_is_looked_through_once() -> None:
    """A pattern that goes back for each of them would take hours for this one."""
    check_depth('"\\' * 500_000 + "[" * 65, "it")


def test_a_deep_description_in_a_parquet_file_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = hps.Config(path=tmp_path / "store", tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        server.pull("ads", np.arange(10), create=True)
        export_table(server, "ads", tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    whole = table.schema.metadata[b"hps"].decode()
    endless = json.dumps({**json.loads(whole), "seed": None}).replace("null}", "1e999}")
    assert "1e999" in endless
    no_table = '{"version": 1, "table": {}, "seed": 0}'
    for number, text in enumerate((DEEP, endless, no_table, "[1]", '{"version": 1}')):
        damaged = tmp_path / f"damaged{number}.parquet"
        pq.write_table(table.replace_schema_metadata({b"hps": text.encode()}), damaged)
        with pytest.raises(hps.ConfigError, match=r"damaged\d.parquet: the metadata of the export"):
            describe(damaged)
        assert main(["import", str(damaged), str(tmp_path / f"into{number}")]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_a_deep_token_file_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(DEEP)
    with pytest.raises(hps.ConfigError, match=r"--tokens .*tokens.json nests JSON"):
        TokenFile(path)
    with pytest.raises(hps.ConfigError, match=r"--tokens /dev/zero has .* bytes of JSON"):
        TokenFile(Path("/dev/zero"))


def test_deep_blobs_of_a_checkpoint_are_damage_not_a_fault_of_the_program() -> None:
    for name in (READER, RATES, TABLES):
        with pytest.raises(hps.CorruptionError, match=f"the checkpoint's {name} nests JSON"):
            decode_json({name: DEEP.encode()}, name)
    with pytest.raises(hps.CorruptionError, match=r"the checkpoint's service.json nests JSON"):
        ServedCheckpoint.of({"service.json": DEEP.encode()})


@pytest.mark.parametrize(
    ("name", "head", "load"),
    [
        ("CLUSTER", cluster_head, Catalog.load),
        ("ROCKSDB", rocksdb_head, RocksDbManifest.load),
        ("log/HISTORY", epoch_head, Epoch.load),
    ],
)
@pytest.mark.parametrize("body", [DEEP, "{}", "[1]"])
def test_a_manifest_whose_checksum_holds_and_whose_json_does_not_is_damage(
    tmp_path: Path, name: str, head: Any, load: Any, body: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(head(body.encode()) + b"\n" + body.encode())
    with pytest.raises(hps.CorruptionError, match=Path(name).name):
        load(tmp_path)


def test_a_reader_position_that_could_not_be_read_back_is_not_stored(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    shallow = json.loads("[" * 70 + "]" * 70)
    config = hps.Config(path=tmp_path, tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        for position in (deep, shallow):
            with pytest.raises(hps.ConfigError, match="reader"):
                server.checkpoint(reader={"position": position})
        assert server.checkpoints() == []
