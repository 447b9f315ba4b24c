"""hps: a hierarchical GPU/CPU/SSD parameter server for sparse click-through-rate models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig, TableConfig
from hps.errors import (
    CapacityError,
    ClusterError,
    ConfigError,
    CorruptionError,
    DataError,
    HpsError,
    NonFiniteError,
    PendingGradientError,
    RemoteError,
    StoreError,
)
from hps.initializers import Constant, Normal, Uniform
from hps.optimizers import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.cluster.config import ClusterConfig
    from hps.cluster.grad_scaler import ClusterGradScaler
    from hps.cluster.server import ClusterParameterServer
    from hps.embedding import SparseEmbedding
    from hps.parameter_server import ParameterServer
    from hps.parameter_server import open as open
    from hps.pipeline import Pipeline
    from hps.row_optimizer import RowOptimizer
    from hps.service.client import RemoteParameterServer
    from hps.service.client_options import TlsConfig

__version__ = "0.1.0"

# Without `open`: `from hps import *` must not take the place of Python's own.
__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Batch",
    "CapacityError",
    "ClusterConfig",
    "ClusterError",
    "ClusterGradScaler",
    "ClusterParameterServer",
    "Config",
    "ConfigError",
    "Constant",
    "CorruptionError",
    "DataError",
    "DramCacheConfig",
    "GpuCacheConfig",
    "HpsError",
    "Ids",
    "NonFiniteError",
    "Normal",
    "ParameterServer",
    "PendingGradientError",
    "Pipeline",
    "RemoteError",
    "RemoteParameterServer",
    "RowOptimizer",
    "RowWiseAdagrad",
    "SparseEmbedding",
    "SsdStoreConfig",
    "StoreError",
    "TableConfig",
    "TlsConfig",
    "Uniform",
]

# Loaded at first use: these need the native module, and all but the first three need torch.
_LAZY = {
    "ClusterConfig": "hps.cluster.config",
    "ParameterServer": "hps.parameter_server",
    "open": "hps.parameter_server",
    "ClusterGradScaler": "hps.cluster.grad_scaler",
    "ClusterParameterServer": "hps.cluster.server",
    "Pipeline": "hps.pipeline",
    "RemoteParameterServer": "hps.service.client",
    "RowOptimizer": "hps.row_optimizer",
    "SparseEmbedding": "hps.embedding",
    "TlsConfig": "hps.service.client_options",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hps' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
