"""Which figure of benchmarks/results/ each number in the tables of pages is.

Above it: test_page_figures.py. Below it: benchmarks/results/. A row of a table is known by its
first cell; its numbers are those of its other cells, from left to right, with those in words.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
V, B, R = "value", "baseline_value", "ratio"
Rows = list[dict[str, Any]]


@cache
def rows_of(name: str) -> Rows:
    found: Rows = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())["rows"]
    return found


def one(name: str, field: str, baseline: str = "", **where: Any) -> float:
    """A figure of a result: of the one row with these axes, whose baseline begins so.

    Raises:
        AssertionError: no row is meant, or several are that differ.
    """
    found = [
        row for row in rows_of(name) if all(row.get(key) == value for key, value in where.items())
    ]
    exact = [row for row in found if row["baseline"] == baseline]
    found = exact or [row for row in found if row["baseline"].startswith(baseline)]
    figures = {row[field] for row in found}
    assert len(figures) == 1, (name, field, baseline, where, figures)
    return float(figures.pop())


def both(name: str, field: str, baseline: str = "", **where: Any) -> list[float]:
    """The same of dim 16 and of dim 64."""
    return [one(name, field, baseline, dim=dim, **where) for dim in (16, 64)]


BEST, MOVED, TORCHREC = "best of fbgemm and torch", "the step's bytes moved", "torchrec"
ROWWISE = {"optimizer": "rowwise_adagrad"}
ADAGRAD = {"optimizer": "adagrad"}
BAGS = {"lengths": "fixed", "pooling": "sum"}
EQUAL = {"kind": "equal", "examples": 4096, "bag": 1}
MIXED = {"kind": "mixed", "examples": 4096}
ALL = {"run": "hps train, all in DRAM"}
ONE = {"model": "deepfm", "bag": 1}
TORCH, FBGEMM = "torch EmbeddingBag(sparse)", "fbgemm tbe"
REAL = {"figure": "real run, cold disk, DRAM for 1/10 of the rows"}
EMBEDDING, REDIS = "torch nn.Embedding", "the ONNX graph"
SIZES = (64, 256, 1024)
SORTED = {"order": "sorted", "keys": "uniform"}
COLD, WARM = {"figure": "get cold", **SORTED}, {"figure": "get warm", **SORTED}
COLD_ZIPF = COLD | {"keys": "zipf"}
COLD_PEERS = ("RocksDB, O_DIRECT", "memmap", "raw reads")
WARM_PEERS = ("RocksDB", "LMDB", "memmap")
PUT_PEERS = ("RocksDB, log", "RocksDB, no", "LMDB")


def ssd(field: str, baseline: str, **where: Any) -> list[float]:
    """Of the records of 64, 256 and 1,024 bytes; of 64, the store of 5 M rows."""
    rows = {64: 5_000_000, 256: 5_000_000, 1024: 1_269_531}
    return [
        one("ssd_store", field, baseline, record_bytes=size, rows=rows[size], **where)
        for size in SIZES
    ]


def serving(field: str, baseline: str, *percentiles: str, **where: Any) -> list[float]:
    return [one("serving", field, baseline, percentile=one_of, **where) for one_of in percentiles]


def of_way(way: str, clients: int) -> list[float]:
    """A row of the table of requests: hps, both peers, the ratios to both by percentile."""
    where = {"way": way, "clients": clients}
    p = ("p50", "p99")
    times = serving(V, EMBEDDING, *p, **where) + serving(B, EMBEDDING, *p, **where)
    times += serving(B, REDIS, *p, **where)
    ratios = [serving(R, peer, one_of, **where) for one_of in p for peer in (EMBEDDING, REDIS)]
    return times + [ratio for found in ratios for ratio in found]


def publishing(what: str, *fields: str) -> list[float]:
    return [one("publishing", field, what=what) for field in fields]


def step(rows: int, optimizer: dict[str, str], baseline: str, field: str) -> list[float]:
    return both("sparse_step", field, baseline, rows=rows, output=None, row_dtype=None, **optimizer)


def narrow(field: str, baseline: str, optimizer: dict[str, str]) -> list[float]:
    """Of 1 M float32 rows whose outputs and gradients are in bfloat16."""
    return both(
        "sparse_step", field, baseline, rows=M, output="bfloat16", row_dtype=None, **optimizer
    )


def fewer(setting: str) -> list[float]:
    """By how many percent the life of rows takes fewer bytes, and the difference in AUC."""
    bytes_ratio = one("life_cycle", R, setting=setting, unit="bytes on disk")
    return [
        100 * (1 - 1 / bytes_ratio),
        one("life_cycle", "difference", setting=setting, unit="AUC"),
    ]


def ends(name: str) -> list[float]:
    """The least and the greatest difference in AUC to a peer, or to tuned settings."""
    rows = [row for row in rows_of(name) if not row["baseline"].startswith("log")]
    return [end(float(row["difference"]) for row in rows) for end in (min, max)]


M = 1_000_000
P, STAGES = ("p50", "p99"), ("network", "fetch", "copy", "compute")
PAST_PUSH = "from a push to the first call scored with it, "
TABLES = (EQUAL, EQUAL | {"bag": 5}, EQUAL | {"examples": 512})
TABLE_PEERS = (
    FBGEMM,
    "torch: EmbeddingBag(sparse) a table",
    "the same, each key found by one hash and one probe",
)
MODELS, TRAINED = ("deepfm", "dlrm"), (TORCH, FBGEMM)
CALL = {"clients": 1, "shards": 1}
PULL, PUSH = {"figure": "pull", **CALL}, {"figure": "push, memory", **CALL}
RANKS = {"figure": "2 ranks that share the cores"}
PUT = {"figure": "put", "keys": "uniform"}
COLD_RATIOS = ssd(R, "RocksDB, O_DIRECT", **COLD)
# Of each size beside the quicker of RocksDB's two ways to be durable.
PUT_RATIOS = [
    min(pair)
    for pair in zip(ssd(R, "RocksDB, log", **PUT), ssd(R, "RocksDB, no", **PUT), strict=True)
]
# First cell of a row of the README's table -> the numbers of its last cell.
README: dict[str, list[float]] = {
    "sparse step, row-wise Adagrad, dim 16 / 64": step(M, ROWWISE, BEST, R),
    "sparse step, Adagrad, dim 16 / 64": step(M, ADAGRAD, "fbgemm", R),
    "step over bags of 20, row-wise Adagrad, dim 16 / 64 / 128": [
        *both("pooled_step", R, BEST, rows=M, **ROWWISE, **BAGS),
        one("pooled_step", R, BEST, dim=128),
    ],
    "step over 26 tables, one key a feature; tables of dims 8 to 128, 27 M rows": [
        one("many_tables", R, "best of the peers", **EQUAL),
        one("many_tables", R, "best of the peers", **MIXED),
    ],
    "pull of uniform keys": [one("pull", R, threads=1)],
    "`hps train`, all rows in DRAM, DeepFM; DLRM; bags of 20": [
        one("end_to_end", R, FBGEMM, **ONE, **ALL),
        one("end_to_end", R, FBGEMM, model="dlrm", bag=1, **ALL),
        one("end_to_end", R, FBGEMM, model="dlrm", bag=20, **ALL),
    ],
    "the same, a tenth, cold disk, depth 2": [one("pipeline", R, "depth 0", **REAL)],
    "gets from a cold disk, 64 B to 1 KiB": [min(COLD_RATIOS), max(COLD_RATIOS)],
    "durable puts, 64 B to 1 KiB": [min(PUT_RATIOS), max(PUT_RATIOS)],
    "pull from a server": [one("service", R, peer, **PULL) for peer in ("bare gRPC", "Redis")],
    "push to a server": [one("service", R, peer, **PUSH) for peer in ("bare gRPC", "Redis")],
    "a request of 200 candidates over gRPC, p99, 1 / 8 clients": [
        serving(R, peer, "p99", way="gRPC", clients=clients)[0]
        for peer in (EMBEDDING, REDIS)
        for clients in (1, 8)
    ],
    "from a push to the first score by it, 10,000 rows changed a second, 5 M rows, p50 / p99:"
    " 0.07 / 0.17 s": [figure for p in P for figure in publishing(PAST_PUSH + p, R)],
    "model quality: 36 pairs of model and public log, 10 seeds; defaults on 14 logs": [
        *ends("quality"),
        *ends("defaults"),
    ],
    "a drifting log of 30 days, rows that die unseen, keys admitted at their second occurrence;"
    " vectors by score (two levels), 5 seeds": [
        *fewer("count 2, unseen 5"),
        *fewer("two-level 0.5, unseen 5"),
    ],
    "two ranks on two cores": [one("cluster", R, "1 rank", **RANKS, **{"ranks are": "processes"})],
}
# First cell of a row of docs/benchmarks.md -> the numbers of its other cells.
BENCHMARKS: dict[str, list[float]] = {
    "Z5: a sparse step, row-wise Adagrad, 1 M rows, dim 16 / 64": [
        *step(M, ROWWISE, BEST, V),
        *step(M, ROWWISE, BEST, B),
        *step(M, ROWWISE, MOVED, B),
        *step(M, ROWWISE, BEST, R),
        *step(M, ROWWISE, MOVED, R),
    ],
    "the same over 10 M rows": [
        *step(10 * M, ROWWISE, BEST, V),
        *step(10 * M, ROWWISE, BEST, B),
        *step(10 * M, ROWWISE, MOVED, B),
        *step(10 * M, ROWWISE, BEST, R),
        *step(10 * M, ROWWISE, MOVED, R),
    ],
    "the same beside TorchRec's managed collision (64-bit keys, too), 1 M rows; 10 M rows": [
        *step(M, ROWWISE, TORCHREC, B),
        *step(10 * M, ROWWISE, TORCHREC, B),
        *step(M, ROWWISE, TORCHREC, R),
        *step(10 * M, ROWWISE, TORCHREC, R),
    ],
    "sparse step, Adagrad, 1 M rows, dim 16 / 64": [
        *step(M, ADAGRAD, "fbgemm", V),
        *step(M, ADAGRAD, "fbgemm", B),
        *step(M, ADAGRAD, "fbgemm", R),
    ],
    "pull of uniform keys, 10 M rows, one thread; two": [
        one("pull", V, threads=1),
        one("pull", V, threads=2),
        one("pull", B, threads=1),
        one("pull", R, threads=1),
        one("pull", R, threads=2),
    ],
    "get, nothing in memory, uniform": [
        *ssd(V, "", **COLD),
        *(figure for peer in COLD_PEERS for figure in ssd(B, peer, **COLD)),
        *(figure for peer in COLD_PEERS for figure in ssd(R, peer, **COLD)),
    ],
    "the same, Zipf": [
        *ssd(V, "", **COLD_ZIPF),
        *(figure for peer in COLD_PEERS for figure in ssd(B, peer, **COLD_ZIPF)),
        *(figure for peer in COLD_PEERS for figure in ssd(R, peer, **COLD_ZIPF)),
    ],
    "get, all in the page cache, uniform": [
        *ssd(V, "", **WARM),
        *(figure for peer in WARM_PEERS for figure in ssd(B, peer, **WARM)),
        *(figure for peer in WARM_PEERS for figure in ssd(R, peer, **WARM)),
    ],
    "put until it is durable": [
        *ssd(V, "", **PUT),
        *(figure for peer in PUT_PEERS for figure in ssd(B, peer, **PUT)),
        *(figure for peer in PUT_PEERS for figure in ssd(R, peer, **PUT)),
    ],
    "gRPC, 1 client, p50; p99": of_way("gRPC", 1),
    "gRPC, 8 clients, p50; p99": of_way("gRPC", 8),
    "gRPC, 32 clients, p50; p99": of_way("gRPC", 32),
    "HTTP with binary tensors, 1 client, p50; p99": of_way("REST, binary", 1),
    "in process, p50; p99": of_way("in process", 1),
    "publish a base": publishing("publish a base", V, B, R),
    "publish a delta of one row in a hundred": [
        *publishing("publish a delta of 1 % of the rows", V),
        2,  # % of a base
        *publishing("publish a delta of 1 % of the rows", B, R),
    ],
    "from an acknowledged push to the first call scored with it, at 10,000 changed rows a second,"
    " p50 and p99": [
        *(figure for p in P for figure in publishing(PAST_PUSH + p, V)),
        *publishing(PAST_PUSH + "p50", B),
        *(figure for p in P for figure in publishing(PAST_PUSH + p, R)),
    ],
    "Z5: outputs and gradients in bfloat16, 1 M rows, row-wise Adagrad, dim 16 / 64; Adagrad": [
        *(figure for kind in (ROWWISE, ADAGRAD) for figure in narrow(V, "hps", kind)),
        *(figure for kind in (ROWWISE, ADAGRAD) for figure in narrow(B, "hps", kind)),
        *(figure for kind in (ROWWISE, ADAGRAD) for figure in narrow(B, BEST, kind)),
        *(figure for kind in (ROWWISE, ADAGRAD) for figure in narrow(R, "hps", kind)),
        *(figure for kind in (ROWWISE, ADAGRAD) for figure in narrow(R, BEST, kind)),
    ],
    "Z5: a step over bags of 20 (2048 x 8 bags), row-wise Adagrad, 1 M rows, dim 16 / 64; 10 M"
    " rows; 2 M rows, dim 128": [
        figure
        for field in (V, B, R)
        for figure in (
            *both("pooled_step", field, BEST, rows=M, **ROWWISE, **BAGS),
            *both("pooled_step", field, BEST, rows=10 * M, **ROWWISE, **BAGS),
            one("pooled_step", field, BEST, dim=128),
        )
    ],
    "Z5: the same, lengths of Zipf; means; a weighted sum (dim 64)": [
        figure
        for field in (V, B, R)
        for figure in (
            *both("pooled_step", field, BEST, lengths="zipf"),
            *both("pooled_step", field, BEST, pooling="mean"),
            one("pooled_step", field, BEST, pooling="weighted"),
        )
    ],
    "Z5: the same, Adagrad": [
        figure for field in (V, B, R) for figure in both("pooled_step", field, BEST, **ADAGRAD)
    ],
    "a step over 26 tables of 40,000 rows, dim 16, row-wise Adagrad, 4096 examples, one key a"
    " feature; bags of 5; 512 examples, one key": [
        *(one("many_tables", V, FBGEMM, **where) for where in TABLES),
        *(one("many_tables", B, peer, **where) for peer in TABLE_PEERS for where in TABLES),
        *(one("many_tables", R, peer, **where) for peer in TABLE_PEERS for where in TABLES),
    ],
    "26 tables of dims 8 to 128, 27 M rows, 4096 examples; 512": [
        one("many_tables", field, FBGEMM, kind="mixed", examples=examples)
        for field in (V, B, R)
        for examples in (4096, 512)
    ],
    "Z2: `hps train`, all rows in DRAM, 26 features of one key: DeepFM; DLRM": [
        *(one("end_to_end", V, TORCH, model=model, bag=1, **ALL) / 1e3 for model in MODELS),
        *(one("end_to_end", B, p, model=m, bag=1, **ALL) / 1e3 for m in MODELS for p in TRAINED),
        *(one("end_to_end", R, p, model=m, bag=1, **ALL) for m in MODELS for p in TRAINED),
    ],
    "Z2: the same over 8 features, bags of 20": [
        *(one("end_to_end", V, TORCH, model=model, bag=20, **ALL) / 1e3 for model in MODELS),
        *(one("end_to_end", B, p, model=m, bag=20, **ALL) / 1e3 for m in MODELS for p in TRAINED),
        *(one("end_to_end", R, p, model=m, bag=20, **ALL) for m in MODELS for p in TRAINED),
    ],
    "Z2: DeepFM, DRAM for a quarter of the rows": [
        one("end_to_end", V, "hps", **ONE) / 1e3,
        one("end_to_end", B, "hps", **ONE) / 1e3,
        one("end_to_end", R, "hps", **ONE),
    ],
    "`hps train`'s loop, a tenth of the rows in DRAM, cold disk (direct I/O), depth 2": [
        one("pipeline", V, "depth 0", **REAL) / 1e3,
        0,  # the depth
        one("pipeline", B, "depth 0", **REAL) / 1e3,
        one("pipeline", B, "longest", **REAL) / 1e3,
        one("pipeline", R, "depth 0", **REAL),
        one("pipeline", R, "longest", **REAL),
    ],
    "four stages that wait, one of them longest: network, fetch, copy, compute": [
        one("pipeline", field, "busy", longest=stage) for field in (V, B, R) for stage in STAGES
    ],
    "its push acknowledged as durable, eight clients": [
        one("service", field, "hps, logged", figure="push, durable", clients=8)
        for field in (V, B, R)
    ],
    "two ranks as threads; as processes over gloo": [
        one("cluster", field, "1 rank", **RANKS, **{"ranks are": kind}) / scale
        for field, scale in ((V, 1e3), (B, 1e3), (R, 1))
        for kind in ("threads", "processes")
    ],
    "simulated step of 1, 2, 4 ranks": [
        one("cluster", field, "measured", ranks=ranks) for field in (V, B, R) for ranks in (1, 2, 4)
    ],
    'the GPU tier\'s kernels on the host (`device="cpu"`), pull at dim 16 / 64; pull + push': [
        one("gpu_cache", field, "dram_cache", operation=operation, dim=dim)
        for field in (V, B, R)
        for operation in ("pull", "step")
        for dim in (16, 64)
    ],
}
# Rows with figures that no test compares: of several results, of none that is kept, or of a part.
NOT_HELD = {
    "README.md": [],
    "docs/benchmarks.md": [
        "X: outputs and gradients in bfloat16, 1 M rows, row-wise Adagrad, dim 16 / 64; Adagrad",
        "the same",
        "Z3, a Zen 4 whose memory is slower, look-ups in groups of eight: many tables at 4096"
        " examples, bags of 5, 512, and mixed dims at 4096 and 512",
        "Python's share of a step over 1 / 8 / 26 / 52 tables, `hps.Batch`; KeyedJaggedTensor",
        "pull of 26 keys, dim 16, numpy / tensors; of 512",
        "`SparseEmbedding` in eval mode, one example of 8 bags of 20, dim 16; 8"
        " tables by `SparseEmbeddings`",
        "26 tables of one key by `SparseEmbeddings`, one example, `hps.Batch`; KeyedJaggedTensor",
        "Z2: the same",
        "a server's pull, 100,000 keys of dim 16, one client with four in flight",
        "its push with an optimizer step, acknowledged in memory",
        "load of the table at the first eviction",
        "checkpoint of 1 % of the rows",
        "with checksums: warm gets; puts",
        "opening 10 M rows after a kill; after a clean close (files in memory)",
        "slowest in a hundred of warm gets while compaction writes",
        "a call of 200 candidates beside 100 versions that were published elsewhere, p99.9",
        "the same beside a trainer that publishes without a pause, p99.9",
        "examples a second of a training that publishes 3 times in 5 s",
        "what a rank sends a step, 2 ranks; 3",
        "the same",
        "bfloat16 rows and gradients; int8; 2,000 hot rows on both",
        "`flights` (9, 0.1)",
        "`movielens` (9, 0.0)",
        "`lectures` (6, 0.1)",
        "26 features, frequent keys (26, 0.0)",
        "8 features, rare keys (8, 0.8)",
        "26 features, rare keys (26, 1.6)",
        "the same, 1.3 M examples, 2 M keys",
    ],
}


def auc(model: str, data: str, *fields: str) -> list[float]:
    """Of a model on a log beside its peer; empty where the two were not measured."""
    rows = [
        row
        for row in rows_of("quality")
        if (row["model"], row["data"]) == (model, data) and not row["baseline"].startswith("log")
    ]
    return [float(row[field]) for row in rows for field in fields]


def regression(data: str) -> float:
    """The AUC of logistic regression on a log."""
    return one("quality", B, "logistic regression", data=data, model="lr")


def quality_row(first: str, logs: list[str], *fields: str) -> list[float]:
    """The numbers of a row of a table of quality, whose columns are logs."""
    if first.startswith("logistic"):
        return [regression(data) for data in logs]
    return [figure for data in logs for figure in auc(first.strip("`"), data, *fields)]


def defaults_row(log: str) -> list[float]:
    """The numbers of a row of the table of defaults: of one pass, then of up to four."""
    rows = {row["passes"]: row for row in rows_of("defaults") if row["data"] == log}
    return [float(rows[n][field]) for n in (1, 4) for field in (V, B, "difference")]
