"""PublishOptions: what is published of a store.

Above it: publisher.py, version_writer.py. Below it: codec.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.publish.codec import FLOAT32, RowCodec
from hps.publish.graph import GraphMaker
from hps.publish.version import BASE, DELTA

AUTO = "auto"
KINDS = (AUTO, BASE, DELTA)
KEEP = 10


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """What is published of a store.

    Args:
        dtype: of weights: "float32", "float16", "bfloat16", "int8" or "int4" (with a scale a row).
        tables: their names; None: all.
        min_score: of tables with expiry rows with a lower score are not served; None: all are.
        kind: "base", "delta", or "auto", which takes a delta where one is possible and small.
        keep: versions that stay, at least; those that they follow stay with them.
        graph: makes the dense part's ONNX graph; None: versions have none.

    Raises:
        ConfigError: a value that is none of these.
    """

    dtype: str = FLOAT32
    tables: Sequence[str] | None = None
    min_score: float | None = None
    kind: str = AUTO
    keep: int = KEEP
    graph: GraphMaker | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        RowCodec(self.dtype, 1)
        if self.kind not in KINDS:
            raise ConfigError(f"publish: kind={self.kind!r} must be one of {list(KINDS)}")
        if self.keep < 1:
            raise ConfigError(f"publish: keep={self.keep} must be at least 1")
        if self.min_score is not None and not np.isfinite(self.min_score):
            raise ConfigError(f"publish: min_score={self.min_score} must be a finite number")

    def described(self) -> Json:
        """What makes versions of one lineage alike."""
        tables = None if self.tables is None else sorted(self.tables)
        told: Json = {"dtype": self.dtype, "tables": tables, "min_score": self.min_score}
        return told if self.graph is None else {**told, "onnx": True}
