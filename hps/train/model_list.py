"""The models that a store's checkpoints hold: what each is, and how far it was trained.

Above it: `hps models`. Below it: the checkpoints' blobs, of a store or a cluster's folder, opened
read-only without an index of rows, or what servers tell; recipe.py says what a model is.
"""

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from hps.checkpoint.blobs import MODEL, READER, TABLES, Dense, decode_dense, described_tables
from hps.checkpoint.names import find_listed, text_of
from hps.cluster.folder.glance import FirstParts
from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.errors import ConfigError, HpsError, StoreError
from hps.models import MODELS
from hps.reader.position_files import PositionFiles
from hps.ssd_store import open_store
from hps.ssd_store.cluster.catalog import Catalog
from hps.train.recipe import ModelRecipe
from hps.train.trainer import stored_recipe

if TYPE_CHECKING:
    from hps.service.client.parameter_server import RemoteParameterServer

_NAMES = (MODEL, READER, TABLES)
Found = TypeVar("Found")


@dataclass(frozen=True)
class ModelList:
    """The models of a store.

    Args:
        models: oldest first, as `models_of` describes them.
        unseen: names of checkpoints of a cluster whose first part, where a model would be, is not
            on this host.
    """

    models: list[Json]
    unseen: list[str]


class _Kept(Protocol):
    """A store or `FirstParts`."""

    def checkpoints(self) -> list[Json]: ...

    def extras(self, name: str | int | None, names: "Collection[str]", /) -> dict[str, bytes]: ...

    def close(self) -> None: ...


def models_of(path: str | Path) -> ModelList:
    """Every checkpoint that holds a model, the oldest first.

    Of each: `tag` and `id` (both None of the current one where it is kept but not listed, as its
    tag was deleted), `names` (that it was promoted to), `created` (seconds since 1970), `current`,
    `rows`, `bytes`; `kind`, `dim` (None where the tables differ), `examples`, `batches`,
    `train_logloss` (mean over the examples, by their weights; all None of a model that `hps train`
    did not store), `dims` (by table), `files` (of DATA: `name`, `bytes`), `parent` (tag, or id as
    id:N, of the checkpoint that its run went on from with new data, or went back to; None of a
    model that began anew), `evaluation` (the last one's figures, or None).

    Args:
        path: of a store, or of a cluster's folder; it may be beside a training.

    Raises:
        StoreError: there is no store, or it cannot be read. CorruptionError: it is damaged.

    Cost: reads the dense side of every checkpoint.
    """
    return _read(Path(path), _list)


def model_of(path: str | Path, name: str | int) -> Json:
    """All that is known of one: the fields of `models_of`, `recipe`, `options`, `settings`,
    `totals`, `evaluations`, `lineage` (`checkpoint`, `created`, `examples` of each that it descends
    from, the oldest first), `parameters` (of the dense part) and `position` (of the reader); None
    where its checkpoint does not say.

    Args:
        path: as models_of has it.
        name: tag or id of the checkpoint.

    Raises:
        ConfigError: there is no such checkpoint, or it holds no model.
        StoreError, CorruptionError: as models_of.
    """

    def describe(kept: _Kept) -> Json:
        where = f"store {str(path)!r}"
        info = find_listed(where, kept.checkpoints(), name)
        assert info is not None  # None stands for the current one alone
        blobs = _blobs(kept, info["id"])
        if blobs is None:
            raise ConfigError(
                f"{where}: checkpoint {text_of(name)!r} has its first part, where a model would "
                "be, on another host"
            )
        if MODEL not in blobs:
            raise _without_model(where, name)
        return describe_model(info, blobs, is_whole=True)

    return _read(Path(path), describe)


def _list(kept: _Kept) -> ModelList:
    models, unseen = [], []
    listed = kept.checkpoints()
    infos: list[Json] = list(listed)
    if not any(one["current"] for one in listed):
        nothing: Json = {**dict.fromkeys(("tag", "id", "created", "rows", "bytes")), "names": []}
        infos.append({**nothing, "current": True})
    for info in infos:
        blobs = _blobs(kept, info["id"])
        if blobs is None:
            unseen.append(text_of(info["tag"] or info["id"]))
        elif MODEL in blobs:
            models.append(describe_model(info, blobs))
    return ModelList(models, unseen)


def _read(path: Path, ask: Callable[[_Kept], Found]) -> Found:
    """Asks what a folder keeps; anew where a trainer beside us has changed that meanwhile."""
    before: list[Json] | None = None
    while True:
        with closing(_open(path)) as kept:
            listed = kept.checkpoints()
            try:
                return ask(kept)
            except HpsError:
                # What was listed may be gone; of the same list that cannot be.
                if listed == before:
                    raise
                before = listed


def _open(path: Path) -> _Kept:
    if Catalog.load(path) is None:
        return open_store(path, [], read_only=True, rows=False)
    parts = FirstParts.of(path)
    if parts is None:
        raise StoreError(
            errno.ENOENT, f"{path}: the ranks have taken no checkpoint yet; wait for the first"
        )
    return parts


def _blobs(kept: _Kept, name: str | int | None) -> dict[str, bytes] | None:
    """Those that tell of a model; None where they are on another host."""
    if isinstance(kept, FirstParts) and not kept.sees(name):
        return None
    return kept.extras(name, _NAMES)


def served_models(server: "RemoteParameterServer") -> list[Json]:
    """As `models_of`, of the checkpoints that all shards of a service hold; dims are those of the
    tables as they are now.

    Raises:
        RemoteError: a shard does not answer. CorruptionError: a checkpoint is damaged.

    Cost: the dense side of every checkpoint comes over the network.
    """
    described = []
    for info in server.checkpoints():
        try:
            model, reader = server.checkpoint_state(int(info["id"]))
        except ConfigError:  # a training beside us has deleted it since
            continue
        if model is not None:
            described.append(_describe(info, (model, reader), list(server.tables.values())))
    return described


def served_model(server: "RemoteParameterServer", name: str | int) -> Json:
    """As `model_of`, of a checkpoint that all shards of a service hold.

    Raises:
        ConfigError: there is no such checkpoint, or it holds no model. RemoteError,
            CorruptionError: as served_models.
    """
    where = f"service {','.join(server.config.addresses)}"
    info = find_listed(where, server.checkpoints(), name)
    assert info is not None  # None stands for the current one alone
    model, reader = server.checkpoint_state(int(info["id"]))
    if model is None:
        raise _without_model(where, name)
    return _describe(info, (model, reader), list(server.tables.values()), is_whole=True)


def _without_model(where: str, name: str | int) -> ConfigError:
    return ConfigError(
        f"{where}: checkpoint {text_of(name)!r} holds no model; 'hps models' lists those that do"
    )


def describe_model(info: JsonView, blobs: Mapping[str, bytes], *, is_whole: bool = False) -> Json:
    """What `models_of` says of a checkpoint; with `is_whole` what `model_of` says.

    Args:
        info: as a store lists it.
        blobs: those that tell of a model.
    """
    return _describe(info, decode_dense(blobs), described_tables(blobs), is_whole=is_whole)


def _describe(
    info: JsonView, dense: Dense, tables: Sequence[TableConfig], *, is_whole: bool = False
) -> Json:
    model, reader = dense
    recipe = recipe_in(model or {})
    dims = {} if recipe is None else _dims_of(recipe, tables)
    # What a user's own loop stored may be anything.
    state: JsonView = {} if model is None or recipe is None else model
    totals: JsonView = state.get("totals", {})
    evaluations: list[Json] = state.get("evaluations") or []
    lineage: list[Json] = state.get("lineage") or []
    names = ("tag", "id", "created", "current", "rows", "bytes")
    examples = totals.get("examples")
    weight = totals.get("weight_sum", examples)  # older models have no weights
    described: Json = {
        **{name: info[name] for name in names},
        "names": list(info.get("names", ())),
        "kind": None if recipe is None else recipe.kind,
        "dim": next(iter(dims.values()), None) if len(set(dims.values())) == 1 else None,
        "dims": dims,
        "examples": examples,
        "batches": totals.get("batches"),
        "train_logloss": totals["loss_sum"] / weight if weight else None,
        "files": _files_of(reader or {}),
        "parent": lineage[-1]["checkpoint"] if lineage else None,
        "evaluation": evaluations[-1] if evaluations else None,
    }
    if is_whole:
        weights: JsonView = state.get("model", {})
        described |= {
            "recipe": None if recipe is None else recipe.to_dict(),
            "options": state.get("options"),
            "settings": state.get("settings"),
            "totals": dict(totals) or None,
            "evaluations": evaluations,
            "lineage": lineage,
            "parameters": {name: list(one.shape) for name, one in weights.items()},
            "position": reader,
        }
    return described


def recipe_in(state: JsonView) -> ModelRecipe | None:
    """None of a model that `hps train` did not store."""
    try:
        return stored_recipe(state)
    except (ConfigError, KeyError):
        return None


def _dims_of(recipe: ModelRecipe, tables: Sequence[TableConfig]) -> dict[str, int]:
    """Floats of an embedding of each of these tables, without the first-order column."""
    if recipe.kind not in MODELS:  # of a user's own: its file is not run for this
        return {}
    columns = {table.name: table.dim for table in tables}
    return {
        name: columns[name] - recipe.other_columns for name in recipe.features if name in columns
    }


def _files_of(position: JsonView) -> list[Json]:
    stored = position.get("files")
    try:
        files = PositionFiles.of(stored).known
    except ConfigError:  # of a reader of the user's own
        own = stored if isinstance(stored, list) else []
        files = [one for one in own if isinstance(one, list) and one[1:]]
    return [{"name": name, "bytes": size} for name, size in files]
