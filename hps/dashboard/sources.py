"""Sources: what a target tells when it is asked once: an address, a run's folder, a store.

Above it: collector.py. Below it: fetch.py, figures.py; hps/report/runs.py, whose files a run
writes; the store, opened read-only. None of them changes anything at its target.
"""

import json
import math
import os
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hps.common.json_text import Json
from hps.contracts.tiers import RowTier
from hps.dashboard.exposition import Between, Exposition, parse
from hps.dashboard.figures import now_figures, rate_figures, stage_shares
from hps.errors import DataError, HpsError, StoreError
from hps.report.history import BEGIN, FIGURES, LINES, TRAIN, VALID
from hps.report.runs import parse_line
from hps.ssd_store import open_store
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.cluster.cluster_store import ClusterStore

TRAINER, SERVER, MODEL_SERVER, RUN, STORE = "trainer", "server", "model server", "run", "store"
MOST_SLICES = 240
MOST_ROWS = 2**22  # of a store whose index is read for the rows of each table
_PIECE_BYTES = 2**20  # of a run's file that are read at once
_MOST_LINE = 2**16


@dataclass
class Reading:
    """What a target said.

    Args:
        kind: what it is.
        figures: by the names of figures.py.
        facts: other things, in words.
        past: (time, figures) of moments before, the oldest first; of a run's file.
        slices: of the stages, as `/stages` has them.
        stages: of one rank of several: seconds by stage since the last reading, to be compared.
        ended: the run is over.
    """

    kind: str
    figures: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    past: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    slices: list[list[str | int | float]] = field(default_factory=list)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    ended: bool = False


class Source(Protocol):
    """Asks one target; one thread at a time."""

    def read(self, time: float) -> Reading:
        """What it says now.

        Args:
            time: now, seconds since 1970.

        Raises:
            HpsError, OSError: it cannot be reached, or says what nobody understands.
        """


class EndpointSource:
    """An address with figures for Prometheus.

    Args:
        get: asks for a path.
    """

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get
        self._before: Exposition | None = None
        self._rates: dict[str, float] = {}
        self._stages: dict[str, dict[str, float]] = {}

    def read(self, time: float) -> Reading:
        """As Source."""
        found = parse(self._get("/metrics").decode("utf-8", "replace"), time)
        if not any(name.startswith("hps_") for name in found.samples):
            raise DataError("it has no figures of hps: none of its metrics is called hps_...")
        reading = Reading(_kind(found), dict(now_figures(found)), _facts(found))
        if self._before is not None:
            between = Between(self._before, found)
            if not between.is_same_note:
                self._rates = dict(rate_figures(between))
                is_one_of_several = found.labels_of("hps_train_rank").get("ranks", "1") != "1"
                self._stages = _stage_seconds(between) if is_one_of_several else {}
                self._before = found
            reading.figures |= self._rates
            reading.stages = self._stages
        else:
            self._before = found
        if reading.kind == TRAINER:
            reading.slices = self._slices()
        return reading

    def _slices(self) -> list[list[str | int | float]]:
        try:
            told = json.loads(self._get("/stages"))
            slices: list[list[str | int | float]] = [
                [str(a), str(b), int(c), float(d), float(e)] for a, b, c, d, e in told["slices"]
            ]
        except (HpsError, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return []  # the figures alone are worth showing
        return slices[-MOST_SLICES:]


def _kind(found: Exposition) -> str:
    if "hps_train_rank" in found.samples:
        return TRAINER
    return MODEL_SERVER if "hps_model_version" in found.samples else SERVER


def _facts(found: Exposition) -> dict[str, str]:
    facts: dict[str, str] = {}
    rank = found.labels_of("hps_train_rank")
    if rank:
        facts["rank"] = f"{rank.get('rank')} of {rank.get('ranks')}"
    model = found.labels_of("hps_model_version")
    if model:
        facts |= {"model": model.get("name", ""), "version": model.get("version", "")}
    newest = found.value("hps_model_newest")
    if newest is not None:
        facts["newest version"] = f"{newest:.0f}"
    for metric, name in (
        ("hps_train_examples_total", "examples"),
        ("hps_train_batches_total", "batches"),
        ("hps_checkpoints", "checkpoints"),
        ("hps_sessions", "clients"),
    ):
        value = found.value(metric)
        if value is not None:
            facts[name] = f"{value:,.0f}"
    if found.value("hps_failed"):
        facts["failed"] = "takes no changes: log or store have failed"
    return facts


def _stage_seconds(between: Between) -> dict[str, dict[str, float]]:
    """As `find_stragglers` takes them."""
    seconds = {
        stage: {"busy_seconds": shares.get("busy", 0.0) * between.seconds}
        for stage, shares in stage_shares(between).items()
    }
    exchanged = between.growth_of("hps_train_exchange_seconds_total")
    if exchanged and "compute" in seconds:
        seconds["compute"]["exchange_seconds"] = exchanged
    return seconds


class RunSource:
    """The folder of `hps train --report`: what its history has more than the last time.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = 0  # in the file
        self._identity = (0, 0)
        self._rest = b""
        self._newest: dict[str, float] = {}
        self._examples = 0
        self._time = 0.0

    def read(self, time: float) -> Reading:
        """As Source. Cost: reads what was added; at the first time the whole file."""
        past = [point for line in self._lines() if (point := self._point(line)) is not None]
        for _, figures in past:
            self._newest |= figures
        reading = Reading(RUN, dict(self._newest), past=past, ended=self._has_ended())
        reading.facts["examples"] = f"{self._examples:,}"
        if self._time:
            reading.facts["last line"] = f"{max(time - self._time, 0):,.0f} s ago"
        return reading

    def _lines(self) -> list[Json]:
        path = self._folder / LINES
        found: list[Json] = []
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                identity = (state.st_dev, state.st_ino)
                if identity != self._identity or state.st_size < self._place:
                    self._identity, self._place, self._rest = identity, 0, b""
                file.seek(self._place)
                while piece := file.read(_PIECE_BYTES):
                    self._place += len(piece)
                    *whole, self._rest = (self._rest + piece).split(b"\n")
                    self._rest = self._rest[:_MOST_LINE]
                    found += [one for text in whole if (one := parse_line(text)) is not None]
        except OSError as error:
            raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
        return found

    def _point(self, line: Json) -> tuple[float, dict[str, float]] | None:
        """The figures of a line of the history."""
        kind, time = line["kind"], line.get("time")
        self._examples = int(line["examples"])
        if not isinstance(time, int | float) or not math.isfinite(time):
            return None
        self._time = float(time)
        if kind == BEGIN:
            return None
        names = {"logloss": "loss", "auc": "auc", "calibration": "calibration"}
        of_kind = {TRAIN: "train", VALID: "valid"}.get(kind, str(kind))
        figures: dict[str, float] = {}
        for name, value in line.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if name in names:
                figures[f"{names[name]}/{of_kind}"] = float(value)
            elif name == "examples_per_second":
                figures["examples"] = float(value)
            elif name.startswith("hit_rate/"):
                figures[name] = float(value)
        return self._time, figures

    def _has_ended(self) -> bool:
        """True if the figures of its end are there, and as new as its newest line."""
        try:
            return (self._folder / FIGURES).stat().st_mtime >= self._time - 1
        except OSError:
            return False


class StoreSource:
    """A store: its checkpoints at each reading, the rows of its tables after a new one.

    The manifest is read each time: its cost does not grow with the rows. The index, which takes
    memory, is read where the newest checkpoint is another one and has few rows, and no oftener than
    takes a fiftieth of the time.

    Args:
        path: of the store, or of a cluster's folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: Mapping[str, float] = {}
        self._known: object = None  # the checkpoint of which these are
        self._due = 0.0

    def read(self, time: float) -> Reading:
        """As Source."""
        # False: the manifest alone.
        listed, whole = self._open(rows=False)
        reading = Reading(STORE)
        reading.facts["checkpoints"] = f"{len(listed):,}"
        for figure, name in (
            ("write_amplification", "write_amplification"),
            ("ssd_bytes/files", "files_bytes"),
        ):
            if name in whole:
                reading.figures[figure] = float(whole[name])
        if not listed:
            return reading
        newest = max(listed, key=lambda one: float(one["created"]))
        reading.figures["checkpoint_age"] = max(time - float(newest["created"]), 0.0)
        reading.figures["rows/ssd_store"] = float(newest["rows"])
        reading.facts["newest checkpoint"] = str(newest["tag"] or newest["id"])
        self._look_into(newest)
        reading.figures |= self._tables
        return reading

    def _look_into(self, newest: Json) -> None:
        name = (newest["id"], newest["created"])
        if name == self._known:
            return
        if int(newest["rows"]) > MOST_ROWS:
            self._tables, self._known = {}, name
            return
        start = clock.monotonic()
        if start < self._due:
            return
        _, whole = self._open(rows=True)
        tables = whole.get("tables", {}).items()
        self._tables = {f"table_rows/{table}": float(one["rows"]) for table, one in tables}
        self._known = name
        end = clock.monotonic()
        self._due = end + 50 * (end - start)

    def _open(self, *, rows: bool) -> tuple[list[Json], Json]:
        """Its checkpoints, and what it says of itself."""
        is_cluster = Catalog.load(self._path) is not None
        opening: Callable[..., RowTier] = ClusterStore.open if is_cluster else open_store
        store = opening(self._path, [], read_only=True, rows=rows)
        try:
            return store.checkpoints(), store.stats()
        finally:
            store.close()
