"""Logs of `hps generate`: what the best model would reach is known.

Above it: data_sets.py. Below it: hps.generate.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.quality.logs import LABEL, Log
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter

NUM_TRAIN = 80_000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a generated log looks like, whatever its length.

    Args:
        per_key: examples for each key of the log.
        features, dense: columns.
        bag: keys of a feature of an example, on average; None: one.
    """

    per_key: float
    features: int = 8
    dense: int = 4
    bag: float | None = None


# Few columns: a key is seen a thousand, a hundred, ten times.
GENERATED = {f"generated_{count}": Shape(per_key=count) for count in (1000, 100, 10)}
# What real logs of clicks are: many columns, most keys hardly seen twice, bags.
GENERATED_RARE = {
    "generated_rare": Shape(per_key=2 / 3),
    "generated_wide": Shape(per_key=40, features=26, dense=13),
    "generated_wide_rare": Shape(per_key=2 / 3, features=26, dense=13),
    "generated_wide_rarest": Shape(per_key=1 / 20, features=26, dense=13),
    "generated_bags": Shape(per_key=20, bag=10),
    "generated_bags_rare": Shape(per_key=1 / 5, bag=10),
}
SHAPES: Mapping[str, Shape] = GENERATED | GENERATED_RARE


def generated(name: str, num_train: int = NUM_TRAIN) -> Log:
    """A log of a shape.

    Args:
        name: of SHAPES.
        num_train: examples to train on; an eighth more each are validated and tested on.
    """
    shape = SHAPES[name]
    num_test = num_train // 2
    config = GeneratorConfig(
        examples=num_train * 9 // 8,
        test_examples=num_test,
        features=shape.features,
        dense=shape.dense,
        keys=max(int(num_train / shape.per_key), shape.features),
        bag=shape.bag,
    )
    with tempfile.TemporaryDirectory() as folder:
        log, test = Path(folder, "log.parquet"), Path(folder, "test.parquet")
        writer = LogWriter(config, "parquet", num_threads=1)
        writer.write(log)
        best = writer.write_test(test)["best_auc"]
        table = pa.concat_tables([pq.read_table(log), pq.read_table(test)])
    table = table.set_column(
        table.schema.get_field_index(LABEL), LABEL, table[LABEL].cast(pa.int8())
    )
    return Log(name=name, table=table, num_test=num_test, best=best)
