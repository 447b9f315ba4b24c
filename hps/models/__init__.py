"""Click models over rows of a server, from logistic regression to attention; docs/models.md.

Each is an nn.Module that takes an `hps.Batch` and returns logits [B]. `MODELS` lists them by the
names that the command line uses; `class_of` also finds a user's own, by `file.py:Class`.
"""

from hps.common.model_names import first_order_table
from hps.models.autoint import AutoInt
from hps.models.base import MLP, ClickModel, dense_factors, pair_products
from hps.models.dcn_v2 import DCNv2
from hps.models.deepfm import DeepFM
from hps.models.din import DIN
from hps.models.dlrm import DLRM
from hps.models.fm import FactorizationMachine
from hps.models.kinds import MODELS, class_of
from hps.models.lr import LogisticRegression
from hps.models.sequences import SequenceRows
from hps.models.wide_deep import WideAndDeep

__all__ = [
    "DIN",
    "DLRM",
    "MLP",
    "MODELS",
    "AutoInt",
    "ClickModel",
    "DCNv2",
    "DeepFM",
    "FactorizationMachine",
    "LogisticRegression",
    "SequenceRows",
    "WideAndDeep",
    "class_of",
    "dense_factors",
    "first_order_table",
    "pair_products",
]
