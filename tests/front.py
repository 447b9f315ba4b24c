"""Small servers and batches for the tests of the torch side."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do; fails after a minute."""
    pause = threading.Event()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if is_so():
            return
        pause.wait(0.002)
    pytest.fail("what the test waits for has not come")


def open_server(
    folder: Path,
    optimizer: hps.SGD | hps.Adagrad | None = None,
    *,
    dim: int = 4,
    dram: str = "4MiB",
    names: tuple[str, ...] = ("ads",),
    **config: object,
) -> hps.ParameterServer:
    """A server with tables of one kind, in a folder of its own."""
    tables = [
        hps.TableConfig(
            name=name,
            dim=dim,
            optimizer=optimizer or hps.SGD(lr=0.1),
            features=[f"{name}-feature"],
        )
        for name in names
    ]
    return hps.ParameterServer(
        hps.Config(
            path=folder / "store", tables=tables, dram=hps.DramCacheConfig(bytes=dram), **config
        )
    )


def around_pins(server: Any, around: Callable[[Callable[[], Any], list[int]], Any]) -> None:
    """Has `around` pin each batch of a pipeline: it is given what pins it, and the keys of the
    batch's first table, and returns what that returns."""
    joint = server.joint
    pin = joint.pin

    def pin_around(features: Any, num_examples: int) -> Any:
        first = next(iter(features.values()))
        return around(lambda: pin(features, num_examples), first.keys_L.tolist())

    joint.pin = pin_around


def one_feature(keys: list[int]) -> hps.Ids:
    """One feature with exactly one key an example."""
    return hps.Ids(keys_L=torch.tensor(keys), offsets=torch.arange(len(keys) + 1))


def one_feature_batch(keys: list[int], number: int = 0, table: str = "ads") -> hps.Batch:
    """A batch of one feature of one table; `number` becomes its position."""
    num_examples = len(keys)
    return hps.Batch(
        features={table: one_feature(keys)},
        dense=torch.zeros(num_examples, 0),
        labels=torch.ones(num_examples),
        position={"batch": number},
    )


def random_bags(
    generator: np.random.Generator, num_bags: int, longest: int, num_keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys int64 [L] and offsets int64 [num_bags + 1]; some bags are empty."""
    lengths = generator.integers(0, longest + 1, num_bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = generator.integers(0, num_keys, int(offsets[-1]))
    return torch.from_numpy(keys), torch.from_numpy(offsets)
