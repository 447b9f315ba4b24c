"""Click models over rows of a server: DeepFM, DLRM, Wide & Deep, DCN-V2.

Each is an nn.Module that takes an `hps.Batch` and returns logits [B]. `MODELS` lists them by the
names that the command line uses.
"""

from hps.models.base import ClickModel
from hps.models.dcn_v2 import DCNv2
from hps.models.deepfm import DeepFM
from hps.models.dlrm import DLRM
from hps.models.wide_deep import WideAndDeep

MODELS: dict[str, type[ClickModel]] = {
    model.kind: model for model in (DeepFM, DLRM, WideAndDeep, DCNv2)
}

__all__ = ["DLRM", "MODELS", "ClickModel", "DCNv2", "DeepFM", "WideAndDeep"]
