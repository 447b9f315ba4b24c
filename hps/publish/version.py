"""Version: what one published version is, and the file that makes it visible.

Above it: publisher.py, followers. Below it: destination.py. A version's data lies in a folder of
its own; `version-N.json`, made last and in one step, names each file of it with its length and
sha256, and the version before it by the sha256 of its own file.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from hps.common.json_text import Json, parse_json
from hps.common.version import __version__
from hps.errors import ConfigError, CorruptionError
from hps.publish.destination import Destination

BASE, DELTA = "base", "delta"
FORMAT = "hps-published-version"
FORMAT_VERSION = 1
DATA = "data"  # the folder of the versions' folders
READERS = "readers"  # of the marks of those who read
_NAME = re.compile(r"version-(\d{8,})\.json")
_FOLDER = re.compile(rf"{DATA}/\d{{8,}}-[0-9a-f]{{8}}")
_DATA_FILE = re.compile(rf"{_FOLDER.pattern}/[A-Za-z0-9_.-]+")
_MOST_BYTES = 64 << 20


def file_of(number: int) -> str:
    """
    >>> file_of(7)
    'version-00000007.json'
    """
    return f"version-{number:08d}.json"


def listed_versions(destination: Destination) -> list[int]:
    """The numbers of the versions at a destination, in order."""
    found = (_NAME.fullmatch(name) for name in destination.names())
    return sorted(int(match[1]) for match in found if match)


def is_data_folder(name: str) -> bool:
    """True of the name of a folder of a version's data.

    >>> is_data_folder("data/00000007-1f2e3d4c"), is_data_folder("data/../x")
    (True, False)
    """
    return _FOLDER.fullmatch(name) is not None


def number_of(folder: str) -> int:
    """The number of the version that a folder of data was made for.

    >>> number_of("data/00000007-1f2e3d4c")
    7
    """
    return int(folder.removeprefix(f"{DATA}/").partition("-")[0])


@dataclass(frozen=True)
class StoredFile:
    """One file of a version's data.

    Args:
        name: relative to the destination.
        bytes, sha256: of its content.
        rows: that it holds; of rows and of keys alone.
    """

    name: str
    bytes: int
    sha256: str
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One table of a version.

    Args:
        table: as `table_to_json` has it.
        dtype: of its weights.
        rows: that the whole table has in this version.
        base: files of all rows; None of a delta.
        changed: files of the rows that changed since the version before, removed: files of the keys
            that went; None of both in a base that follows none.
    """

    table: Json
    dtype: str
    rows: int
    base: list[StoredFile] | None
    changed: list[StoredFile] | None
    removed: list[StoredFile] | None

    @property
    def name(self) -> str:
        """Of the table."""
        return str(self.table["name"])

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """What `asdict` made."""
        lists = {
            name: None if value[name] is None else [StoredFile(**one) for one in value[name]]
            for name in ("base", "changed", "removed")
        }
        return cls(table=value["table"], dtype=value["dtype"], rows=value["rows"], **lists)


@dataclass(frozen=True, kw_only=True)
class PublishedGraph:
    """The dense part of a version as an ONNX graph, whose weights are the model's.

    Args:
        file: the graph; of a delta it may lie in an older folder.
        mark: equal for versions whose models have one graph.
        opset: version of ONNX's operators.
        features: table -> names of its features, in the order in which a batch has them.
        inputs, outputs: of the graph, as `hps.publish.graph.DenseGraph` has them.
    """

    file: StoredFile
    mark: str
    opset: int
    features: dict[str, list[str]]
    inputs: list[Json]
    outputs: list[Json]

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """What `asdict` made."""
        return cls(**{**value, "file": StoredFile(**value["file"])})


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """The dense part of a version.

    Args:
        about: what makes the module whole again beside its weights, such as the recipe of
            `hps train`; a file of JSON.
        weights: one file with all tensors, one after the other.
        tensors: of each `name`, `dtype`, `shape`, `offset` and `bytes` there.
        graph: the same as an ONNX graph; None of a version without one.
    """

    about: StoredFile
    weights: StoredFile
    tensors: list[Json]
    graph: PublishedGraph | None = None

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """What `asdict` made."""
        return cls(
            about=StoredFile(**value["about"]),
            weights=StoredFile(**value["weights"]),
            tensors=list(value["tensors"]),
            graph=None if "graph" not in value else PublishedGraph.from_json(value["graph"]),
        )

    @property
    def files(self) -> list[StoredFile]:
        """All of it."""
        return [self.about, self.weights, *([] if self.graph is None else [self.graph.file])]

    def to_json(self) -> Json:
        """Plain values, without a graph where there is none: as it was before there were any."""
        return {name: one for name, one in asdict(self).items() if (name, one) != ("graph", None)}


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version.

    Args:
        number: counted from 1 at a destination, without a gap.
        kind: "base", which can be read alone, or "delta", which follows the version before it.
        created: when, seconds since 1970.
        lineage: of versions that follow one from the other; a base that begins a new one follows
            none.
        predecessor: number and sha256 of the file of the version before it in its lineage.
        source: which checkpoint of which store it is of.
        period: of the store then.
        seed: of new rows.
        tables: with the weights of rows; none with what waits or trains.
        model: the dense part; None: rows alone.
        folder: of its own files.
        hps: the version of hps that wrote it.
        sha256: of its own file, once it is written.
    """

    number: int
    kind: str
    created: float
    lineage: str
    predecessor: Json | None
    source: Json
    period: int
    seed: int
    tables: list[PublishedTable]
    model: PublishedModel | None
    folder: str
    hps: str = __version__
    sha256: str = field(default="", compare=False)

    @property
    def num_rows(self) -> int:
        """Of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def files(self) -> list[StoredFile]:
        """All that it names; of a delta the model's description and its graph may lie in older
        folders."""
        found: list[StoredFile] = []
        for table in self.tables:
            for part in (table.base, table.changed, table.removed):
                found += part or []
        return found + ([] if self.model is None else self.model.files)

    def to_bytes(self) -> bytes:
        """The file that makes it visible."""
        body: Json = {name: value for name, value in asdict(self).items() if name != "sha256"}
        body = {"format": FORMAT, "format_version": FORMAT_VERSION, **body}
        if self.model is not None:
            body["model"] = self.model.to_json()
        return _encoded({**body, "checksum": hashlib.sha256(_encoded(body)).hexdigest()})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """What `to_bytes` made.

        Raises:
            CorruptionError: it is damaged. ConfigError: it is of another format version.
        """
        value = parse_json(data, where, max_bytes=_MOST_BYTES)
        if not isinstance(value, Mapping) or value.get("format") != FORMAT:
            raise CorruptionError(f"{where}: is not a version that hps has published")
        if value.get("format_version") != FORMAT_VERSION:
            raise ConfigError(
                f"{where}: its format version is {value.get('format_version')!r}, this hps reads "
                f"{FORMAT_VERSION}; take hps {value.get('hps')} or a later one"
            )
        body = {name: part for name, part in value.items() if name != "checksum"}
        if value.get("checksum") != hashlib.sha256(_encoded(body)).hexdigest():
            raise CorruptionError(f"{where}: its checksum does not match what it holds")
        fields: dict[str, Any] = {
            name: part for name, part in body.items() if name not in ("format", "format_version")
        }
        try:
            fields["tables"] = [PublishedTable.from_json(one) for one in fields["tables"]]
            if fields["model"] is not None:
                fields["model"] = PublishedModel.from_json(fields["model"])
            version = cls(**fields, sha256=hashlib.sha256(data).hexdigest())
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptionError(f"{where}: its fields are not those of a version") from error
        version._check_names(where)
        return version

    def _check_names(self, where: str) -> None:
        """Nothing outside of the destination's data is read, or removed, by what a file says."""
        names = [file.name for file in self.files]
        if not _FOLDER.fullmatch(self.folder) or not all(map(_DATA_FILE.fullmatch, names)):
            raise CorruptionError(f"{where}: it names files that are no data of versions")


def _encoded(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()


def load_version(destination: Destination, number: int) -> Version:
    """A version by its number.

    Raises:
        ConfigError: there is none. CorruptionError: its file is damaged. StoreError: it cannot be
            read.
    """
    name = file_of(number)
    try:
        data = destination.read(name)
    except FileNotFoundError:
        kept = listed_versions(destination)
        there = f"those are {kept[0]} to {kept[-1]}" if kept else "there is none"
        raise ConfigError(f"{destination.shown}: version {number} is not kept; {there}") from None
    version = Version.from_bytes(data, f"{destination.shown}/{name}")
    if version.number != number:
        raise CorruptionError(
            f"{destination.shown}/{name}: it is the file of version {version.number}"
        )
    return version


def newest_version(destination: Destination) -> Version | None:
    """The newest one; None where nothing was published."""
    numbers = listed_versions(destination)
    return load_version(destination, numbers[-1]) if numbers else None


def chain_of(destination: Destination, number: int | None = None) -> list[Version]:
    """What is read for a version: a base, then the deltas up to it.

    Args:
        number: of the version; None: the newest.

    Raises:
        ConfigError: nothing was published, or not that version. CorruptionError: a version of the
            chain is missing, damaged, or not the one that its successor names.
    """
    if number is None:
        newest = newest_version(destination)
        if newest is None:
            raise ConfigError(
                f"{destination.shown}: nothing is published here; publish with `hps publish STORE "
                f"{destination.shown}`"
            )
        version = newest
    else:
        version = load_version(destination, number)
    chain = [version]
    while chain[0].kind != BASE:
        chain.insert(0, _before(destination, chain[0]))
    return chain


def versions_after(destination: Destination, own: Version, newest: Version) -> list[Version] | None:
    """The versions that lead from one that is had to a newer one, change by change.

    Returns:
        None where there are none: the newer one is of another lineage, or a version between them
        has no changes to its predecessor. Then it is read from its own base.

    Raises:
        CorruptionError: a version between them is missing or damaged, or does not lead here.
    """
    if newest.lineage != own.lineage or newest.number < own.number:
        return None
    path: list[Version] = []
    version = newest
    while version.number > own.number:
        if version.predecessor is None or any(one.changed is None for one in version.tables):
            return None
        path.insert(0, version)
        if version.number == own.number + 1:
            _check_follows(destination, version, own)
            return path
        try:
            version = _before(destination, version)
        except CorruptionError:
            if any(one.kind == BASE for one in path):
                return None  # what comes before a base may be gone
            raise
    return path


def _before(destination: Destination, version: Version) -> Version:
    """The version that a delta follows."""
    where = f"{destination.shown}/{file_of(version.number)}"
    if version.predecessor is None:
        raise CorruptionError(f"{where}: it is a delta and names no version before it")
    try:
        found = load_version(destination, int(version.predecessor["version"]))
    except ConfigError as error:
        raise CorruptionError(f"{where}: the version that it follows is gone: {error}") from error
    _check_follows(destination, version, found)
    return found


def _check_follows(destination: Destination, version: Version, before: Version) -> None:
    where = f"{destination.shown}/{file_of(version.number)}"
    named = version.predecessor or {}
    if named.get("version") != before.number or named.get("sha256") != before.sha256:
        raise CorruptionError(
            f"{where}: it follows version {named.get('version')} ({named.get('sha256')}), and "
            f"{file_of(before.number)} is {before.sha256}: versions of two histories are mixed"
        )
    if version.lineage != before.lineage:
        raise CorruptionError(f"{where}: it follows a version of another lineage")
