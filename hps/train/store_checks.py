"""What is refused of a store before a training run opens it for writing.

Above it: opening.py, beginning.py. Below it: a read-only `hps.open`, a cluster's folder
(`hps.cluster.folder.glance`).
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hps.checkpoint.names import BEST_TAG, FINAL_TAG, find_listed
from hps.cluster.folder.glance import Glance, check_stays, glance
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.features import Features
from hps.models import class_of
from hps.parameter_server.open_server import open as open_store
from hps.ssd_store.cluster.catalog import NAME as CLUSTER
from hps.ssd_store.engine import ROCKSDB_MANIFEST
from hps.ssd_store.new_store import check_new_store
from hps.train.checkpoints import ModelCheckpoint, newest_with_model
from hps.train.checks import checkpoint_to_resume, is_strict, nothing_to_resume

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.options import TrainOptions
    from hps.train.ranks import TrainingRanks


def check_store(
    options: "TrainOptions",
    features: Mapping[str, Sequence[str]],
    ranks: "TrainingRanks",
    *,
    has_model: bool,
) -> Glance | None:
    """Refuses a store of other tables, before opening it for writing would add this run's own.

    Of another dim, too: the store would speak of columns, the user knows of --dim. And of a
    cluster a model that this run is not to go on with: opening it may move all of its rows.

    Args:
        options: of the run.
        features: of its model, by table.
        ranks: that train together.
        has_model: there is one to go on with, on whatever rank's host.

    Returns:
        What a cluster's folder holds; None of others, or where it is not seen.
    """
    config = options.server_config(features)
    path = Path(config.path)
    seen: Glance | None = None
    if ranks.world is not None:
        seen = glance(path)
        if is_strict(options) and (seen is None or not has_model):
            raise nothing_to_resume(options, is_there=seen is not None)
        if seen is None:
            check_new_store(path)
            return None
        dims = seen.dims
        if seen.model is not None and not options.resume:
            raise _holds_model(options, str(ModelCheckpoint(seen.model, {}, {})))
        if options.resume_from is not None:
            check_stays(path, options.resume_from, ranks.size)
    elif any((path / name).exists() for name in ("CURRENT", ROCKSDB_MANIFEST)):
        with open_store(config.path) as stored:
            dims = {table.name: table.dim for table in stored.tables.values()}
            refuse_model(options, stored)
            if is_strict(options):
                checkpoint_to_resume(options, stored)
    elif is_strict(options) and not (path / CLUSTER).exists():
        raise nothing_to_resume(options, is_there=False)
    else:
        check_new_store(path)
        return None
    held = sorted(dims)
    wanted = sorted(table.name for table in config.tables)
    if held and not set(wanted) <= set(held):
        raise ConfigError(
            f"store {str(config.path)!r} holds the tables {held}, this run needs {wanted}; it "
            "belongs to another run or to a program of its own: give another --store"
        )
    for table in config.tables:
        if held and dims[table.name] != table.dim:
            raise _other_columns(options, table, dims[table.name])
    return seen


def _at_dim(features: Features, table: str) -> str:
    """File and line of the dim of a table, or of the column whose own table it is."""
    for group, ones in (("columns", features.columns), ("crosses", features.crosses)):
        if any(one.name == table and one.dim is not None for one in ones):
            return features.at(group, table, "dim")
    return features.at("tables", table, "dim")


def _other_columns(options: "TrainOptions", table: TableConfig, held: int) -> ConfigError:
    """What to raise where the rows have other columns than the model, in the words of the flags or
    of the features file, whichever says the dim."""
    shape, wanted = options.shape(), table.dim
    if isinstance(options.features, Features) and options.features.dim_of(table.name) is not None:
        two_level = options.two_level is not None
        first = class_of(shape.model).row_columns(0, two_level=two_level)
        return ConfigError(
            f"{_at_dim(options.features, table.name)}: dim = {wanted - first} of table "
            f"{table.name!r}: its rows in store {str(options.store)!r} have dim {held - first}; "
            "give that, or another --store"
        )
    others = wanted - shape.dim  # a first-order weight, in models that have one
    fitting = held - others
    beside = f" and {others} first-order weight" if others else ""
    begins, wants, way_out = f"--dim {shape.dim}: ", f"{shape.dim}{beside}", f"--dim {fitting}"
    if not shape.dim:
        begins, wants = "", f"{wanted}"
    if not shape.dim or fitting < 1:
        way_out = "another --model"
    return ConfigError(
        f"{begins}the rows of store {str(options.store)!r} have {held} columns, and --model "
        f"{shape.model} wants {wants}; give {way_out}, or another --store"
    )


def refuse_model(options: "TrainOptions", server: "TrainingServer") -> None:
    """A new model may not be trained on top of one, in whatever checkpoint that is."""
    if not options.resume:
        found = newest_with_model(server, passes_over=True)
        if found is not None:
            raise _holds_model(options, str(found))


def _holds_model(options: "TrainOptions", checkpoint: str) -> ConfigError:
    other = "another store" if options.remote is None else "other servers"
    return ConfigError(
        f"{options.where} holds a trained model (checkpoint: {checkpoint}); continue it with "
        f"--resume, or name {other}"
    )


def check_tag_free(
    options: "TrainOptions", server: "TrainingServer", stored: ModelCheckpoint | None
) -> None:
    """Refuses a tag that the run could not take at its end, before anything is trained.

    One that goes on in the same log from that very checkpoint takes its tag along, as `final` goes
    along with any.

    Raises:
        ConfigError: the tag is taken; it, "final" of a run without one, or "best" of a run that
            validates is a promoted name.
    """
    tag = options.tag
    listed = server.checkpoints()
    for wanted in (tag or FINAL_TAG, *([BEST_TAG] if options.validates else [])):
        if any(wanted in one.get("names", ()) for one in listed):
            raise _is_promoted(options, wanted)
    if tag is None:
        return
    taken = next((one for one in listed if one["tag"] == tag), None)
    if taken is None:
        return
    if stored is not None and not options.new_data:
        own = find_listed(options.where, listed, stored.name)
        if own is not None and own["tag"] == tag:
            return
    raise ConfigError(
        f"tag={tag!r} (--tag): {options.where} keeps a checkpoint of that name; "
        f"take another name, or delete that one first: hps checkpoints {_folder(options)} --delete "
        f"{tag}"
    )


def _folder(options: "TrainOptions") -> str:
    """The store as a command names it."""
    return "DIR" if options.store is None else shlex.quote(str(options.store))


def _models_of(options: "TrainOptions") -> str:
    """The store or the servers as `hps models` names them."""
    if options.remote is None:
        return _folder(options)
    return f"--server {','.join(options.remote.addresses)}"


def _is_promoted(options: "TrainOptions", tag: str) -> ConfigError:
    if tag == options.tag:
        return ConfigError(
            f"tag={tag!r} (--tag): it is a promoted name; name the run otherwise, and give its "
            f"checkpoint that name when it is done: hps models {_models_of(options)} --promote TAG "
            f"--as {tag}"
        )
    what = "its best model" if tag == BEST_TAG else "its end, as no --tag is given"
    return ConfigError(
        f"{tag!r} is a promoted name in {options.where}, and the run keeps {what} under that tag; "
        f"give the checkpoint another name (hps models {_models_of(options)} --promote {tag} --as "
        f"NAME), and take this one away (hps models {_models_of(options)} --drop {tag})"
    )
