"""hps: a hierarchical GPU/CPU/SSD parameter server for sparse click-through-rate models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hps.common.version import __version__ as __version__
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

if TYPE_CHECKING:
    from hps.cluster.config import ClusterConfig
    from hps.cluster.parameter_server import ClusterParameterServer
    from hps.common.admission import Admission
    from hps.common.expiry import Expiry
    from hps.common.initializers import Constant, Normal, Uniform
    from hps.common.optimizers import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
    from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig, TableConfig
    from hps.features.features import Features
    from hps.nn.dense_export import export_dense
    from hps.nn.embedding import SparseEmbedding
    from hps.nn.embeddings import SparseEmbeddings
    from hps.nn.grad_scaler import ClusterGradScaler
    from hps.nn.row_optimizer import RowOptimizer
    from hps.parameter_server.open_server import open as open
    from hps.parameter_server.server import ParameterServer
    from hps.pipeline import Pipeline
    from hps.reader.keys import key_of, keys_of
    from hps.service.client.options import TlsConfig
    from hps.service.client.parameter_server import RemoteParameterServer
    from hps.train.model import Model
    from hps.types import Batch, Ids

# Without `open`: `from hps import *` must not take the place of Python's own.
__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Admission",
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
    "Expiry",
    "Features",
    "GpuCacheConfig",
    "HpsError",
    "Ids",
    "Model",
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
    "SparseEmbeddings",
    "SsdStoreConfig",
    "StoreError",
    "TableConfig",
    "TlsConfig",
    "Uniform",
    "export_dense",
    "key_of",
    "keys_of",
]

# Loaded at first use: most need numpy, the native module and torch, and what declares fields takes
# its time, too; `hps --help` waits for none of them.
_LAZY = {
    **dict.fromkeys(("Constant", "Normal", "Uniform"), "hps.common.initializers"),
    **dict.fromkeys(("FTRL", "SGD", "Adagrad", "Adam", "RowWiseAdagrad"), "hps.common.optimizers"),
    "Config": "hps.config",
    "DramCacheConfig": "hps.config",
    "GpuCacheConfig": "hps.config",
    "SsdStoreConfig": "hps.config",
    "TableConfig": "hps.config",
    "Batch": "hps.types",
    "Ids": "hps.types",
    "ClusterConfig": "hps.cluster.config",
    "ParameterServer": "hps.parameter_server.server",
    "open": "hps.parameter_server.open_server",
    "ClusterGradScaler": "hps.nn.grad_scaler",
    "ClusterParameterServer": "hps.cluster.parameter_server",
    "Admission": "hps.common.admission",
    "Expiry": "hps.common.expiry",
    "Features": "hps.features.features",
    "Model": "hps.train.model",
    "export_dense": "hps.nn.dense_export",
    "key_of": "hps.reader.keys",
    "keys_of": "hps.reader.keys",
    "Pipeline": "hps.pipeline",
    "RemoteParameterServer": "hps.service.client.parameter_server",
    "RowOptimizer": "hps.nn.row_optimizer",
    "SparseEmbedding": "hps.nn.embedding",
    "SparseEmbeddings": "hps.nn.embeddings",
    "TlsConfig": "hps.service.client.options",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name in ("config", "types"):  # modules that users read numbers from
        return import_module(f"hps.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'hps' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LAZY[name]), name)  # once
    return found
