"""Panels: what the page shows, in order, and what each says.

Above it: server.py, which sends them to the page; docs/dashboard.md lists them. Below it: nothing.
"""

from dataclasses import asdict, dataclass

from hps.common.json_text import Json


@dataclass(frozen=True)
class Panel:
    """One plot: every figure of its name, of every target.

    Args:
        name: of the figures, up to the slash.
        title: over it.
        unit: "count", "rate", "bytes", "bytes/s", "share", "seconds" or "number".
        help: what it says, in a sentence.
        group: heading under which it stands.
    """

    name: str
    title: str
    unit: str
    help: str
    group: str


_TRAINING, _STAGES, _TIERS = "Training", "Pipeline", "Tiers"
_SSD, _ROWS, _CALLS, _SERVING = "SSD and checkpoints", "Rows", "Calls", "Served models"

PANELS = (
    Panel("examples", "Examples a second", "rate", "Examples trained on a second.", _TRAINING),
    Panel(
        "loss",
        "Logloss",
        "number",
        "Mean loss of the newest examples before they were trained on, and of validations.",
        _TRAINING,
    ),
    Panel("auc", "AUC", "number", "AUC of the same examples, and of validations.", _TRAINING),
    Panel(
        "calibration",
        "Calibration",
        "number",
        "Mean score over the share of clicks; 1 is exact. Of served versions by told outcomes.",
        _TRAINING,
    ),
    Panel(
        "stage_busy",
        "Stages at work",
        "share",
        "Share of the time in which a stage works; the one near 100 % bounds the run.",
        _STAGES,
    ),
    Panel(
        "stage_input",
        "Stages that wait for input",
        "share",
        "Share of the time in which a stage waits for the one before it.",
        _STAGES,
    ),
    Panel("rows", "Rows of a tier", "count", "Rows that lie in a tier now.", _TIERS),
    Panel("bytes", "Bytes of a tier", "bytes", "Memory, or files, of a tier.", _TIERS),
    Panel(
        "hit_rate",
        "Hit rate",
        "share",
        "Of the keys that a tier was asked for, those that it had, since the last look.",
        _TIERS,
    ),
    Panel("hits", "Hits a second", "rate", "Keys that a tier had.", _TIERS),
    Panel("misses", "Misses a second", "rate", "Keys that a tier had not.", _TIERS),
    Panel("evictions", "Evictions a second", "rate", "Rows that left for others.", _TIERS),
    Panel("ssd_rate", "SSD reads and writes", "bytes/s", "Bytes a second, both ways.", _SSD),
    Panel(
        "write_amplification",
        "Write amplification",
        "number",
        "Bytes written a byte of rows, compaction and overhead included, since the store was made.",
        _SSD,
    ),
    Panel("compactions", "Compactions a second", "rate", "Segments that were rewritten.", _SSD),
    Panel(
        "ssd_bytes",
        "Bytes on SSD",
        "bytes",
        "Current rows, the segments that hold them, and what only checkpoints hold.",
        _SSD,
    ),
    Panel("disk_free", "Room on the disk", "bytes", "Free bytes of the store's disk.", _SSD),
    Panel(
        "checkpoint_age",
        "Age of the newest checkpoint",
        "seconds",
        "What a crash now would cost in time.",
        _SSD,
    ),
    Panel("table_rows", "Rows of a table", "count", "Stored rows.", _ROWS),
    Panel(
        "born",
        "Rows born a second",
        "rate",
        "Rows that came by, less those that were erased; where keys are admitted, those admitted.",
        _ROWS,
    ),
    Panel("dying", "Rows that die a second", "rate", "Rows that died as a period began.", _ROWS),
    Panel(
        "waiting_keys", "Keys that wait", "count", "Keys that are counted, without a row.", _ROWS
    ),
    Panel("calls", "Calls a second", "rate", "Calls that ended, by method.", _CALLS),
    Panel(
        "latency",
        "Latency",
        "seconds",
        "Half of the calls, and 99 of 100, took no longer; from the buckets of a histogram.",
        _CALLS,
    ),
    Panel("refused", "Refused calls a second", "rate", "Calls that ended in an error.", _CALLS),
    Panel("in_flight", "Calls in flight", "count", "Calls under way, and those that wait.", _CALLS),
    Panel("network", "Bytes of messages", "bytes/s", "Requests and replies.", _CALLS),
    Panel(
        "log_bytes",
        "Update log",
        "bytes",
        "What a start of the server would apply again; a checkpoint empties it.",
        _CALLS,
    ),
    Panel("log_records", "Records of the log", "count", "The same, in records.", _CALLS),
    Panel("scored", "Examples scored a second", "rate", "Of a served model.", _SERVING),
    Panel(
        "version_age",
        "Age of the served version",
        "seconds",
        "Since the version that scores now was made: how far serving is behind training.",
        _SERVING,
    ),
)


def panels_json() -> list[Json]:
    """As the page takes them."""
    return [asdict(panel) for panel in PANELS]
