"""Features described once: what each column of a log is, and what is made of it before the model.

Above it: `hps train --features`, `hps features`, loops of one's own. Below it: the readers, of
whose batches a `FeatureTransform` makes those that a model sees.
"""

from hps.features.column import KINDS, Column, Cross, Scale
from hps.features.features import Features
from hps.features.table import Table

__all__ = ["KINDS", "Column", "Cross", "Features", "Scale", "Table"]
