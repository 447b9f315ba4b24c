"""A store, a place where it is published, and what followers read there.

Above it: tests of published versions, also of what serves them. Below it: hps.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import hps
from hps.publish.destination import Destination, open_destination
from hps.publish.publisher import Publisher
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import Version, chain_of
from hps.service.client.parameter_server import RemoteParameterServer
from hps.train import TrainOptions, train
from hps.train.published_rows import PublishedRows, RowMemory

Rows = dict[int, bytes]
AnyServer = hps.ParameterServer | RemoteParameterServer
DIM = 4
SMALL = {"dim": 4, "hidden": (8,), "dram": "16MiB", "batch_size": 256}


def a_table(name: str = "ads", dim: int = DIM, **options: object) -> hps.TableConfig:
    """Small, of row-wise Adagrad."""
    return hps.TableConfig(
        name=name,
        dim=dim,
        optimizer=hps.RowWiseAdagrad(lr=0.1),
        **options,  # type: ignore[arg-type]
    )


@contextmanager
def a_server(
    path: Path, *tables: hps.TableConfig, dram: str = "1MiB", **ssd: object
) -> Iterator[hps.ParameterServer]:
    """Over a store at path, with small segments."""
    config = hps.Config(
        path=path,
        tables=tables or (a_table(),),
        dram=hps.DramCacheConfig(bytes=dram),
        ssd=hps.SsdStoreConfig(segment_bytes="64KiB", **ssd),  # type: ignore[arg-type]
        seed=3,
    )
    with hps.ParameterServer(config) as server:
        yield server


def keys_of(*numbers: int) -> np.ndarray:
    """uint64 [n]."""
    return np.array(numbers, np.uint64)


def push(server: AnyServer, keys: np.ndarray, value: float, table: str = "ads") -> None:
    """One update, of a gradient that tells keys apart."""
    dim = server.tables[table].dim
    grads = np.full((len(keys), dim), value, np.float32)
    grads += (keys % np.uint64(97)).astype(np.float32)[:, None]
    server.push(table, keys, grads)


def rows_of(server: AnyServer, table: str = "ads") -> Rows:
    """Key -> weights, of every stored row."""
    found: Rows = {}
    for keys, rows in server.items(table):
        found.update(zip(keys.tolist(), (row.tobytes() for row in rows), strict=True))
    return found


def served(place: str | Path, cache: Path, number: int | None = None, table: str = "ads") -> Rows:
    """What a follower that starts anew reads of a version."""
    cache.mkdir(exist_ok=True)
    with PublishedRows.open(
        open_destination(place), number, cache, RowMemory("16MiB"), anew=True
    ) as rows:
        return rows_of(rows.server, table)


def newest(place: str | Path) -> tuple[Destination, Version]:
    """The destination, and the newest version."""
    destination = open_destination(place)
    return destination, chain_of(destination)[-1]


def write_log(path: Path, seed: int, examples: int = 600) -> Path:
    """A log of libsvm whose days differ."""
    random = np.random.default_rng(seed)
    lines = [
        f"{random.integers(2)} {random.integers(200)}:1 {1000 + random.integers(100)}:1\n"
        for _ in range(examples)
    ]
    path.write_text("".join(lines))
    return path


def publish_days(folder: Path) -> None:
    """In a folder `store` of three days, `pub` with a version of each, and copies `store-1` ... of
    each day."""
    with Publisher(StoreOrigin(folder / "store"), folder / "pub") as publisher:
        for day in range(1, 4):
            log = write_log(folder / f"day-{day}.libsvm", day)
            more = {} if day == 1 else {"resume": True, "new_data": True}
            train(TrainOptions(data=[log], store=folder / "store", **SMALL, **more))
            publisher.publish()
            hps.ssd_store.clone(folder / "store", folder / f"store-{day}")


def scores_of(days: Path, batch: hps.Batch) -> dict[str, torch.Tensor]:
    """What the checkpoint of each version gives."""
    found = {}
    for day in range(1, 4):
        with hps.Model.load(days / f"store-{day}") as model:
            found[str(day)] = model.predict(batch)
    return found


def copy_up_to(days: Path, place: Path, number: int) -> None:
    """The place as it was when that version was the newest."""
    shutil.copytree(days / "pub", place, dirs_exist_ok=True)
    for later in range(number + 1, 4):
        (place / f"version-{later:08d}.json").unlink(missing_ok=True)


def show(days: Path, place: Path, number: int) -> None:
    """Makes a version visible, as its publisher does."""
    name = f"version-{number:08d}.json"
    shutil.copy(days / "pub" / name, place / f"{name}.new")
    (place / f"{name}.new").rename(place / name)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come within 60 s"
        time.sleep(0.01)
