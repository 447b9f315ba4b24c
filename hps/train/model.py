"""Model: a stored or published model that scores examples.

Above it: users, `hps evaluate`, `hps predict`. Below it: recipe.py, `hps.models`, a read-only
`hps.open`, follower.py (published versions), raw_columns.py.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch

from hps.common.arrays import HOST, AnyArray
from hps.common.json_text import Json
from hps.contracts.training import TrainingServer
from hps.errors import ConfigError
from hps.models.kinds import load_class
from hps.parameter_server.open_server import open as open_store
from hps.publish.version import load_version
from hps.publish.version_list import MOST
from hps.reader.files import Batches
from hps.reader.reader import Reader
from hps.train.absent_keys import AbsentKeys
from hps.train.checkpoints import ModelCheckpoint
from hps.train.current import Current
from hps.train.follower import Follower
from hps.train.graph_model import GraphModel
from hps.train.loaded import Loaded
from hps.train.model_places import (
    DRAM,
    POLL_SECONDS,
    LoadOptions,
    is_published,
    named_checkpoint,
)
from hps.train.published_rows import RowMemory
from hps.train.raw_columns import RawColumns
from hps.train.recipe import ModelRecipe
from hps.train.trainer import stored_recipe
from hps.types import Batch

if TYPE_CHECKING:
    import pyarrow as pa

    from hps.models import ClickModel

# Requests of so few rows are scored one after the other, whatever the number of threads: their
# operations let Python's lock go for microseconds, and threads that pass it to and fro make half of
# the calls of one.
_FEW_ROWS = 64
_LEAST_WATCHED = 256  # examples of `predict` by which its keys are judged


class Model:
    """A model of `hps train` that is read from a store, or from where it is published: it scores,
    and changes nothing.

    Rows and dense part are those of one checkpoint, whatever a trainer does to the store meanwhile.
    With `follow` they become those of newer versions, between two calls. Any number of threads may
    call. To be closed: a context manager, or `close`.

    A model of hps is scored by torch. One of a user's own class that was published with its ONNX
    graph is scored by onnxruntime, and no code of the class is needed (docs/publishing.md).

    Attributes `module`, `recipe`, `server`, `checkpoint` and `version` (text: the number of a
    published version, else the checkpoint) may be read. `module` is the torch
    module, an `hps.models.ClickModel` in eval mode on the device of its rows: called with a batch
    of `open_reader` it gives logits [B], before what `predict` adds for a negative rate, and
    `module.state_dict()` is the dense part, without rows. It is for looking into, or for exporting:
    neither train it nor change its mode, which it shares with `predict`. `predict` is the way to
    score from several threads: it holds no gradients and moves batches to the device.

    Args:
        server: its rows, open.
        found: the checkpoint, or what was made of it.

    Raises:
        ConfigError: the checkpoint's model is not one of hps.

    >>> import pathlib, tempfile, hps
    >>> from hps.train import TrainOptions, train
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log, store = pathlib.Path(folder, "log.libsvm"), pathlib.Path(folder, "store")
    ...     written = log.write_text("1 7:1 9:1\\n0 8:1\\n" * 20)
    ...     trained = train(TrainOptions(data=[log], store=store, dim=2, hidden=(4,), dram="8MiB"))
    ...     with hps.Model.load(store) as model:
    ...         for batch in model.open_reader([log], batch_size=64):
    ...             print(model.predict(batch).shape)
    torch.Size([40])
    """

    def __init__(
        self,
        server: TrainingServer,
        found: ModelCheckpoint | Current[Loaded],
        follower: Follower[Loaded] | None = None,
    ) -> None:
        self._held = ExitStack()
        self._in_turn = threading.Lock()
        self._follower = follower
        self._absent: AbsentKeys | None = None  # of what was scored last
        if isinstance(found, ModelCheckpoint):
            found = Current(Loaded.of(server, found))
        self._current = found

    @classmethod
    def load(
        cls,
        store: str | Path,
        tag: str | int | None = None,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """The model of a store, which is opened read-only, also beside a training; or of a place
        where versions are published.

        Args:
            store: its folder; or the folder or URL that `hps publish` writes to.
            tag: of a store: tag or id of the checkpoint; None takes the newest with a model.
            options: see `LoadOptions`.

        Raises:
            ConfigError: no such checkpoint or version, it holds no model of hps, or one of a user's
                own whose file is not where the checkpoint says, or has changed.
            StoreError, CorruptionError: it cannot be read.
        """
        if is_published(store):
            if tag is not None:
                raise ConfigError(
                    f"{store}: versions are published here, which have numbers and no tags; name "
                    "one by version="
                )
            return cls._published(store, options)
        if any(options.get(name) for name in ("version", "follow", "cache_dir", "poll_seconds")):
            raise ConfigError(
                f"{store}: version, follow, cache_dir and poll_seconds are of published models, "
                "and this is no place where one is published; `hps publish` writes there"
            )
        name = named_checkpoint(store, tag)
        with ExitStack() as held:
            server = held.enter_context(
                open_store(
                    store,
                    read_only=True,
                    checkpoint=name,
                    dram=options.get("dram", DRAM),
                    gpu=options.get("gpu"),
                )
            )
            # Of the very checkpoint whose rows are read: a training may have replaced that tag.
            state, _ = server.checkpoint_state()
            if state is None:
                raise ConfigError(
                    f"store {str(store)!r}: its checkpoint was replaced meanwhile by one without a "
                    "model; repeat the command"
                )
            load_class(stored_recipe(state).kind, store=store, is_stored=True)
            model = cls(server, ModelCheckpoint(name, state, {}))
            model._held = held.pop_all()
        return model

    @classmethod
    def _published(cls, place: str | Path, options: LoadOptions) -> Self:
        follower: Follower[Loaded] = Follower(
            place,
            options.get("cache_dir"),
            RowMemory(options.get("dram", DRAM), options.get("gpu")),
            options.get("poll_seconds", POLL_SECONDS),
        )
        current = follower.load(options.get("version"), Loaded.published)
        model = cls(current.value.server, current, follower)
        model._held.callback(follower.close)
        if options.get("follow", False):
            follower.start()
        return model

    @property
    def loaded(self) -> Loaded:
        """What scores; another one with each version."""
        return self._current.value

    @property
    def server(self) -> TrainingServer:
        """Of the rows. Beside a change of versions it may hold some rows of either; `lookup` reads
        those of one."""
        return self.loaded.server

    @property
    def checkpoint(self) -> str | int | None:
        """That rows and dense part are of; of a published model the number of its version."""
        return self.loaded.checkpoint

    @property
    def version(self) -> str:
        """The same as text."""
        return self.loaded.version

    @property
    def module(self) -> "ClickModel":
        """The torch module, in eval mode.

        Raises:
            ConfigError: the model is scored by its ONNX graph, and has none.
        """
        if isinstance(self.loaded.scores, GraphModel):
            raise ConfigError(
                f"version {self.version}: its model is scored by the ONNX graph that it was "
                "published with; it has no torch module here"
            )
        return self.loaded.scores

    @property
    def has_recipe(self) -> bool:
        """Whether the model knows the log that it was trained on, and so makes keys of raw
        columns. One that was published with `onnx=` by a loop of a user's own scores batches of
        keys alone."""
        return self.loaded.recipe is not None

    @property
    def recipe(self) -> ModelRecipe:
        """What the model was made by.

        Raises:
            ConfigError: it has none.
        """
        if self.loaded.recipe is None:
            raise _no_recipe(self.loaded)
        return self.loaded.recipe

    @property
    def kind(self) -> str:
        """Its class, as `hps train --model` has it; "onnx" of one without a recipe."""
        return "onnx" if self.loaded.recipe is None else self.loaded.recipe.kind

    @property
    def num_dense(self) -> int:
        """Dense columns of a batch."""
        return self.loaded.num_dense

    @property
    def sequences(self) -> Mapping[int, int]:
        """Place of each sequence among the features -> that of its target."""
        return self.loaded.scores.sequences

    def roll_back(self, version: int) -> None:
        """Of a published model: goes to a version that is kept, and follows no more until
        `follow`.

        Raises:
            ConfigError: it is not kept, or this is the model of a store. CorruptionError,
                StoreError: it cannot be read; the version before it stays.
        """
        self._following("roll_back").go_to(version)

    def follow(self) -> None:
        """Of a published model: takes newer versions over from now on.

        Raises:
            ConfigError: this is the model of a store.
        """
        self._following("follow").start()

    def versions(self, most: int = MOST) -> tuple[int, list[Json]]:
        """Of a published model: the versions that are kept, to which `roll_back` can go.

        Args:
            most: that are described, the newest ones.

        Returns:
            (how many are kept, those that are described, the oldest first), as
            `hps.publish.version_list.list_versions` describes them.

        Raises:
            ConfigError: this is the model of a store. StoreError: they cannot be listed.
        """
        return self._following("versions").versions(most)

    @property
    def has_versions(self) -> bool:
        """Whether the model is read from where versions are published, and not from a store."""
        return self._follower is not None

    def check_kept(self, version: int) -> None:
        """Of a published model: raises ConfigError unless `roll_back` can go to a version, by its
        file; CorruptionError or StoreError of one that is damaged or cannot be read."""
        load_version(self._following("check_kept").destination, version)

    def following(self) -> Json:
        """Of a published model: `version`, `created` (when it was made, seconds since 1970),
        `newest` (seen where it is published), `lineage`, `is_following`, `changed_at` (when it was
        taken over) and `error`, what the last look met: the version that is had goes on scoring.

        Raises:
            ConfigError: this is the model of a store.
        """
        return self._following("following").state()

    def _following(self, verb: str) -> Follower[Loaded]:
        if self._follower is None:
            raise ConfigError(f"{verb}: this model is read from a store; it has no versions")
        return self._follower

    @property
    def features(self) -> dict[str, list[str]]:
        """Table -> names of its features, in the order of a batch."""
        return {table: list(names) for table, names in self.loaded.features.items()}

    def batch_of(self, given: "Mapping[str, Any] | pa.RecordBatch") -> Batch:
        """The batch that `predict` makes of raw columns; the same errors."""
        return _raw_of(self.loaded).batch_of(given)

    def predict(self, batch: "Batch | Mapping[str, Any] | pa.RecordBatch") -> torch.Tensor:
        """Probability of a click for each example, float32 [B] on the host.

        Args:
            batch: an `hps.Batch` of `open_reader`; or raw columns by name, as a pyarrow RecordBatch
                or a dict of arrays or lists: those of the log that the model was trained on
                (criteo: I1, I2, ... and C1, C2, ...), labels and others aside. Of slots, libffm
                and libsvm with an entry an example: a key or a list of keys; of the latter two also
                a mapping of indices to values. Whole numbers may be floats with NaN for what is
                missing, as pandas has them, and of csv stand for their text. Dense values of csv
                and criteo may be text, as the log has it. None and [] are no keys.

        Where most keys of a feature have no row, the logger `hps.train.absent_keys` warns, once.

        Raises:
            ConfigError: what is given has no columns that the model could read.
            DataError: a column is missing or of a type that does not fit, a dense value is not
                finite.
            StoreError, CorruptionError: a row could not be read.
        """
        with self._reading(batch) as loaded:
            if not isinstance(batch, Batch):
                batch = _raw_of(loaded).batch_of(batch)
            self._watch(loaded, batch)
            return self._predict(loaded, batch)

    def predict_with_version(
        self, batch: "Batch | Mapping[str, Any] | pa.RecordBatch"
    ) -> tuple[torch.Tensor, str]:
        """As `predict`, and the version that has scored all of it; warns of nothing."""
        with self._reading(batch) as loaded:
            return self._predict(loaded, batch), loaded.version

    @contextmanager
    def _reading(self, batch: "Batch | Mapping[str, Any] | pa.RecordBatch") -> Iterator[Loaded]:
        in_turn = self._in_turn if _num_rows(batch) <= _FEW_ROWS else nullcontext()
        with in_turn, self._current.reading() as loaded:
            yield loaded

    def _watch(self, loaded: Loaded, batch: Batch) -> None:
        absent = self._absent
        if absent is None or absent.loaded is not loaded:
            self._absent = absent = AbsentKeys(loaded)
        if absent.see(batch, is_hasty=len(batch) <= _FEW_ROWS):
            absent.warn(least=_LEAST_WATCHED)

    def _predict(
        self, loaded: Loaded, batch: "Batch | Mapping[str, Any] | pa.RecordBatch"
    ) -> torch.Tensor:
        if not isinstance(batch, Batch):
            batch = _raw_of(loaded).batch_of(batch)
        # What a device's cache keeps must not be memory of inference: it is written later, too.
        scores = loaded.scores
        is_here = torch.device(scores.device).type == HOST
        with torch.inference_mode() if is_here else torch.no_grad():
            logits = scores.score(batch.to(scores.device))
        with torch.no_grad():  # a tensor of the caller's, as any other
            return torch.sigmoid(logits.float()).cpu()

    def lookup(self, table: str, keys: AnyArray) -> AnyArray:
        """Rows of keys, float32 [L, dim]; an absent key reads as its initial value. Of a model of
        two levels the rows of a table are vectors, those of `hps.models.first_order_table(table)`
        the weights."""
        return self.lookup_with_version(table, keys)[0]

    def lookup_with_version(self, table: str, keys: AnyArray) -> tuple[AnyArray, str]:
        """As `lookup`, and the version that all rows are of."""
        with self._current.reading() as loaded:
            return loaded.rows.pull(table, keys), loaded.version

    def open_reader(self, data: Sequence[str | Path] | Batches, **changes: Any) -> Reader:
        """A reader of another log with the columns of the model's.

        Args:
            data: its files, or patterns; of a model of parquet or csv record batches, too, as
                `hps.reader.open_reader` takes them.
            changes: fields of `hps.reader.ReaderConfig` that differ from the training's. `group`
                may be any column or None; weights are read only if `weight` names them.

        Raises:
            ConfigError: one of them would change what an example is.
        """
        return self.recipe.open_reader(data, list(self.server.tables.values()), **changes)

    def close(self) -> None:
        """Lets the store go, and follows no more; nothing to do the second time."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        what = "checkpoint" if self._follower is None else "version"
        return f"{type(self).__name__}({self.kind}, {what} {self.version})"


def _raw_of(loaded: Loaded) -> RawColumns:
    if loaded.raw is None:
        raise _no_recipe(loaded)
    return loaded.raw


def _no_recipe(loaded: Loaded) -> ConfigError:
    return ConfigError(
        f"version {loaded.version}: its model was published without the recipe of `hps train`, "
        "which says how raw columns become keys; give an hps.Batch of keys"
    )


def _num_rows(batch: "Batch | Mapping[str, Any] | pa.RecordBatch") -> int:
    """Rows of what is to be scored, as far as it tells."""
    if isinstance(batch, Batch):
        return len(batch)
    if not isinstance(batch, Mapping):
        return int(getattr(batch, "num_rows", 0))
    try:
        return len(next(iter(batch.values()), ()))
    except TypeError:  # a single value, which is looked at later
        return 0
