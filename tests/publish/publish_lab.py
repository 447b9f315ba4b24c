"""A store, a place where it is published, and what followers read there.

Above it: tests of published versions. Below it: hps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import hps
from hps.publish.destination import Destination, open_destination
from hps.publish.version import Version, chain_of
from hps.service.client.parameter_server import RemoteParameterServer
from hps.train.published_rows import PublishedRows

Rows = dict[int, bytes]
AnyServer = hps.ParameterServer | RemoteParameterServer
DIM = 4


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
    with PublishedRows.open(open_destination(place), number, cache, "16MiB", anew=True) as rows:
        return rows_of(rows.server, table)


def newest(place: str | Path) -> tuple[Destination, Version]:
    """The destination, and the newest version."""
    destination = open_destination(place)
    return destination, chain_of(destination)[-1]
