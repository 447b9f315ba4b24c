"""Config: what a store is and its budgets, how much of the machine it may use. "1GiB" becomes a
number of bytes here. Frozen, keyword-only, checked when made.

Above it: `hps.ParameterServer`, the command line. Below it: nothing. This is the only file of hps
that reads the environment.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hps.common.admission import Admission
from hps.common.byte_sizes import parse_bytes
from hps.common.control_group import core_limit
from hps.common.expiry import Expiry, check_negative_rate
from hps.common.field_checks import require_flag, require_number, require_path, require_whole
from hps.common.initializers import Initializer, Normal
from hps.common.optimizers import Adagrad, Optimizer
from hps.common.unkept_tables import (
    refuse_admission,
    refuse_expiry,
    refuse_narrow,
    refuse_statistics,
)
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.common.row_layout import RowLayout

_MAX_BFLOAT16 = float.fromhex("0x1.fep127")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
BATCH_SHARE = 8  # of a GPU's bytes, for batches
_GPU_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
INSTRUCTION_SETS = ("auto", "avx512", "avx2", "plain")
ROW_DTYPES = ("float32", "bfloat16")
ROUNDINGS = ("stochastic", "nearest")
ENGINES = ("segments", "rocksdb")
MAX_DIM = 4096
MAX_TABLES = 1024
MAX_THREADS = 64
MAX_DEPTH = 8  # batches that a pipeline prepares ahead
MAX_LOOKAHEAD = 64  # batches that it reads before they are fetched


def kernel_cache_folder() -> Path:
    """Where compiled GPU kernels are kept between runs: hps/kernels in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "hps" / "kernels"


def is_table_name(name: object) -> bool:
    """True of 1 to 64 letters of ASCII, digits, "_", "." and "-", the first of them no "." or "-".

    >>> is_table_name("ads"), is_table_name("last items")
    (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """A named key space with one row layout and one optimizer.

    Args:
        name: letters, digits and "_.-", at most 64.
        dim: floats in an embedding, 1 to 4096.
        optimizer: how a row is updated (SGD, Adagrad, RowWiseAdagrad, Adam, FTRL).
        initializer: what a key reads as before its first update (Constant, Uniform, Normal).
        features: columns of the log that the table serves; None is all that no other table names.
        shared_vocabulary: equal raw values of its features are one key.
        share: its part of each tier's bytes, relative to the other tables'.
        statistics: rows count their shows and clicks, in 16 bytes more; see docs/life_cycle.md.
            Fixed once the store exists.
        expiry: when rows die; None: they live for ever. It implies statistics, and may change while
            the store exists, from the next period on.
        admission: which new keys come by a row; None: each at its first update. count= implies
            statistics, and stays once the store exists, with any number.
        max_rows, max_bytes: bounds, each None or above 0, on a table with expiry: as a period
            begins, rows whose death is nearest die early until no more are left. Bytes count as
            `layout.row_bytes` a row. They may change whenever the store is opened.
        dtype: of the weights in every tier, "float32" or "bfloat16" (narrow rows, about half the
            bytes); state and arithmetic are float32; see docs/narrow_rows.md. Fixed once the store
            exists.
        rounding: of a bfloat16 weight that an update leaves: "stochastic", so that small updates
            count on average, or to the "nearest". Of no effect on float32 rows.
        negative_rate: 1e-12 to 1; the share of the log's examples without a click that updates come
            from: a row counts each occurrence that is not a click as 1 / negative_rate shows. It
            may change whenever the store is opened, and holds for the updates after that.

    Raises:
        ConfigError: a field outside its limits.

    >>> TableConfig(name="ads", dim=16).dim
    16
    """

    name: str
    dim: int
    optimizer: Optimizer = field(default_factory=Adagrad)
    initializer: Initializer = field(default_factory=Normal)
    features: Sequence[str] | None = None
    shared_vocabulary: bool = False
    share: float = 1.0
    statistics: bool = False
    expiry: Expiry | None = None
    admission: Admission | None = None
    max_rows: int | None = None
    max_bytes: int | str | None = None
    dtype: str = "float32"
    rounding: str = "stochastic"
    negative_rate: float = 1.0

    @property
    def more_shows(self) -> float:
        """What an occurrence without a click counts beside its one show.

        >>> TableConfig(name="ads", dim=4, statistics=True, negative_rate=0.125).more_shows
        7.0
        """
        return 1.0 / self.negative_rate - 1.0

    @property
    def is_narrow(self) -> bool:
        """True if its weights are bfloat16."""
        return self.dtype == "bfloat16"

    @property
    def layout(self) -> "RowLayout":
        """Where the fields of its rows lie."""
        from hps.common.row_layout import RowLayout  # and numpy, which `hps --help` does without

        return RowLayout(self.optimizer.kind, self.dim, self.statistics, self.is_narrow)

    def __post_init__(self) -> None:
        if not is_table_name(self.name):
            raise ConfigError(
                f"TableConfig(name={self.name!r}): needs 1-64 letters, digits, '_', '.', '-'"
            )
        where = f"table {self.name!r}"
        require_whole(f"{where}: dim", self.dim, 1, MAX_DIM)
        if not isinstance(self.optimizer, Optimizer) or not self.optimizer.kind:
            raise ConfigError(
                f"{where}: optimizer={self.optimizer!r} must be hps.SGD, Adagrad, RowWiseAdagrad, "
                "Adam or FTRL"
            )
        if not isinstance(self.initializer, Initializer) or not self.initializer.kind:
            raise ConfigError(
                f"{where}: initializer={self.initializer!r} must be hps.Constant, Uniform or Normal"
            )
        require_flag(f"{where}: shared_vocabulary", self.shared_vocabulary)
        require_flag(f"{where}: statistics", self.statistics)
        if self.expiry is not None:
            if not isinstance(self.expiry, Expiry):
                raise ConfigError(f"{where}: expiry={self.expiry!r} must be an hps.Expiry or None")
            object.__setattr__(self, "statistics", True)
        if self.admission is not None:
            if not isinstance(self.admission, Admission):
                raise ConfigError(
                    f"{where}: admission={self.admission!r} must be an hps.Admission or None"
                )
            if self.admission.count is not None:
                object.__setattr__(self, "statistics", True)
        self._check_bounds(where)
        check_negative_rate(where, self.negative_rate, counts=self.statistics)
        require_number(f"{where}: share", self.share, above=0)
        self._check_dtype(where)
        if self.features is not None:
            features: object = self.features
            is_list = isinstance(features, Iterable) and not isinstance(features, str | bytes)
            if not is_list or not all(isinstance(name, str) for name in self.features):
                raise ConfigError(f"{where}: features={features!r} must be a list of names")
            object.__setattr__(self, "features", tuple(self.features))
            if len(set(self.features)) != len(self.features):
                raise ConfigError(f"{where}: features={self.features!r} names a feature twice")

    def _check_bounds(self, where: str) -> None:
        for name in ("max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and self.expiry is None:
                raise ConfigError(
                    f"{where}: {name}={value!r} has the rows die early whose death is nearest, and "
                    "without expiry none dies; give expiry=hps.Expiry(...), too"
                )
        if self.max_rows is not None:
            require_whole(f"{where}: max_rows", self.max_rows, 1, 2**63 - 1)
        if self.max_bytes is not None:
            size = parse_bytes(self.max_bytes, f"{where}: max_bytes")
            if size < self.layout.row_bytes:
                raise ConfigError(
                    f"{where}: max_bytes={self.max_bytes!r} holds no row; one takes "
                    f"{self.layout.row_bytes} bytes"
                )
            object.__setattr__(self, "max_bytes", size)

    def _check_dtype(self, where: str) -> None:
        for name, value, known in (
            ("dtype", self.dtype, ROW_DTYPES),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in known:
                raise ConfigError(f"{where}: {name}={value!r} must be one of {known}")
        if self.is_narrow and not self.initializer.largest() <= _MAX_BFLOAT16:
            raise ConfigError(
                f"{where}: {self.initializer!r} may be beyond bfloat16 ({_MAX_BFLOAT16:g}), so "
                "that weights would start as infinite; take smaller numbers, or dtype='float32'"
            )


def differences(one: TableConfig, other: TableConfig) -> list[str]:
    """In which fields two tables differ: "dim is 8, not 16" for each.

    >>> differences(TableConfig(name="ads", dim=8), TableConfig(name="ads", dim=16))
    ['dim is 8, not 16']
    """
    names = [field.name for field in fields(one)]
    return [
        f"{name} is {getattr(one, name)!r}, not {getattr(other, name)!r}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]


@dataclass(frozen=True, kw_only=True)
class DramCacheConfig:
    """Bytes of host memory for cached rows, the tables' shares of it summed, everything counted.

    >>> DramCacheConfig(bytes="64MiB").bytes
    67108864
    """

    bytes: int | str = "1GiB"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_bytes(self.bytes, "DramCacheConfig.bytes"))


@dataclass(frozen=True, kw_only=True)
class GpuCacheConfig:
    """Bytes of device memory for working rows, and the device.

    Args:
        bytes: of the device's memory: of rows, of which the tables have their shares, and of what
            batches under way work on.
        device: "cuda:N", or "cpu": the same table, kernel for kernel, in host memory.
        batch_bytes: of these, for batches: plans, sums of gradients, scratch. None: an eighth on a
            GPU; none with "cpu", where batches take memory of the process as they need it, as with
            a dram_cache (what is given is not for rows there, either). A batch that does not fit
            is refused with a CapacityError that says what it needs.

    Raises:
        ConfigError: a field outside its limits.

    >>> GpuCacheConfig(bytes="8GiB").device
    'cuda:0'
    >>> GpuCacheConfig(bytes="8GiB").rows_bytes
    7516192768
    """

    bytes: int | str
    device: str = "cuda:0"
    batch_bytes: int | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_bytes(self.bytes, "GpuCacheConfig.bytes"))
        if not isinstance(self.device, str) or _GPU_DEVICE.fullmatch(self.device) is None:
            raise ConfigError(
                f"GpuCacheConfig.device={self.device!r} must be 'cuda', 'cuda:N' or 'cpu'"
            )
        if self.batch_bytes is None:
            return
        batch_bytes = parse_bytes(self.batch_bytes, "GpuCacheConfig.batch_bytes")
        if batch_bytes >= int(self.bytes):
            raise ConfigError(
                f"GpuCacheConfig.batch_bytes={batch_bytes} is a part of GpuCacheConfig.bytes="
                f"{self.bytes}, which must be larger: rows have what is left"
            )
        object.__setattr__(self, "batch_bytes", batch_bytes)

    @property
    def arena_bytes(self) -> int:
        """What batches have."""
        if self.batch_bytes is not None:
            return int(self.batch_bytes)
        return 0 if self.device == "cpu" else int(self.bytes) // BATCH_SHARE

    @property
    def rows_bytes(self) -> int:
        """What rows have."""
        return int(self.bytes) - self.arena_bytes


@dataclass(frozen=True, kw_only=True)
class SsdStoreConfig:
    """How rows lie on SSD.

    Args:
        segment_bytes: a segment is sealed when it has grown to this size; with "rocksdb" the size
            of its memory tables and files, 64 MiB at most.
        keep_last: how many untagged checkpoints are kept.
        engine: "segments" (hps's own files) or "rocksdb" (RocksDB, by the package rocksdict of the
            extra `rocksdb`); fixed once the store exists.
        direct_io: rows are read past the page cache (O_DIRECT), for hosts whose memory has better
            uses; a row that was read or written lately then costs a disk read again. Writes still
            go through it. Opening raises ConfigError where the file system has no direct I/O.
        compaction_threshold: part of a segment's bytes that is dead when the segment is rewritten,
            above 0 and below 1; live segments stay below live rows / (1 - it) + 4 segments a table.
        compaction_bytes_per_second: what compaction reads and writes while nobody waits for space.

    Raises:
        ConfigError: a field outside its limits.

    >>> SsdStoreConfig(segment_bytes="64MiB").segment_bytes
    67108864
    """

    segment_bytes: int | str = "256MiB"
    keep_last: int = 2
    engine: str = "segments"
    direct_io: bool = False
    compaction_threshold: float = 0.5
    compaction_bytes_per_second: int | str = "64MiB"

    def __post_init__(self) -> None:
        size = parse_bytes(self.segment_bytes, "SsdStoreConfig.segment_bytes")
        if not 2**16 <= size <= 2**34:
            raise ConfigError(f"SsdStoreConfig.segment_bytes={size} must be from 64 KiB to 16 GiB")
        object.__setattr__(self, "segment_bytes", size)
        require_whole("SsdStoreConfig.keep_last", self.keep_last, 1, 2**31)
        require_flag("SsdStoreConfig.direct_io", self.direct_io)
        if self.engine not in ENGINES:
            raise ConfigError(f"SsdStoreConfig.engine={self.engine!r} must be one of {ENGINES}")
        where = "SsdStoreConfig.compaction_threshold"
        require_number(where, self.compaction_threshold, above=0)
        if self.compaction_threshold >= 1:
            raise ConfigError(f"{where}={self.compaction_threshold!r} must be below 1")
        pace = self.compaction_bytes_per_second
        pace = parse_bytes(pace, "SsdStoreConfig.compaction_bytes_per_second")
        object.__setattr__(self, "compaction_bytes_per_second", pace)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole store: where it is, its tables, and the budget of each tier.

    Args:
        path: directory of the store; created if missing.
        tables: at least one TableConfig; names unique. A reader asks that each feature goes to one.
        dram: budget of the host tier.
        gpu: budget and device of the GPU tier; None is two tiers, DRAM and SSD.
        ssd: layout of the SSD tier.
        seed: seeds the initial values of rows. Fixed once the store exists.
        threads: of the native core; 0 takes the cores this process may use. Never changes a bit.
        instruction_set: "auto", "avx512", "avx2" or "plain"; never changes a bit.

    Raises:
        ConfigError: a field outside its limits, or two tables of one name.

    >>> Config(path="model", tables=[TableConfig(name="ads", dim=16)]).tables[0].name
    'ads'
    """

    least_tables: ClassVar[int] = 1
    path: str | os.PathLike[str]
    tables: Sequence[TableConfig]
    dram: DramCacheConfig = field(default_factory=DramCacheConfig)
    gpu: GpuCacheConfig | None = None
    ssd: SsdStoreConfig = field(default_factory=SsdStoreConfig)
    seed: int = 0
    threads: int = 0
    instruction_set: str = "auto"

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "tables", tuple(self.tables))
        if not self.least_tables <= len(self.tables) <= MAX_TABLES:
            raise ConfigError(
                f"Config.tables has {len(self.tables)} tables; {self.least_tables} to {MAX_TABLES} "
                f"are needed"
            )
        for table in self.tables:
            if not isinstance(table, TableConfig):
                raise ConfigError(f"Config.tables holds {table!r}; make it an hps.TableConfig")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ConfigError(f"Config.tables={names}: a table name appears twice")
        self._check_rows()
        require_whole("Config.seed", self.seed, 0, 2**64 - 1)
        require_whole("Config.threads", self.threads, 0, MAX_THREADS)
        if self.instruction_set not in INSTRUCTION_SETS:
            raise ConfigError(
                f"Config.instruction_set={self.instruction_set!r} must be one of {INSTRUCTION_SETS}"
            )

    def _check_types(self) -> None:
        require_path("Config.path", self.path)
        tables: object = self.tables
        if not isinstance(tables, Iterable) or isinstance(tables, str | bytes):
            raise ConfigError(f"Config.tables={tables!r} must be a list of hps.TableConfig")
        kinds = {"dram": DramCacheConfig, "ssd": SsdStoreConfig}
        if self.gpu is not None:
            kinds["gpu"] = GpuCacheConfig
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(
                    f"Config.{name}={getattr(self, name)!r} must be an hps.{kind.__name__}"
                )

    def _check_rows(self) -> None:
        self._check_admission()
        gpu = "" if self.gpu is None or self.gpu.device == "cpu" else self.gpu.device
        if gpu:
            refuse_admission(self.tables, f"a gpu_cache on {gpu} admits every key so far")
            refuse_expiry(self.tables, f"rows in a gpu_cache on {gpu} do not die yet")
            refuse_statistics(self.tables, f"a gpu_cache on {gpu} does not count them yet")
            refuse_narrow(self.tables, f"a gpu_cache on {gpu} has no narrow rows yet")

    def _check_admission(self) -> None:
        tables = {table.name: table for table in self.tables}
        for table in self.tables:
            by = None if table.admission is None else table.admission.by
            if by is None:
                continue
            where = f"table {table.name!r}: Admission(by={by!r})"
            if by not in tables or by == table.name:
                others = sorted(set(tables) - {table.name})
                raise ConfigError(f"{where} must name another table, one of {others}")
            if not tables[by].statistics:
                raise ConfigError(
                    f"{where}: rows of table {by!r} have no score; give it statistics=True or "
                    "expiry="
                )
            other = tables[by].admission
            if other is not None and other.by is not None:
                raise ConfigError(
                    f"{where}: table {by!r} is admitted by another one itself; name that one"
                )

    def shares(self, budget: int) -> dict[str, int]:
        """Each table's part of a tier's bytes, by the tables' shares; never above it in sum."""
        total = sum(table.share for table in self.tables)
        return {table.name: int(budget * (table.share / total)) for table in self.tables}

    def num_threads(self) -> int:
        """Threads of the native core after 0 has been resolved to the cores at hand."""
        return self.threads or min(num_cores(), MAX_THREADS)


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """What torchrun tells a process about its place among the others.

    Args:
        rank: its number, from 0.
        size: how many there are.
        local_rank: its number among those of its host.
        local_size: how many its host has.
        num_restarts: of all processes so far, after one of them died.
        max_restarts: how many there may be.
        run_id: of torchrun's run, as --rdzv-id says; not another in each run.
        shares_store: all attempts of torchrun meet in one store.
        half_set: where variables are missing without which processes cannot meet, what to do about
            it; else empty.

    Raises:
        ConfigError: a field outside its limits.

    >>> RankEnvironment.of({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}).size
    2
    """

    rank: int
    size: int
    local_rank: int
    local_size: int = 1
    num_restarts: int = 0
    max_restarts: int = 0
    run_id: str = ""
    shares_store: bool = False
    half_set: str = ""

    def __post_init__(self) -> None:
        require_whole("WORLD_SIZE", self.size, 1, 2**16)
        require_whole("RANK", self.rank, 0, self.size - 1)
        require_whole("LOCAL_WORLD_SIZE", self.local_size, 1, self.size)
        require_whole("LOCAL_RANK", self.local_rank, 0, self.size - 1)

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> "RankEnvironment | None":
        """What the variables say; None where torchrun has not started this process.

        Args:
            environment: the variables; None is those of this process.

        Raises:
            ConfigError: one of them is not a number, or outside its limits; a process has a rank
                and no number of processes, or the other way round.
        """
        found = os.environ if environment is None else environment
        half_set = _half_set(found)
        if "RANK" not in found or "WORLD_SIZE" not in found:
            if half_set:
                raise ConfigError(half_set)
            return None
        names = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        texts = {name: found.get(name, default) for name, default in names.items()}
        for name, text in texts.items():
            if not text.isdecimal():
                raise ConfigError(f"the variable {name}={text!r} must be a whole number")
        rank, size, local_rank, local_size, num_restarts, max_restarts = map(int, texts.values())
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            num_restarts=num_restarts,
            max_restarts=max_restarts,
            run_id=found.get("TORCHELASTIC_RUN_ID", ""),
            shares_store=found.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            half_set=half_set,
        )


def _half_set(found: Mapping[str, str]) -> str:
    """What to say where some of torchrun's variables are there and others are not; else empty.

    An address alone says nothing: it may be there for other programs.
    """
    place, address = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("MASTER_ADDR", "MASTER_PORT")
    there = [name for name in (*place, *address) if name in found]
    missing = [name for name in (*place[:2], *address) if name not in found]
    if not missing or not set(place) & set(there):
        return ""
    return (
        f"of torchrun's variables {', '.join(there)} are set, and {', '.join(missing)} are not; "
        "start the program by torchrun, which sets all of them, or unset them to run alone"
    )


_SPINS = "6000"  # of GNU OpenMP, about 0.3 ms


def limit_idle_spinning() -> None:
    """Has torch's threads spin between two operations for some tenths of a millisecond, not for 20;
    before torch is imported.

    Spinning takes the cores from the pipeline's stages and from the native threads; without any, an
    operation that follows at once waits for its threads to wake up. What is set in the environment
    stands (docs/decisions/0008-pipeline.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def is_malloc_set() -> bool:
    """True if the environment says how malloc gives memory back to the system."""
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    return any(os.environ.get(name) for name in names)


def keep_grpc_silent() -> None:
    """Keeps gRPC's core from writing lines of its own to standard error; before grpc is imported.

    A level that is set in the environment stands.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def keep_torch_silent() -> None:
    """Keeps torch's core from warning of ranks that are gone, beside the error that says so; before
    torch is imported.

    A level that is set in the environment stands.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def num_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: no more than its control group has time for, for threads
    beyond that are stopped in turns.

    Args:
        root: of the file system that has the group's limits.
    """
    cores, limit = len(os.sched_getaffinity(0)), core_limit(root)
    return cores if limit is None else min(cores, max(1, math.ceil(limit)))
