"""Options of a run: its store, its checkpoints, what is told of it, its speed and its ranks.

Above it: groups.py. Below it: declare.py, hps.config.
"""

from dataclasses import dataclass
from pathlib import Path

from hps.common.wire_format import WIRES
from hps.config import ENGINES, INSTRUCTION_SETS, MAX_DEPTH, MAX_LOOKAHEAD, MAX_THREADS
from hps.options.declare import named, option, switch
from hps.options.values import CHECKPOINT, DEVICE, PATH, SIZE, SWITCH, WORD, either, number, whole

AUTO = "auto"
GPU_BATCHES_HELP = "of --gpu, what batches work on; on a GPU an eighth if not given"
DRAM_HELP = "most memory for cached rows, such as 800MB or 1.5GiB; taken as rows come"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where the rows lie, and how the run begins and is kept."""

    store: str | Path | None = option(
        None,
        PATH,
        "folder of the store; created if missing; give this or --server",
        metavar="DIR",
    )
    dram: int | str = option(
        "1GiB",
        SIZE,
        DRAM_HELP,
        metavar="BYTES",
    )
    gpu: int | str | None = option(
        None, SIZE, "GPU memory for working rows; no GPU if not given", metavar="BYTES"
    )
    gpu_batches: int | str | None = option(None, SIZE, GPU_BATCHES_HELP, metavar="BYTES")
    device: str | None = option(
        None, DEVICE, "device of --gpu: cuda:N or cpu; cuda:0 if not given", metavar="DEVICE"
    )
    engine: str = named(ENGINES, "segments", "engine of a new store's SSD tier")
    checkpoint_every: int = option(
        0,
        whole(0, 2**62),
        "batches between two checkpoints; 0: none by number of batches",
        metavar="N",
    )
    checkpoint_seconds: float = option(
        600.0,
        number(0),
        "time between two checkpoints, in addition to --checkpoint-every; 0: none by time",
        metavar="SECONDS",
    )
    tag: str | None = option(
        None,
        WORD,
        "name of the checkpoint at the end, such as day-3, instead of 'final'; no other checkpoint "
        "has it yet ('hps models DIR' lists them)",
        metavar="NAME",
    )
    resume: bool = switch("continue from the newest checkpoint with a model")
    resume_from: str | int | None = option(
        None,
        CHECKPOINT,
        "as --resume, but go back to this checkpoint (its tag, or its id as id:N) first",
        metavar="TAG",
    )
    resume_if_any: bool = switch(
        "as --resume, but train from the beginning if there is no checkpoint; one that "
        "--resume-from names must exist"
    )
    new_data: bool = switch("with --resume: read DATA from its beginning")
    change_features: bool = switch(
        "with --new-data: give the model the features and dense columns that DATA and --features "
        "have now; what it has learned of those that stay is kept"
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is told of the run."""

    digest: bool = option(
        True,
        SWITCH,
        "leave out the tables' digests, which read every row (digests: %(default)s)",
        const=False,
        flags=("--no-digest",),
    )
    report: str | Path | None = option(
        None,
        PATH,
        "folder for the run's history, its figures and a page of plots (report.html)",
        metavar="DIR",
    )
    tensorboard: str | Path | None = option(
        None,
        PATH,
        "folder for TensorBoard's event files: losses, AUC, rates, hit rates",
        metavar="DIR",
    )
    metrics: str | None = option(
        None,
        WORD,
        "address of the run's figures for Prometheus and 'hps dashboard', such as 127.0.0.1:9200; "
        "under torchrun rank R takes the port R above it",
        metavar="HOST:PORT",
    )
    metrics_tokens: str | Path | None = option(
        None,
        PATH,
        "tokens of those who may read them, JSON as --tokens of hps serve takes it; anyone if not "
        "given",
        metavar="FILE",
    )
    metrics_cert: str | Path | None = option(
        None, PATH, "certificate (PEM), for HTTPS, with --metrics-key", metavar="FILE"
    )
    metrics_key: str | Path | None = option(
        None, PATH, "key of --metrics-cert (PEM)", metavar="FILE"
    )
    metrics_insecure: bool = switch("with --metrics: listen beyond this machine without TLS")
    publish: str | None = option(
        None,
        WORD,
        "publish the run's checkpoints for serving: a folder, or a URL such as s3://bucket/ctr",
        metavar="URL",
    )
    publish_every: int = option(
        0,
        whole(0, 2**62),
        "batches between two checkpoints that are taken to be published; 0: those that are taken "
        "anyway",
        metavar="N",
    )
    publish_onnx: bool = switch(
        "with --publish: the dense part as an ONNX graph, too, which other servers score by, and "
        "hps where the model is of a class of your own"
    )


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """What changes the speed and no bit."""

    depth: int | str = option(
        AUTO,
        either(AUTO, whole(0, MAX_DEPTH)),
        f"batches prepared ahead, 0 to {MAX_DEPTH}; auto measures whether 2 is faster than 0",
        metavar="N",
    )
    lookahead: int = option(
        0,
        whole(0, MAX_LOOKAHEAD),
        f"batches read ahead of fetching, 0 to {MAX_LOOKAHEAD}; caches keep their rows; none at "
        "depth 0",
        metavar="N",
    )
    trace: str | Path | None = option(
        None, PATH, "file for a trace of the stages, for Perfetto", metavar="FILE"
    )
    threads: int = option(
        0,
        whole(0, MAX_THREADS),
        f"threads of the reader and of the row tiers, 0 to {MAX_THREADS}; 0: one per core",
        metavar="N",
    )
    torch_threads: int = option(
        0, whole(0, 1024), "threads of torch, 0 to 1024; 0: torch chooses", metavar="N"
    )
    instruction_set: str = named(
        INSTRUCTION_SETS, "auto", "of the native core; all give equal bits"
    )


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Several ranks, under torchrun."""

    row_wire: str = named(WIRES, "float32", "format of rows between ranks")
    gradient_wire: str = named(WIRES, "float32", "format of gradients between ranks")
    hot_rows: int = option(
        0,
        whole(0, 2**20),
        "number of the most used rows, kept on every rank; 0 to 1048576",
        metavar="N",
    )
