"""export_model and import_model: a whole model as plain files, for another store or machine.

Above it: `hps export --model`, `hps import`. Below it: a store opened read-only, parquet.py for
the rows of a table, the blobs of a checkpoint. docs/training.md describes the folder.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hps.checkpoint.blobs import (
    MODEL,
    RATES,
    READER,
    TABLES,
    decode_dense,
    decode_json,
    described_tables,
)
from hps.checkpoint.moving import opened_as_found
from hps.checkpoint.names import find_listed
from hps.cluster.folder.whole_folder import check_new_folder, whole_folder
from hps.common.durable_file import sync, write_durably
from hps.common.json_text import Json, JsonView, parse_json
from hps.common.version import __version__
from hps.config import Config, DramCacheConfig
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.parameter_server.open_server import open as open_store
from hps.parameter_server.parquet import RowFile, export_table, import_rows
from hps.parameter_server.server import ParameterServer
from hps.train.checkpoints import newest_with_model
from hps.train.model_list import describe_model, model_of

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
_BLOBS = (MODEL, READER, RATES, TABLES)
_TOLD = ("kind", "dim", "examples", "batches", "train_logloss", "evaluation", "files", "parent")
_PIECE_BYTES = 2**20
_CHECKSUM = "sha256"


def export_model(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    checkpoint: str | int | None = None,
    *,
    with_state: bool = True,
    dram: int | str = "256MiB",
) -> Json:
    """Writes one checkpoint's model as a folder of plain files; it may run beside a training.

    Args:
        store: of a process, or the folder of several ranks.
        out: a folder that is new or empty; it is there whole or not at all.
        checkpoint: its tag, promoted name or id; None is the newest with a model.
        with_state: with the optimizer's state of rows; without, a training starts it anew.
        dram: memory for rows.

    Returns:
        The manifest: `format_version`, `hps` (its version), `checkpoint` (`tag`, `id`, `created`),
        `model` (what `hps models` says of it), `seed`, `state`, `tables` (`name`, `file`, `rows`,
        `digest`) and `files` (by name `bytes` and `sha256`).

    Raises:
        ConfigError: `out` holds something; no such checkpoint, or it holds no model.
        StoreError, CorruptionError: the store cannot be read, or the disk is full.

    Cost: reads every row twice: to write it, and for the digest.
    """
    target = Path(out)
    check_new_folder(target)
    _check_parent(target)
    name, server = _open(store, checkpoint, dram)
    with server, whole_folder(target) as folder:
        folder.mkdir()
        blobs = server.checkpoint_blobs(None, _BLOBS)
        if MODEL not in blobs:
            raise ConfigError(
                f"{os.fspath(store)}: its checkpoint was replaced meanwhile by one without a "
                "model; repeat the command"
            )
        info = _info_of(server, name)
        tables = [_export_rows(server, table, folder, with_state) for table in server.tables]
        for blob, data in blobs.items():
            write_durably(folder / blob, data)
        found = describe_model(info, blobs)
        manifest = {
            "format_version": FORMAT_VERSION,
            "hps": __version__,
            "exported": time.time(),
            "checkpoint": {one: info.get(one) for one in ("tag", "id", "created")},
            "model": {one: found[one] for one in _TOLD},
            "seed": server.config.seed,
            **({"period": server.period} if server.period else {}),
            "state": with_state,
            "tables": tables,
            "files": {path.name: _sum_of(path) for path in sorted(folder.iterdir())},
        }
        write_durably(folder / MANIFEST, _manifest_bytes(manifest))
        sync(folder)
    return manifest


def import_model(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    with_state: bool = True,
    dram: int | str = "256MiB",
) -> Json:
    """Makes a store of what export_model has written; it is there whole or not at all.

    Args:
        source: the folder.
        store: a folder that is new or empty.
        with_state: with the state of the rows' optimizers, if the folder has it.
        dram: memory for rows.

    Returns:
        `tag`, `rows`, `state` (whether rows have their optimizer's) and `tables` (name -> rows).

    Raises:
        ConfigError: the folder is no export, or only part of one, or of another format version;
            `store` holds something.
        CorruptionError: a file is damaged; names it. StoreError: it cannot be read, or written.

    Cost: reads every file twice; writes every row once, and reads it for its digest.
    """
    folder, target = Path(source), Path(store)
    check_new_folder(target)
    _check_parent(target)
    export = _Export.load(folder)
    takes_state = with_state and bool(export.manifest["state"])
    with whole_folder(target) as made:
        config = Config(
            path=made,
            tables=export.tables(),
            dram=DramCacheConfig(bytes=dram),
            seed=int(export.manifest["seed"]),
        )
        with ParameterServer(config) as server:
            if period := int(export.manifest.get("period", 0)):
                server.advance_period(period)
            counts = {
                str(one["name"]): export.import_rows(server, one, takes_state=takes_state)
                for one in export.manifest["tables"]
            }
            rates = decode_json(export.blobs, RATES) or {}
            server.learning_rates.update(
                {name: float(rate) for name, rate in rates.items() if name in counts}
            )
            dense = {name: export.blobs[name] for name in (MODEL, READER) if name in export.blobs}
            tag = export.manifest["checkpoint"]["tag"]
            server.parts.checkpoints.save(tag, dense)
    return {"tag": tag, "rows": sum(counts.values()), "state": takes_state, "tables": counts}


@dataclass(frozen=True)
class _Export:
    """A folder of export_model whose manifest is whole."""

    folder: Path
    manifest: Json
    blobs: Mapping[str, bytes]

    @classmethod
    def load(cls, folder: Path) -> "_Export":
        path = folder / MANIFEST
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise ConfigError(
                f"{folder}: there is no {MANIFEST}, which is written last: this is no export of a "
                "model, or only part of one; name a folder that 'hps export --model' has made, or "
                "copy all of its files"
            ) from None
        except OSError as error:
            raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
        manifest = parse_json(text, str(path), error=CorruptionError)
        if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
            version = manifest.get("format_version") if isinstance(manifest, dict) else None
            raise ConfigError(
                f"{path}: the export has format version {version!r}; this hps ({__version__}) "
                f"reads {FORMAT_VERSION}: export it again with this version"
            )
        if _manifest_bytes(manifest) != text:
            raise CorruptionError(f"{path}: its checksum does not fit what it says; copy it again")
        export = cls(folder, manifest, {})
        export.check()
        files = manifest["files"]
        return cls(
            folder, manifest, {one: (folder / one).read_bytes() for one in _BLOBS if one in files}
        )

    def check(self) -> None:
        """Raises for the first file that is missing or not what the manifest says."""
        for name, wanted in self.manifest["files"].items():
            path = self.folder / name
            if not path.is_file():
                raise ConfigError(
                    f"{self.folder}: {name} is missing: this is only part of an export; copy all "
                    "of its files"
                )
            found = _sum_of(path)
            if found != wanted:
                raise CorruptionError(
                    f"{path}: it has {found['bytes']:,} bytes with SHA-256 {found[_CHECKSUM]}, the "
                    f"manifest says {wanted['bytes']:,} and {wanted[_CHECKSUM]}; copy it again"
                )

    def tables(self) -> list[Any]:
        """The tables as the checkpoint described them."""
        decode_dense(self.blobs)  # a model that cannot be read makes no store
        return described_tables(self.blobs)

    def import_rows(self, server: ParameterServer, one: JsonView, *, takes_state: bool) -> int:
        """Assigns the rows of a table, and makes sure that they are those that were exported."""
        name, path = str(one["name"]), self.folder / str(one["file"])
        rows = RowFile(path, server.tables[name], takes_state)
        count = import_rows(server, name, rows)
        digest = server.digest(name) if takes_state else one["digest"]
        if (count, digest) != (one["rows"], one["digest"]):
            raise CorruptionError(
                f"{path}: its {count:,} rows have digest {digest}, the manifest says "
                f"{one['rows']:,} with {one['digest']}; export the model again"
            )
        return count


def _check_parent(target: Path) -> None:
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}; name one that exists")


def _open(
    store: str | os.PathLike[str], checkpoint: str | int | None, dram: int | str
) -> tuple[str | int | None, ParameterServer]:
    """The checkpoint to export, under its own name, and its rows."""
    return opened_as_found(
        lambda: _with_model(store, checkpoint),
        lambda name: open_store(store, checkpoint=name, dram=dram),
        f"{os.fspath(store)}: the checkpoint to export",
    )


def _with_model(store: str | os.PathLike[str], checkpoint: str | int | None) -> str | int | None:
    """The checkpoint to export, under its own name: the id of one that has a promoted name, as
    that may move, and its tag may go to a newer one."""
    if checkpoint is not None:
        told = model_of(Path(store), checkpoint)  # refuses what holds none
        return int(told["id"]) if checkpoint in told["names"] else checkpoint
    with open_store(store) as server:
        found = newest_with_model(server)
    if found is None:
        raise ConfigError(
            f"{os.fspath(store)}: no checkpoint holds a model; 'hps train' stores one; rows alone "
            "leave with 'hps export STORE FILE --table NAME'"
        )
    return found.name


def _info_of(server: "TrainingServer", name: str | int | None) -> Json:
    """Of the checkpoint that is open, as the store lists it."""
    found = find_listed("the store", server.checkpoints(), name)
    if found is None:
        raise ConfigError(
            "the newest model is kept, but its tag was deleted; take a checkpoint of it first "
            "('hps.open(STORE, read_only=False).checkpoint(tag=...)'), and export that one"
        )
    return dict(found)


def _export_rows(server: Any, table: str, folder: Path, with_state: bool) -> Json:
    number = list(server.tables).index(table)
    path = folder / f"table-{number}.parquet"
    rows = export_table(server, table, path, with_state)
    sync(path)
    return {"name": table, "file": path.name, "rows": rows, "digest": server.digest(table)}


def _sum_of(path: Path) -> Json:
    """Length and checksum of a file."""
    digest, length = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                length += len(piece)
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    return {"bytes": length, _CHECKSUM: digest.hexdigest()}


def _manifest_bytes(manifest: JsonView) -> bytes:
    """Its text, which ends with a checksum of all else that it says."""
    body = {name: value for name, value in manifest.items() if name != "checksum"}
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    checksum = hashlib.sha256(plain.encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}, sort_keys=True, indent=1).encode() + b"\n"
