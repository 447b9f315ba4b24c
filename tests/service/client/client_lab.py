"""Real shards behind real servers in this process, for tests of the client.

Above it: the client's tests. Below it: hps.service.shard.shard, hps.service.server.server.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hps
from hps.config import TableConfig
from hps.service.client.parameter_server import RemoteParameterServer
from hps.service.server.log_lines import LogLines
from hps.service.server.server import Server, ServerOptions
from hps.service.shard.location import StoreLocation
from hps.service.shard.shard import Shard, ShardOptions

ADS = TableConfig(name="ads", dim=8, optimizer=hps.Adagrad(lr=0.05))


@dataclass
class Service:
    """Shards and their servers."""

    folder: Path
    shards: list[Shard] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def client(self, client_id: str | None = "trainer-0", **options: Any) -> RemoteParameterServer:
        options.setdefault("deadline", 60.0)
        return RemoteParameterServer(self.addresses, client_id, **options)

    def stores(self) -> list[Path]:
        return [self.folder / f"shard{i}" for i in range(len(self.shards))]

    def kill(self) -> None:
        """As a kill of each: their logs alone have what no checkpoint holds."""
        for server, shard in zip(self.servers, self.shards, strict=True):
            server.stop()
            shard.close(checkpoint=False)


@contextmanager
def service(
    folder: Path, count: int = 2, tables: Sequence[TableConfig] = (ADS,), **options: Any
) -> Iterator[Service]:
    """A service of so many shards, stopped with the block."""
    made = Service(folder)
    seed = options.pop("seed", 0)
    ssd = options.pop("ssd", hps.SsdStoreConfig())
    options.setdefault("drain_seconds", 2.0)
    with ExitStack() as stack:
        for index in range(count):
            place: Any = folder / f"shard{index}"
            if tables:
                place = hps.Config(
                    path=place,
                    tables=tables,
                    dram=hps.DramCacheConfig(bytes="4MiB"),
                    ssd=ssd,
                    seed=seed,
                )
            else:
                place = StoreLocation(path=place, dram=hps.DramCacheConfig(bytes="4MiB"), seed=seed)
            shard = Shard(place, ShardOptions(index=index, count=count))
            stack.callback(shard.close)
            made.shards.append(shard)
            server = Server(
                shard,
                ServerOptions(listen="127.0.0.1:0", **options),
                LogLines(io.StringIO(), calls=False),
            )
            stack.callback(server.stop)
            made.servers.append(server)
        yield made
