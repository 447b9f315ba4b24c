"""Where a model is loaded from: a checkpoint of a store, or a place where versions are published.

Above it: model.py, the commands that load a model. Below it: a read-only `hps.open`, hps/publish.
"""

from pathlib import Path
from typing import TypedDict

from hps.checkpoint.names import text_of
from hps.common.url_text import is_url
from hps.config import GpuCacheConfig
from hps.errors import ConfigError
from hps.parameter_server.open_server import open as open_store
from hps.publish.destination import open_destination
from hps.publish.version import listed_versions
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.engine import engine_of
from hps.train.checkpoints import newest_with_model

DRAM = "1GiB"
POLL_SECONDS = 1.0


class LoadOptions(TypedDict, total=False):
    """What `Model.load` takes by keyword.

    version: of a published model: the number of the version; None takes the newest.
    follow: of a published model: take newer versions over as they come, from a thread.
    dram: memory for rows, as bytes or text; "1GiB" if it is not given.
    cache_dir: of a published model: a folder for local copies of all rows, from which another
        process can begin; None: a temporary one.
    poll_seconds: between two looks for a newer version; 1 if it is not given.
    gpu: budget and device of a GPU tier; the model runs there, too. None for none.
    """

    version: int | None
    follow: bool
    dram: int | str
    cache_dir: str | Path | None
    poll_seconds: float
    gpu: GpuCacheConfig | None


def is_published(store: str | Path) -> bool:
    """True of a URL, and of a folder that holds versions and no store."""
    if is_url(str(store)):
        return True
    is_store = engine_of(store) is not None or Catalog.load(Path(store)) is not None
    return not is_store and bool(listed_versions(open_destination(store)))


def named_checkpoint(store: str | Path, tag: str | int | None) -> str | int | None:
    """The checkpoint to open, which holds a model."""
    with open_store(store, read_only=True, checkpoint=tag) as server:
        if tag is None:
            found = newest_with_model(server)
            name, state = (None, None) if found is None else (found.name, found.model)
        else:
            name, (state, _) = tag, server.checkpoint_state(tag)
        is_empty = not server.checkpoints()
    if state is not None:
        return name
    if tag is None and is_empty:
        raise ConfigError(
            f"store {str(store)!r} has no checkpoint yet; `hps train` takes its first after "
            "--checkpoint-seconds, or at its end"
        )
    which = "the newest checkpoint" if tag is None else f"checkpoint {text_of(tag)!r}"
    raise ConfigError(
        f"store {str(store)!r}: {which} holds no model; `hps train` writes one that does"
    )
