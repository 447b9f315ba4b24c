"""promote, roll_back and drop: what moves a promoted name, beside whoever writes to the store.

Above it: `hps models`, a served shard, users. Below it: promoted.py, a store opened read-only
without its rows, or the catalog of several ranks.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hps.checkpoint.blobs import LAST
from hps.checkpoint.names import BEST_TAG, FINAL_TAG, check_tag, find_listed, text_of
from hps.common.json_text import Json
from hps.errors import ConfigError, StoreError
from hps.ssd_store.cluster.catalog import Catalog, part_folder
from hps.ssd_store.engine import engine_of
from hps.ssd_store.open_store import open_store
from hps.ssd_store.promoted import Promotion, Promotions, held
from hps.ssd_store.store import SsdStore

LIVE = "live"
# Tags that hps gives by itself: such a name would refuse the checkpoint at the end of a training.
_OF_RUNS = {
    FINAL_TAG: "the model at the end of a training run",
    BEST_TAG: "the best model of a validation",
    LAST: "rows that were changed",
}
_MOST_EARLIER = 99  # that a name goes back over


def promote(path: str | os.PathLike[str], checkpoint: str | int, name: str = LIVE) -> Json:
    """Gives a checkpoint another name, which moves there from the one that had it.

    It may run beside a process that writes to the store. Whatever takes a checkpoint's tag takes
    the name. A checkpoint with a name, and the one that had it before, are not replaced by newer
    ones, neither by their number nor by one of the same tag.

    Args:
        path: the store, or the folder of several ranks, with the stores of all of them.
        checkpoint: its tag, its id, or another promoted name.
        name: as a tag; no checkpoint has it as its tag, nor is it `final`, `best` or `last`, which
            hps gives by itself.

    Returns:
        `name`, `checkpoint` (tag, or id as id:N), `id`, and `before`: what had the name, or None.

    Raises:
        ConfigError: no such checkpoint; the name is a tag or cannot be one.
        StoreError: there is no store, or not that of each rank; the system refused. The name is
            where it was.

    >>> import tempfile, hps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = hps.Config(path=folder, tables=[hps.TableConfig(name="ads", dim=2)])
    ...     with hps.ParameterServer(config) as server:
    ...         for day in ("day-1", "day-2"):
    ...             _ = server.checkpoint(tag=day)
    ...     promote(folder, "day-1")["before"], promote(folder, "day-2")["before"]
    ...     roll_back(folder, "live")["checkpoint"]
    (None, 'day-1')
    'day-1'
    """
    return names_of(path).promote(checkpoint, name)


def names_of(path: str | os.PathLike[str], beside: SsdStore | None = None) -> "NamedCheckpoints":
    """The checkpoints of a store, or of the folder of several ranks, and their names.

    Args:
        path: of it.
        beside: a reader of the store; what it has read of the manifest is not read again.

    Raises:
        StoreError: as promote.
    """
    folder = _whole_folder(path)
    return NamedCheckpoints(os.fspath(path), folder, lambda: _listed(folder, beside))


def roll_back(path: str | os.PathLike[str], name: str = LIVE) -> Json:
    """Gives a name back to the checkpoint that had it before, of those that are still kept.

    Returns:
        As `promote`.

    Raises:
        ConfigError: no such name, or nothing that had it before is kept. StoreError: as promote.
    """
    return names_of(path).roll_back(name)


def drop(path: str | os.PathLike[str], name: str) -> Json:
    """Takes a name away, with its history; the checkpoints stay.

    Returns:
        As `promote`; `checkpoint` and `id` are None.

    Raises:
        ConfigError: no such name. StoreError: as promote.
    """
    folder = _folder(path)
    return NamedCheckpoints(os.fspath(path), folder, lambda: _listed(folder)).drop(name)


@dataclass(frozen=True)
class NamedCheckpoints:
    """The checkpoints of a folder and their promoted names.

    Args:
        shown: the folder, for messages.
        folder: where the names are kept, perhaps by its descriptor.
        listed: the checkpoints, as a store lists them; called while no name moves and none of them
            can go, so that it waits for nobody who takes one.
    """

    shown: str
    folder: Path
    listed: Callable[[], Sequence[Json]]

    def promote(self, checkpoint: str | int, name: str, most_earlier: int = _MOST_EARLIER) -> Json:
        """As the function `promote`; `most_earlier`: checkpoints that the name can go back over."""
        _check_promotable(name)
        with held(self.folder, Path(self.shown)) as promotions:
            listed = self.listed()
            if any(one["tag"] == name for one in listed):
                raise ConfigError(
                    f"{self.shown}: {name!r} is the tag of a checkpoint; take another name"
                )
            found = find_listed(self.shown, listed, checkpoint)
            if found is None:
                raise ConfigError(f"{self.shown}: name the checkpoint to promote by its tag or id")
            given = promotions.names.get(name, ())
            text = text_of(found["tag"] or found["id"])
            before = given[-1].checkpoint if given else None
            if not given or given[-1].created != found["created"]:
                new = Promotion(found["created"], text, time.time())
                moved = promotions.with_history(name, [*given[-most_earlier:], new])
                moved.save(self.folder)
            return {"name": name, "checkpoint": text, "id": found["id"], "before": before}

    def roll_back(self, name: str, at: float | None = None) -> Json:
        """As the function `roll_back`.

        Args:
            name: the promoted name.
            at: when the checkpoint was created that the name is to leave; where it is another's by
                now the name stays: it was moved already. None: it goes back wherever it is.
        """
        with held(self.folder, Path(self.shown)) as promotions:
            given = self._given(promotions, name)
            kept = {one["created"]: one for one in self.listed()}
            earlier = list(given[:-1])
            while earlier and earlier[-1].created not in kept:
                earlier.pop()
            if at not in (None, given[-1].created):
                earlier = list(given)
            if not earlier:
                raise ConfigError(
                    f"{self.shown}: {name!r} is checkpoint {given[-1].checkpoint!r}, and none that "
                    "had the name before is kept; promote another one"
                )
            if earlier[-1] is not given[-1]:
                promotions.with_history(name, earlier).save(self.folder)
            found = kept[earlier[-1].created]
            text = text_of(found["tag"] or found["id"])
            before = given[-1].checkpoint
            return {"name": name, "checkpoint": text, "id": found["id"], "before": before}

    def drop(self, name: str, at: float | None = None) -> Json:
        """As the function `drop`; `at` as roll_back has it, so that nothing is also done, and
        nothing told, where the name was taken away already."""
        with held(self.folder, Path(self.shown)) as promotions:
            now = promotions.names.get(name, ())
            if at is not None and (not now or now[-1].created != at):
                return {"name": name, **self._holder(now), "before": None}
            given = self._given(promotions, name)
            promotions.with_history(name, ()).save(self.folder)
        before = given[-1].checkpoint
        return {"name": name, "checkpoint": None, "id": None, "before": before}

    def _holder(self, given: Sequence[Promotion]) -> Json:
        found = [one for one in self.listed() if given and one["created"] == given[-1].created]
        number = found[0]["id"] if found else None
        return {"checkpoint": given[-1].checkpoint if given else None, "id": number}

    def _given(self, promotions: Promotions, name: str) -> tuple[Promotion, ...]:
        given = promotions.names.get(name)
        if not given:
            names = ", ".join(map(repr, sorted(promotions.names))) or "none"
            raise ConfigError(f"{self.shown}: {name!r} is no promoted name; there are: {names}")
        return given


def _check_promotable(name: str) -> None:
    """Refuses what cannot be a promoted name.

    Raises:
        ConfigError: no tag, or one that hps gives by itself.
    """
    check_tag(name)
    if name in _OF_RUNS:
        raise ConfigError(
            f"{name!r} cannot be a promoted name: {_OF_RUNS[name]} is kept under it as a tag; take "
            f"another name, such as {LIVE!r}"
        )


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if Catalog.load(folder) is None and engine_of(folder) is None:
        raise StoreError(errno.ENOENT, f"{folder}: there is no store to promote a checkpoint in")
    return folder


def _whole_folder(path: str | os.PathLike[str]) -> Path:
    """Of a store; of several ranks the one that all of them see. Where hosts have folders of their
    own, nobody could tell which one's names count."""
    folder = _folder(path)
    catalog = Catalog.load(folder)
    for rank in range(0 if catalog is None else catalog.ranks):
        assert catalog is not None
        part = part_folder(folder, catalog.generation, rank)
        if engine_of(part) is None:
            raise StoreError(
                errno.ENOENT,
                f"{part}: the store of rank {rank} of {catalog.ranks} is not here; names are of a "
                "folder that all ranks see, not of hosts that have folders of their own",
            )
    return folder


def _listed(folder: Path, beside: SsdStore | None = None) -> list[Json]:
    catalog = Catalog.load(folder)
    if catalog is not None:
        return catalog.described(Promotions.load(folder))
    with closing(open_store(folder, [], read_only=True, rows=False, beside=beside)) as store:
        return store.checkpoints()
