"""TrainOptions: what `hps train` is asked to do, and the store, budgets and reader that follow.

Above it: hps/cli/train.py, which fills it from the flags; `hps.train.run`. Below it: hps.config,
`hps.reader`, `hps.models`. `--dram` and `--gpu` become the budgets of the caches here; hps.config
turns their text into bytes. Frozen, keyword-only, checked when made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

from hps.cluster.config import ClusterConfig
from hps.common.field_checks import require_number, require_share, require_whole
from hps.common.initializers import Normal
from hps.common.json_text import Json
from hps.common.optimizers import OPTIMIZERS
from hps.config import (
    ENGINES,
    Config,
    DramCacheConfig,
    GpuCacheConfig,
    SsdStoreConfig,
    TableConfig,
)
from hps.errors import ConfigError
from hps.features.features import Features
from hps.models import class_of
from hps.pipeline import MAX_DEPTH, MAX_LOOKAHEAD
from hps.reader.config import MAX_SHUFFLE_BUFFER, ReaderConfig
from hps.service.client.options import ClientConfig
from hps.train.depth import AUTO
from hps.train.evaluations import BEST_BY
from hps.train.shape_rules import check_kind, check_sizes, what_it_lacks

TABLE = "features"
EPOCH = "epoch"
SCHEDULERS = ("constant", "warmup", "cosine")
PRECISIONS = ("float32", "bfloat16", "float16")
_LEARNING_RATES = {"adam": 0.001, "ftrl": 0.05}
_DEFAULT_LEARNING_RATE = 0.02
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
    optimizer: str = "adagrad"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """One run of one model over one log, all features in one table.

    Args:
        data: the log's files, in order; patterns too.
        store: directory of the store; None with `remote`.
        remote: the servers that hold the rows, instead of a store of this process.
        format: of the log; see `hps.reader`. None: told by its files, or when resuming the model's.
        model: a name in `hps.models.MODELS`, or a user's own as `file.py:Class`, whose file is run
            then; this, `dim`, `hidden`, `dropout` and `optimizer` are part of the model: None takes
            what `ModelShape` has, or when resuming the model's.
        dim: width of an embedding; models with a first-order term add a column to the table. Of lr,
            which has no embedding, to be left out.
        batch_size: examples a batch.
        accumulate: batches a step.
        epochs: passes over the log.
        shuffle_files: read the log's files in an order drawn from `seed`, another each epoch.
        shuffle_buffer: examples that are read together and handed out in an order drawn from
            `seed`, another each epoch; 0 keeps the log's order. See `hps.reader.ReaderConfig`.
        progressive: measure, too, how well the model scores each example before it is trained on
            it, by file; see `hps.train.progressive`.
        limit: stop after as many examples, resumed ones included; 0 is no limit.
        test: a log to measure the model on in the end; empty for none.
        valid: a log to measure the model on while it is trained; empty for none. The best model is
            kept under the tag "best".
        valid_share: instead of `valid`: the share of DATA, above 0 and below 1, that is not trained
            on but validated on; chosen by a hash of each example's content (docs/formats.md).
        eval_every: batches between two validations, or "epoch": one at the end of each. There is
            one at the end of the run in any case.
        patience: end the run after as many validations in a row that were no better than the best;
            0 for never.
        best_by: what makes a model the best one: "auc" or "logloss".
        dram: budget of the host tier.
        gpu: budget of the GPU tier; None for none.
        device: of the GPU tier.
        engine: of the SSD tier: "segments" or "rocksdb"; fixed once the store exists.
        depth: batches prepared ahead, 0 to 8, or "auto": 2 where that measures faster than 0.
        lookahead: batches read before they are fetched, whose rows caches keep if they can; where
            the depth is 0, none.
        trace: file for a trace of the stages; None for none.
        report: folder for the run's history (`run.jsonl`), written as it goes; None for none.
        tensorboard: folder for TensorBoard's event files with the same figures; None for none.
        optimizer: of rows; a name in `hps.common.optimizers.OPTIMIZERS`.
        lr: of rows; None takes 0.02 (Adam 0.001, FTRL 0.05), or when resuming the stored one; a
            number wins over the stored one, unless a scheduler runs.
        dense_lr: of the dense part's Adam; None takes 0.001, or the stored one, as lr.
        init_std: standard deviation of new rows' weights.
        hidden: widths of the deep part. Of lr and fm, which have none, to be left out.
        dropout: of the deep part, likewise.
        scheduler: "constant"; "warmup": linear from a tenth, over `scheduler_steps`; "cosine": down
            to 0 over `scheduler_steps`. Of rows and dense part alike.
        precision: of the dense part's forward; "float16" goes with a gradient scaler.
        compile: the model's forward and backward by torch.compile, which takes its C++ compiler and
            half a minute at first; not with several ranks. The dense part's sums are then rounded
            otherwise; rows step with the same bits for equal gradients.
        hash_keys, dense, dense_columns, dense_transform, label, weight, group, ignore,
            shared_vocabulary: how the log is read; see `hps.reader`. None takes its default, or
            when resuming what the model has. The weights of `test` and `valid` are left aside.
        negative_rate: the share of the examples with label 0 that are trained on, above 0, at most
            1; part of the model, too: None takes 1, or when resuming what the model has. What
            measures and predicts reads all examples, and corrects the logits by it.
        features: what the log's columns are and what is made of them: `hps.Features`, or the path
            of a features file; docs/features.md. None: nothing more than the reader's own, or when
            resuming what the model has.
        delimiter: of csv; None: told by the header.
        on_error: "raise" at a bad line, or "skip" it.
        seed: of rows, dense weights and dropout.
        threads: of the native core; 0 takes all cores.
        torch_threads: of torch; 0 leaves torch's choice.
        checkpoint_every: batches between checkpoints; 0 for none by number.
        checkpoint_seconds: between checkpoints; 0 for none by time.
        resume: go on from the newest checkpoint that holds a model and a position, with its
            learning rates and random state.
        resume_from: when resuming, the checkpoint to go on from, by tag or id; the rows go back to
            it. None is the newest.
        resume_if_any: as resume, but begin from the beginning where there is no checkpoint; one
            that `resume_from` names has to be there.
        new_data: when resuming, keep model, rows and optimizers, but read `data` from its
            beginning, whatever log the position is of.
        change_features: with `new_data`: the model gets the features and dense columns of `data`
            and `features`; weights of those that stay are kept; docs/training.md.
        base_rate: begin the output bias of a new model at the share of clicks among the log's
            first 10,000 examples.
        allow_empty: a log without an example is no error.
        digest: compute each table's digest in the end.
        row_wire, gradient_wire, hot_rows: of several ranks: how rows and gradients travel; see
            `hps.ClusterConfig`.

    Raises:
        ConfigError: a field outside its limits.

    >>> options = TrainOptions(data=["log.tsv"], store="model", model="dlrm", dim=8)
    >>> options.server_config().tables[0].dim
    8
    """

    data: Sequence[str | Path]
    store: str | Path | None = None
    remote: ClientConfig | None = None
    format: str | None = None
    model: str | None = None
    dim: int | None = None
    batch_size: int = 4096
    accumulate: int = 1
    epochs: int = 1
    shuffle_files: bool = False
    shuffle_buffer: int = 0
    progressive: bool = False
    limit: int = 0
    test: Sequence[str | Path] = ()
    valid: Sequence[str | Path] = ()
    valid_share: float | None = None
    eval_every: int | str = EPOCH
    patience: int = 0
    best_by: str = "auc"
    dram: int | str = "1GiB"
    gpu: int | str | None = None
    device: str | None = None
    engine: str = "segments"
    depth: int | str = AUTO
    lookahead: int = 0
    trace: str | Path | None = None
    report: str | Path | None = None
    tensorboard: str | Path | None = None
    optimizer: str | None = None
    lr: float | None = None
    dense_lr: float | None = None
    init_std: float = 0.01
    hidden: Sequence[int] | None = None
    dropout: float | None = None
    scheduler: str = "constant"
    scheduler_steps: int = 0
    precision: str = "float32"
    compile: bool = False
    hash_keys: bool | None = None
    on_error: str = "raise"
    dense: int | None = None
    dense_transform: str | None = None
    label: str | None = None
    weight: str | None = None
    group: str | None = None
    ignore: Sequence[str] | None = None
    dense_columns: Sequence[str] | None = None
    features: Features | str | Path | None = None
    delimiter: str | None = None
    shared_vocabulary: bool | None = None
    negative_rate: float | None = None
    seed: int = 0
    threads: int = 0
    torch_threads: int = 0
    instruction_set: str = "auto"
    checkpoint_every: int = 0
    checkpoint_seconds: float = 600.0
    resume: bool = False
    resume_from: str | int | None = None
    resume_if_any: bool = False
    new_data: bool = False
    change_features: bool = False
    base_rate: bool = True
    allow_empty: bool = False
    digest: bool = True
    row_wire: str = "float32"
    gradient_wire: str = "float32"
    hot_rows: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.features, str | Path):
            object.__setattr__(self, "features", Features.load(self.features))
        if self.resume_if_any:
            object.__setattr__(self, "resume", True)
        if (self.store is None) == (self.remote is None):
            raise ConfigError("rows lie in a store or on servers; give store or remote (--server)")
        if self.remote is not None and (self.gpu is not None or self.engine != "segments"):
            raise ConfigError(
                "gpu and engine (--gpu, --engine) are the servers' own; leave them out with remote "
                "(--server)"
            )
        for field, choices in (
            ("scheduler", SCHEDULERS),
            ("precision", PRECISIONS),
            ("engine", ENGINES),
            ("best_by", BEST_BY),
        ):
            if getattr(self, field) not in choices:
                raise ConfigError(f"{field}={getattr(self, field)!r} must be one of {choices}")
        for field in ("limit", "checkpoint_every", "torch_threads", "scheduler_steps"):
            require_whole(field, getattr(self, field), 0, 2**62)
        for field in ("batch_size", "accumulate", "epochs"):
            require_whole(field, getattr(self, field), 1, 2**31)
        require_whole("shuffle_buffer", self.shuffle_buffer, 0, MAX_SHUFFLE_BUFFER)
        self._check_shape()
        for field in ("dense_lr", "lr"):
            rate = getattr(self, field)
            if rate is not None:
                require_number(field, rate, above=0)
        if self.negative_rate is not None:
            require_share("negative_rate (--negative-rate)", self.negative_rate)
        require_number("checkpoint_seconds", self.checkpoint_seconds)
        self._check_validation()
        self.cluster_config()
        if self.depth != AUTO:
            require_whole(f"depth ({AUTO!r} chooses)", self.depth, 0, MAX_DEPTH)
        require_whole("lookahead", self.lookahead, 0, MAX_LOOKAHEAD)
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

    def _check_validation(self) -> None:
        require_whole("patience", self.patience, 0, 2**31)
        if self.eval_every != EPOCH:
            require_whole(f"eval_every ({EPOCH!r}, or batches)", self.eval_every, 1, 2**62)
        if self.valid_share is not None:
            require_number("valid_share", self.valid_share, above=0)
            if self.valid_share >= 1:
                raise ConfigError(f"valid_share={self.valid_share!r} must be below 1")
            if self.valid:
                raise ConfigError(
                    "valid and valid_share (--valid, --valid-share) both name what to validate on; "
                    "give one of them"
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
        if shape.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={shape.optimizer!r} must be one of {tuple(OPTIMIZERS)}")
        check_sizes(kind, shape.dim, shape.hidden, shape.dropout)

    def shape(self) -> ModelShape:
        """What is part of the model: as given, the rest as a new model has it."""
        given = {field.name: getattr(self, field.name) for field in fields(ModelShape)}
        given = {name: value for name, value in given.items() if value is not None}
        return ModelShape(**{**what_it_lacks(given.get("model", ModelShape.model)), **given})

    def settled(self) -> Self:
        """The options of a new model: no part of its shape is None."""
        shape = self.shape()
        of_model: Json = {f.name: getattr(shape, f.name) for f in fields(shape)}
        return replace(self, **of_model)

    def row_rate(self) -> float:
        """Learning rate of rows in a new run."""
        if self.lr is not None:
            return self.lr
        return _LEARNING_RATES.get(self.shape().optimizer, _DEFAULT_LEARNING_RATE)

    def dense_rate(self) -> float:
        """Learning rate of the dense part in a new run."""
        return _DENSE_LEARNING_RATE if self.dense_lr is None else self.dense_lr

    def table(self) -> TableConfig:
        """The one table."""
        shape = self.shape()
        return TableConfig(
            name=TABLE,
            dim=class_of(shape.model).row_columns(shape.dim),
            optimizer=OPTIMIZERS[shape.optimizer](self.row_rate()),
            initializer=Normal(std=self.init_std),
            shared_vocabulary=bool(self.shared_vocabulary),
        )

    @property
    def validates(self) -> bool:
        """True if the model is measured while it is trained."""
        return bool(self.valid) or self.valid_share is not None

    @property
    def where(self) -> str:
        """Where the rows lie, in words."""
        if self.remote is not None:
            return f"service {','.join(self.remote.addresses)}"
        return f"store {str(self.store)!r}"

    def server_config(self) -> Config:
        """The store and its one table.

        Raises:
            ConfigError: the rows lie on servers.
        """
        if self.store is None:
            raise ConfigError(f"{self.where}: the servers have a configuration of their own")
        gpu = None
        if self.gpu is not None:
            gpu = GpuCacheConfig(bytes=self.gpu, device=self.device or "cuda:0")
        return Config(
            path=self.store,
            tables=[self.table()],
            dram=DramCacheConfig(bytes=self.dram),
            gpu=gpu,
            ssd=SsdStoreConfig(engine=self.engine),
            seed=self.seed,
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
            batch_size=self.batch_size,
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
            shuffle_files=self.seed if self.shuffle_files else None,
            shuffle_buffer=self.shuffle_buffer,
            shuffle_seed=self.seed if self.shuffle_buffer else 0,
            hash_range=None if self.valid_share is None else (self.valid_share, 1.0),
            negative_rate=1.0 if self.negative_rate is None else self.negative_rate,
            threads=self.threads,
        )
