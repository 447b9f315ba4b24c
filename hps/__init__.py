"""hps: a hierarchical GPU/CPU/SSD parameter server for sparse click-through-rate models."""

from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig, TableConfig
from hps.errors import (
    CapacityError,
    ConfigError,
    CorruptionError,
    DataError,
    HpsError,
    NonFiniteError,
    RemoteError,
    StoreError,
)
from hps.initializers import Constant, Normal, Uniform
from hps.optimizers import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad

__version__ = "0.1.0"

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "CapacityError",
    "Config",
    "ConfigError",
    "Constant",
    "CorruptionError",
    "DataError",
    "DramCacheConfig",
    "GpuCacheConfig",
    "HpsError",
    "NonFiniteError",
    "Normal",
    "RemoteError",
    "RowWiseAdagrad",
    "SsdStoreConfig",
    "StoreError",
    "TableConfig",
    "Uniform",
]
