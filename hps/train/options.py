"""TrainOptions: what `hps train` is asked to do, and the store, budgets and reader that follow.

Above it: hps/cli/train.py, which fills it from the flags; `hps.train.run`. Below it: hps/options/,
which declares the options; hps.config, `hps.reader`, `hps.models`. `--dram` and `--gpu` become the
budgets of the caches here; hps.config turns their text into bytes.
Frozen, keyword-only, checked when made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self, cast

from hps.cluster.config import ClusterConfig
from hps.common.admission import Admission
from hps.common.initializers import Normal
from hps.common.json_text import Json
from hps.common.model_names import first_order_table
from hps.common.optimizers import OPTIMIZERS, Optimizer
from hps.config import (
    Config,
    DramCacheConfig,
    GpuCacheConfig,
    SsdStoreConfig,
    TableConfig,
    is_table_name,
)
from hps.errors import ConfigError
from hps.features.features import Features
from hps.models import class_of
from hps.options.data import (
    EPOCH,
    ColumnOptions,
    DataOptions,
    KeyOptions,
    ValidationOptions,
)
from hps.options.declare import check_options
from hps.options.life import OF_FILE, LifeOptions
from hps.options.model import ModelOptions, OptimizerOptions
from hps.options.run import OutputOptions, RankOptions, RunOptions, SpeedOptions
from hps.reader.config import ReaderConfig
from hps.reader.files import PathLike, logs_of
from hps.reader.urls import LogFile
from hps.service.client.options import ClientConfig
from hps.train.end_tag import check_end_tag
from hps.train.held_out import FILES, HeldOut, cut
from hps.train.shape_rules import (
    check_decay,
    check_kind,
    check_sizes,
    check_table_dims,
    check_two_level,
    what_it_lacks,
)

TABLE = "features"
ACCUMULATOR = "initial_accumulator_value"  # of the optimizers that have one
DEFAULT_BATCH_SIZE = 4096
DEFAULT_LEARNING_RATE = 0.05
_LEARNING_RATES = {"adam": 0.001, "sgd": 0.02}
_DEFAULT_STD = 0.01
_DENSE_LEARNING_RATE = 0.001


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Which of the options are part of the model; the defaults are those of a new one.

    A run that goes on has them from its model; see `TrainOptions` for what each is.
    """

    model: str = "deepfm"
    dim: int = 16
    hidden: Sequence[int] = (256, 128)
    dropout: float = 0.0
    embedding_dropout: float = 0.0
    optimizer: str = "adagrad"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(
    DataOptions,
    KeyOptions,
    ColumnOptions,
    ValidationOptions,
    ModelOptions,
    OptimizerOptions,
    LifeOptions,
    RunOptions,
    OutputOptions,
    SpeedOptions,
    RankOptions,
):
    """One run of one model over one log, all features in one table, or as a features file has it.

    The options are those of `hps train`, declared in hps/options/ and listed in docs/options.md;
    `features` is `hps.Features` or the path of a features file, and None is what was not given.
    `data`, `test` and `valid` may be record batches, too, as `hps.reader.open_reader` takes them,
    but for an iterator: each is read several times.

    Args:
        remote: the servers that hold the rows, instead of a store of this process.
        held_out: the files of DATA that are not trained on; a run fills it in.
        followed: the files that were in `follow`, which are `data` from then on; a run fills it in.

    Raises:
        ConfigError: an option outside its limits, or some that do not go together.

    >>> options = TrainOptions(data=["log.tsv"], store="model", model="dlrm", dim=8)
    >>> options.server_config().tables[0].dim
    8
    """

    remote: ClientConfig | None = None
    held_out: HeldOut | None = None
    followed: Sequence[LogFile] | None = None

    def __post_init__(self) -> None:
        for name in ("data", "test", "valid"):
            object.__setattr__(self, name, logs_of(name, getattr(self, name)))
        check_options(self)
        if isinstance(self.features, str | Path):
            object.__setattr__(self, "features", Features.load(self.features))
        if self.resume_if_any:
            object.__setattr__(self, "resume", True)
        if self.advance_every == OF_FILE:
            object.__setattr__(self, "advance", True)
        if (self.store is None) == (self.remote is None):
            raise ConfigError("rows lie in a store or on servers; give store or remote (--server)")
        if self.publish_every and self.publish is None:
            raise ConfigError(
                "publish_every (--publish-every) says how often to publish; give publish "
                "(--publish URL), too"
            )
        if self.publish_onnx and self.publish is None:
            raise ConfigError(
                "publish_onnx (--publish-onnx) says what is published; give publish "
                "(--publish URL), too"
            )
        self._check_metrics()
        own = self.gpu is not None or self.gpu_batches is not None or self.engine != "segments"
        if self.remote is not None and own:
            raise ConfigError(
                "gpu, gpu_batches and engine (--gpu, --gpu-batches, --engine) are the servers' "
                "own; leave them out with remote (--server)"
            )
        self._check_follow()
        self._check_shape()
        self._check_decay()
        self._check_accumulator()
        self._check_validation()
        self.admission()
        if not self.resume:  # else the stored rules may complete them
            self.check_bounds()
            self.expiry()
        if self.advance_every == OF_FILE and self.shuffle_files:
            raise ConfigError(
                "advance_every='file' (--advance-every) begins a period with each file, in the "
                "order of time; leave out shuffle_files (--shuffle-files)"
            )
        self.cluster_config()
        check_end_tag(self.tag)
        if self.resume_from is not None and not self.resume:
            raise ConfigError("resume_from (--resume-from) names what to resume: set resume, too")
        if self.new_data and not self.resume:
            raise ConfigError("new_data (--new-data) continues a model; give resume (--resume) too")
        if self.change_features and not self.new_data:
            raise ConfigError(
                "change_features (--change-features) begins a log anew: a position was reached "
                "with the features before; give new_data (--new-data) too"
            )
        if self.scheduler != "constant" and self.scheduler_steps < 1:
            raise ConfigError(
                f"scheduler={self.scheduler!r} needs scheduler_steps (--scheduler-steps) >= 1, "
                "the steps it spans"
            )
        if self.device is not None and self.gpu is None:
            raise ConfigError(
                f"device={self.device!r} (--device) is that of the GPU tier; give its budget "
                "(gpu, --gpu) too"
            )
        if self.gpu_batches is not None and self.gpu is None:
            raise ConfigError(
                "gpu_batches (--gpu-batches) is a part of the GPU tier's budget; give that "
                "(gpu, --gpu) too"
            )

    def _check_metrics(self) -> None:
        for name in ("metrics_tokens", "metrics_cert", "metrics_key", "metrics_insecure"):
            if getattr(self, name) and self.metrics is None:
                raise ConfigError(
                    f"{name} (--{name.replace('_', '-')}) is for figures; give their address "
                    "(metrics, --metrics), too"
                )
        if (self.metrics_cert is None) != (self.metrics_key is None):
            raise ConfigError(
                "metrics_cert and metrics_key (--metrics-cert, --metrics-key): give both or none"
            )

    def _check_follow(self) -> None:
        if self.follow is None:
            if self.follow_until_idle is not None:
                raise ConfigError(
                    f"follow_until_idle={self.follow_until_idle!r} (--follow-until-idle) ends a "
                    "run that follows a folder; give it (follow, --follow)"
                )
            return
        if self.data and self.followed is None:
            raise ConfigError(
                f"follow={str(self.follow)!r} (--follow) is read instead of DATA; leave DATA out, "
                "or put its files into the folder"
            )
        for name, is_given, why in (
            ("epochs", self.epochs > 1, "it is read once, as it grows"),
            ("shuffle_files", self.shuffle_files, "it is read in the order of its names"),
            ("valid_share", self.valid_share is not None, "give a log of its own (valid, --valid)"),
        ):
            if is_given:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} (--{name.replace('_', '-')}) does not go with "
                    f"a folder that is followed (follow, --follow): {why}"
                )

    def with_followed(self, files: Sequence[LogFile]) -> Self:
        """The options with the files of the folder that is followed as DATA."""
        return replace(self, data=cast("Sequence[PathLike]", tuple(files)), followed=tuple(files))

    def _check_accumulator(self) -> None:
        kind = self.shape().optimizer
        if self.initial_accumulator is None or hasattr(OPTIMIZERS[kind], ACCUMULATOR):
            return
        # Of a run that goes on the model tells its optimizer later.
        if not self.resume or self.optimizer is not None:
            raise ConfigError(
                f"initial_accumulator={self.initial_accumulator!r} (--initial-accumulator): "
                f"optimizer {kind} has no sum of squared gradients; leave it out"
            )

    def _check_decay(self) -> None:
        if self.row_decay() and not OPTIMIZERS[self.shape().optimizer].decays:
            raise ConfigError(
                f"weight_decay={self.weight_decay!r} (--weight-decay): optimizer "
                f"{self.shape().optimizer} takes none; leave it out"
            )
        for field, decay, rate in (
            ("", self.row_decay(), self.row_rate()),
            ("dense_", self.dense_decay(), self.dense_rate()),
        ):
            # Of a run that goes on the checkpoint tells the rate, where nobody says it.
            if not self.resume or getattr(self, f"{field}lr") is not None:
                check_decay(field, decay, rate)

    def _check_validation(self) -> None:
        if self.valid_share is not None and self.valid:
            raise ConfigError(
                "valid and valid_share (--valid, --valid-share) both name what to validate on; "
                "give one of them"
            )
        if self.valid_by == FILES and self.valid_share is None:
            raise ConfigError(
                f"valid_by={FILES!r} (--valid-by) says which files of DATA are held out; give "
                "their share (valid_share, --valid-share) too"
                + (", and leave valid (--valid) out" if self.valid else "")
            )
        if not self.validates:
            given = {"eval_every": EPOCH, "patience": 0, "best_by": "auc"}
            for field, default in given.items():
                if getattr(self, field) != default:
                    flag = field.replace("_", "-")
                    raise ConfigError(
                        f"{field}={getattr(self, field)!r} (--{flag}) is for validation; give "
                        "what to validate on (valid, --valid, or valid_share, --valid-share)"
                    )

    def _check_shape(self) -> None:
        # Of a run that goes on the model tells later what it is, where nobody says it.
        kind = self.model
        if kind is None and not self.resume:
            kind = ModelShape.model
        if kind is not None:
            is_new = self.base_rate and not self.resume
            check_kind(kind, self.store, has_base_rate=is_new)
        shape = self.shape()
        two_level = self.two_level is not None
        check_sizes(kind, shape.dim, shape.hidden, shape.dropout, two_level=two_level)
        if isinstance(self.features, Features):
            check_table_dims(kind, self.features, two_level=two_level)
        if self.two_level is not None and kind is not None:
            check_two_level(kind, self.two_level)

    def shape(self) -> ModelShape:
        """What is part of the model: as given, the rest as a new model has it."""
        given = {field.name: getattr(self, field.name) for field in fields(ModelShape)}
        given = {name: value for name, value in given.items() if value is not None}
        return ModelShape(**{**what_it_lacks(given.get("model", ModelShape.model)), **given})

    def settled(self) -> Self:
        """The options of a new model: no part of its shape is None, nor is its seed."""
        shape = self.shape()
        of_model: Json = {f.name: getattr(shape, f.name) for f in fields(shape)}
        return replace(self, seed=self.run_seed(), **of_model)

    def with_last_files(self) -> Self:
        """The options with DATA's first files as `data` and its last ones in `held_out`; the same
        where no files are to be held out."""
        if self.valid_by != FILES or self.valid_share is None:
            return self
        data, held_out = cut(self.data, self.valid_share)
        return replace(self, data=data, held_out=held_out)

    def run_seed(self) -> int:
        """Seed of rows, dense weights, dropout and shuffles in a new run."""
        return 0 if self.seed is None else self.seed

    def row_rate(self) -> float:
        """Learning rate of rows in a new run."""
        if self.lr is not None:
            return self.lr
        return _LEARNING_RATES.get(self.shape().optimizer, DEFAULT_LEARNING_RATE)

    def dense_rate(self) -> float:
        """Learning rate of the dense part in a new run."""
        return _DENSE_LEARNING_RATE if self.dense_lr is None else self.dense_lr

    def row_decay(self) -> float:
        """Weight decay of rows in a new run."""
        return 0.0 if self.weight_decay is None else self.weight_decay

    def dense_decay(self) -> float:
        """Weight decay of the dense part in a new run."""
        return 0.0 if self.dense_weight_decay is None else self.dense_weight_decay

    def _row_optimizer(self) -> Optimizer:
        rate, decay = self.row_rate(), self.row_decay()
        if self.resume and self.lr is None and decay * rate > 1:
            rate = 1 / decay  # the checkpoint tells the rate later
        kind = OPTIMIZERS[self.shape().optimizer]
        if self.initial_accumulator is None:
            return kind(rate, weight_decay=decay)
        numbers: Json = {ACCUMULATOR: self.initial_accumulator}
        return kind(rate, weight_decay=decay, **numbers)

    def table(self) -> TableConfig:
        """The one table: that of all features which a features file gives no other."""
        return self._table(TABLE)

    def tables(self, features: Mapping[str, Sequence[str]]) -> list[TableConfig]:
        """The tables of a model.

        Args:
            features: table -> its features, as the log's reader has them.

        Returns:
            By name: other features of the same tables change no order. Of several each has a part
            of the tiers: half of it is equal, half goes by the floats that an example reads of each
            where its features have one key (how long bags are is not known before). With
            `two_level` behind each the table of its first-order weights, of which as many rows fit
            into the tiers as of the vectors.

        Raises:
            ConfigError: with `two_level` a name that leaves none for the other table.

        >>> options = TrainOptions(data=["log.tsv"], store="model", model="dlrm", dim=8)
        >>> tables = options.tables({"items": ["C1"], "features": ["C2", "C3", "C4"]})
        >>> [(table.name, table.share) for table in tables]
        [('features', 1.25), ('items', 0.75)]
        """
        if len(features) == 1:
            return [table for name in features for table in self._levels(self._table(name))]
        self._check_names(features)
        tables = [(self._table(name), len(names)) for name, names in sorted(features.items())]
        floats = [table.dim * count for table, count in tables]
        return [
            level
            for (table, _), own in zip(tables, floats, strict=True)
            for level in self._levels(replace(table, share=own / sum(floats) + 1 / len(tables)))
        ]

    def _check_names(self, features: Mapping[str, Sequence[str]]) -> None:
        names = set(features) if self.two_level is not None else set()
        both = sorted(name for name in names if first_order_table(name) in names)
        if both:
            raise ConfigError(
                f"two_level={self.two_level!r} (--two-level): the first-order weights of table "
                f"{both[0]!r} lie in table {first_order_table(both[0])!r}, which is the name of "
                "another one (table in the features file); rename one of them"
            )

    def _levels(self, table: TableConfig) -> list[TableConfig]:
        """The table; with `two_level` that of its vectors and that of its first-order weights."""
        if self.two_level is None:
            return [self._at_rate(table)]
        name = first_order_table(table.name)
        if not is_table_name(name):
            raise ConfigError(
                f"two_level={self.two_level!r} (--two-level): the first-order weights of table "
                f"{table.name!r} lie in table {name!r}, and a name has 64 letters at most; give "
                "the table (table in the features file) a shorter one"
            )
        rule = Admission(by=name, min_score=self.two_level)
        # A rule that counts is one of the weights alone.
        vectors = replace(table, admission=rule, statistics=bool(self.statistics))
        # One bfloat16 takes the bytes of a float32, for rows are a multiple of 16.
        weights = replace(table, name=name, dim=1, statistics=True, dtype="float32")
        share = table.share * weights.layout.row_bytes / vectors.layout.row_bytes
        return [self._at_rate(vectors), self._at_rate(replace(weights, share=share))]

    def _at_rate(self, table: TableConfig) -> TableConfig:
        """The table; one that counts does so as the whole log would have it."""
        if not table.statistics or self.negative_rate is None:
            return table
        return replace(table, negative_rate=self.negative_rate)

    def _table(self, name: str) -> TableConfig:
        shape = self.shape()
        dim = shape.dim
        if isinstance(self.features, Features):
            dim = self.features.dim_of(name) or dim
        return TableConfig(
            name=name,
            dim=class_of(shape.model).row_columns(dim, two_level=self.two_level is not None),
            optimizer=self._row_optimizer(),
            initializer=Normal(std=_DEFAULT_STD if self.init_std is None else self.init_std),
            shared_vocabulary=bool(self.shared_vocabulary),
            statistics=bool(self.statistics),
            expiry=self.expiry(),
            admission=self.admission(),
            **self.bounds(),
            dtype=self.row_dtype or "float32",
        )

    @property
    def validates(self) -> bool:
        """True if the model is measured while it is trained."""
        return bool(self.valid) or self.valid_share is not None

    @property
    def hashed_share(self) -> float | None:
        """The share of DATA's examples that is held out by a hash of each; None: no such."""
        return None if self.valid_by == FILES else self.valid_share

    @property
    def where(self) -> str:
        """Where the rows lie, in words."""
        if self.remote is not None:
            return f"service {','.join(self.remote.addresses)}"
        return f"store {str(self.store)!r}"

    def server_config(self, features: Mapping[str, Sequence[str]] | None = None) -> Config:
        """The store and its tables.

        Args:
            features: as `tables` takes them; None: all in the one table.

        Raises:
            ConfigError: the rows lie on servers.
        """
        if self.store is None:
            raise ConfigError(f"{self.where}: the servers have a configuration of their own")
        gpu = None
        if self.gpu is not None:
            gpu = GpuCacheConfig(
                bytes=self.gpu, device=self.device or "cuda:0", batch_bytes=self.gpu_batches
            )
        return Config(
            path=self.store,
            tables=self.tables({TABLE: ()} if features is None else features),
            dram=DramCacheConfig(bytes=self.dram),
            gpu=gpu,
            ssd=SsdStoreConfig(engine=self.engine),
            seed=self.run_seed(),
            threads=self.threads,
            instruction_set=self.instruction_set,
        )

    def cluster_config(self) -> ClusterConfig:
        """How rows and gradients travel between ranks."""
        return ClusterConfig(
            row_wire=self.row_wire, gradient_wire=self.gradient_wire, hot_rows=self.hot_rows
        )

    def reader_config(self) -> ReaderConfig:
        """How the log is cut into batches."""
        return ReaderConfig(
            format=self.format,
            batch_size=self.batch_size or DEFAULT_BATCH_SIZE,
            dense=self.dense,
            dense_transform=self.dense_transform,
            label="label" if self.label is None else self.label,
            weight=self.weight,
            group=self.group,
            ignore=self.ignore or (),
            dense_columns=self.dense_columns,
            delimiter=self.delimiter,
            hash_keys=self.hash_keys,
            on_error=self.on_error,
            epochs=self.epochs,
            shuffle_files=self.run_seed() if self.shuffle_files else None,
            shuffle_buffer=self.shuffle_buffer,
            shuffle_seed=self.run_seed() if self.shuffle_buffer else 0,
            hash_range=None if self.hashed_share is None else (self.hashed_share, 1.0),
            negative_rate=1.0 if self.negative_rate is None else self.negative_rate,
            threads=self.threads,
        )
