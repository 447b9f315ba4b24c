"""Logs of `hps generate`: what the best model would reach is known.

Above it: quality_bench.py. Below it: hps.generate.
"""

import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.quality.logs import LABEL, Log
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter

FEATURES, DENSE = 8, 4
GENERATED = ("generated_1000", "generated_100", "generated_10")  # examples for each key


def generated(name: str, num_train: int = 80_000) -> Log:
    """A log of so many examples for each key, 8 features and 4 dense columns.

    Args:
        name: generated_ and the number of examples for each key.
        num_train: examples to train on; an eighth more each are validated and tested on.
    """
    matched = re.fullmatch(r"generated_(\d+)", name)
    assert matched is not None, name
    num_test = num_train // 2
    config = GeneratorConfig(
        examples=num_train * 9 // 8,
        test_examples=num_test,
        features=FEATURES,
        dense=DENSE,
        keys=max(num_train // int(matched[1]), FEATURES),
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
