"""A model trained over a log of many days, each a period, with one setting of its table.

Above it: life_cycle_bench.py. Below it: hps.generate, `hps.train`.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.life_cycle.settings import Setting
from hps.config import TableConfig
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.train import TrainOptions, train


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the log and the model are.

    Args:
        periods: days of the log.
        examples: of each.
        keys: of all features together, on each day.
        drift: share of them that is replaced from one day to the next.
        features, dense: columns.
        dim, hidden: of a DeepFM.
        batch_size: examples of a step.
    """

    periods: int = 30
    examples: int = 20_000
    keys: int = 200_000
    drift: float = 0.1
    features: int = 8
    dense: int = 4
    dim: int = 8
    hidden: tuple[int, ...] = (64, 32)
    batch_size: int = 512


@dataclass(frozen=True)
class Days:
    """What a run over all days has come to.

    Args:
        aucs: of each day's examples, before they were trained on.
        rows: that are stored after the last day, those of all tables.
        disk_bytes: of the store's files then.
        cpu_seconds: of training, processor time.
        loss_digest: of every batch.
    """

    aucs: list[float]
    rows: int
    disk_bytes: int
    cpu_seconds: float
    loss_digest: str

    @property
    def auc(self) -> float:
        """The mean over all days but the first, of which no model has seen anything before."""
        return sum(self.aucs[1:]) / len(self.aucs[1:])


@dataclass(frozen=True, kw_only=True)
class SettingOptions(TrainOptions):
    """A run whose tables are as a setting has them, whether `hps train` has a flag for it or not.

    Args:
        setting: arguments of hps.TableConfig.
    """

    setting: Mapping[str, Any] = field(default_factory=dict)

    def _table(self, name: str) -> TableConfig:
        return replace(super()._table(name), **self.setting)


def write_log(folder: Path, shape: Shape, seed: int) -> list[float]:
    """Writes the days as FOLDER/day-000 and so on; returns the best possible AUC of each."""
    wanted = asdict(shape)
    names = ("periods", "keys", "drift", "features", "dense")
    config = GeneratorConfig(
        examples=shape.examples * shape.periods,
        seed=seed,
        **{name: wanted[name] for name in names},
    )
    figures = LogWriter(config, "parquet", 2).write(folder / "day")
    return [period["best_auc"] for period in figures["periods"]]


def train_days(folder: Path, shape: Shape, setting: Setting, seed: int) -> Days:
    """Trains over the days of a folder, each scored before it is trained on."""
    with tempfile.TemporaryDirectory() as store:
        options = SettingOptions(
            data=sorted(folder.glob("day-*")),
            store=store,
            setting=dict(setting.table),
            dim=shape.dim,
            hidden=shape.hidden,
            batch_size=shape.batch_size,
            seed=seed,
            progressive=True,
            advance_every="file",
            digest=False,
            depth=0,
            threads=1,
            torch_threads=1,
            **setting.options,
        )
        figures = train(options)
        disk_bytes = sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file())
    assert figures["period"] == shape.periods - 1, "not every day was a period"
    assert figures["examples"] == shape.periods * shape.examples
    return Days(
        aucs=[entry["auc"] for entry in figures["progressive"]],
        rows=figures["rows"],
        disk_bytes=disk_bytes,
        cpu_seconds=figures["cpu_seconds"],
        loss_digest=figures["loss_digest"],
    )
