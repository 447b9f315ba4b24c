"""Configs refuse what cannot work with a ConfigError that names the field, whatever the type."""

import os
from typing import Any

import pytest

import hps
from hps.config import limit_idle_spinning

AD = hps.TableConfig(name="ads", dim=4)


@pytest.mark.parametrize(
    ("kind", "values", "field"),
    [
        (hps.TableConfig, {"share": "1"}, "share"),
        (hps.TableConfig, {"share": float("inf")}, "share"),
        (hps.TableConfig, {"share": True}, "share"),
        (hps.TableConfig, {"dim": "4"}, "dim"),
        (hps.TableConfig, {"dim": None}, "dim"),
        (hps.TableConfig, {"features": 3}, "features"),
        (hps.TableConfig, {"features": [1]}, "features"),
        (hps.TableConfig, {"shared_vocabulary": "yes"}, "shared_vocabulary"),
        (hps.TableConfig, {"optimizer": "adam"}, "optimizer"),
        (hps.TableConfig, {"name": None}, "name"),
        (hps.DramCacheConfig, {"bytes": None}, "bytes"),
        (hps.DramCacheConfig, {"bytes": 1.5}, "bytes"),
        (hps.GpuCacheConfig, {"bytes": None}, "bytes"),
        (hps.GpuCacheConfig, {"bytes": "1GiB", "device": None}, "device"),
        (hps.SsdStoreConfig, {"keep_last": "2"}, "keep_last"),
        (hps.SsdStoreConfig, {"segment_bytes": None}, "segment_bytes"),
        (hps.SsdStoreConfig, {"direct_io": 1}, "direct_io"),
        (hps.SsdStoreConfig, {"compaction_threshold": 0}, "compaction_threshold"),
        (hps.SsdStoreConfig, {"compaction_threshold": 1.0}, "compaction_threshold"),
        (hps.SsdStoreConfig, {"compaction_bytes_per_second": 0}, "compaction_bytes_per_second"),
        (hps.SsdStoreConfig, {"compaction_threshold": None}, "compaction_threshold"),
        (hps.SsdStoreConfig, {"engine": "leveldb"}, "engine"),
        (hps.Config, {"threads": None}, "threads"),
        (hps.Config, {"threads": "2"}, "threads"),
        (hps.Config, {"seed": 1.0}, "seed"),
        (hps.Config, {"seed": True}, "seed"),
        (hps.Config, {"path": None}, "path"),
        (hps.Config, {"tables": None}, "tables"),
        (hps.Config, {"tables": AD}, "tables"),
        (hps.Config, {"dram": "1GiB"}, "dram"),
        (hps.Config, {"ssd": None}, "ssd"),
        (hps.SGD, {"lr": "0.05"}, "lr"),
        (hps.Adagrad, {"lr": None}, "lr"),
        (hps.Adagrad, {"eps": "0"}, "eps"),
        (hps.Adam, {"betas": 0.9}, "betas"),
        (hps.Adam, {"betas": ("0.9", 0.9)}, "betas"),
        (hps.Adam, {"betas": (0.9, 1.0)}, "betas"),
        (hps.FTRL, {"lr": 0.0}, "lr"),
        (hps.FTRL, {"l1": None}, "l1"),
        (hps.Normal, {"std": "0.1"}, "std"),
        (hps.Uniform, {"low": None}, "low"),
    ],
)
def test_wrong_value_or_type_names_the_field(
    kind: type[Any], values: dict[str, Any], field: str
) -> None:
    needed: dict[type[Any], dict[str, Any]] = {
        hps.TableConfig: {"name": "ads", "dim": 4},
        hps.Config: {"path": "model", "tables": [AD]},
    }
    with pytest.raises(hps.ConfigError, match=field):
        kind(**{**needed.get(kind, {}), **values})


def test_numbers_are_those_of_python() -> None:
    """A numpy scalar would pass every check and then not go into a store's JSON files."""
    numpy = pytest.importorskip("numpy")
    with pytest.raises(hps.ConfigError, match=r"dim=.*whole number"):
        hps.TableConfig(name="ads", dim=numpy.int64(4))
    with pytest.raises(hps.ConfigError, match=r"lr=.*int or float"):
        hps.SGD(lr=numpy.float32(0.1))
    assert hps.DramCacheConfig(bytes=numpy.int64(1000)).bytes == 1000


def test_unknown_arguments_are_refused() -> None:
    for unknown in ("momentum", "nesterov"):
        with pytest.raises(TypeError, match=unknown):
            hps.SGD(**{"lr": 0.1, unknown: 0.9})


def test_open_is_no_name_to_import_with_all_others() -> None:
    assert "open" not in hps.__all__ and callable(hps.open)


@pytest.mark.parametrize("path", ["", None, 3, b"bytes", "a\0b", "no UTF-8 \udcff"])
def test_a_path_that_no_folder_of_a_store_can_have_is_refused(path: Any) -> None:
    with pytest.raises(hps.ConfigError, match=r"open: path="):
        hps.open(path)
    with pytest.raises(hps.ConfigError, match=r"Config\.path="):
        hps.Config(path=path, tables=[AD])


@pytest.mark.parametrize(
    "make",
    [
        lambda: hps.Constant(1e39),
        lambda: hps.Uniform(low=-3e38, high=3e38),  # its width is infinite
        lambda: hps.Normal(std=3e37, mean=1e38),
    ],
)
def test_initial_weights_that_float32_cannot_hold_are_refused(make: Any) -> None:
    with pytest.raises(hps.ConfigError, match=r"beyond float32 .*smaller numbers"):
        make()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "6000"}),
        ({"GOMP_SPINCOUNT": "1"}, {"GOMP_SPINCOUNT": "1"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_how_long_idle_threads_spin_is_set_where_nobody_has(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    limit_idle_spinning()
    assert os.environ == expected
