"""Arrow Flight as a peer: DoExchange streams in front of hps's own table, the same look-up.

Above it: service_bench.py. Below it: pyarrow.flight, embedded.py. A stream stays open, one for each
request in flight, so that a request is one record batch there and one back.
"""

from typing import Any

import pyarrow as pa
from pyarrow import flight

from benchmarks.service.contender import Blocking, Setting, peer_command
from benchmarks.service.embedded import Embedded
from benchmarks.service.workload import Keys, Rows, Workload

NAME = "Arrow Flight"
IN_FLIGHT = 4
_PULL = b"pull"
_PUSH = b"push"


def absent() -> str:
    """Nothing: a package without Flight fails at the import of this file."""
    return ""


def _schema(command: bytes, dim: int) -> Any:
    keys = pa.field("keys", pa.uint64())
    if command == _PULL:
        return pa.schema([keys])
    return pa.schema([keys, pa.field("rows", pa.list_(pa.float32(), dim))])


def _rows_array(rows: Rows) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _rows_of(column: Any, dim: int) -> Rows:
    rows: Rows = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, dim)
    return rows


class LookUp(flight.FlightServerBase):  # type: ignore[misc]
    """Answers each record batch of a stream with one."""

    def __init__(self, table: Embedded, dim: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = table
        self._dim = dim

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        is_pull = descriptor.command == _PULL
        answer = pa.schema([pa.field("rows", pa.list_(pa.float32(), self._dim))])
        writer.begin(answer if is_pull else pa.schema([]))
        for chunk in reader:
            keys = chunk.data.column(0).to_numpy(zero_copy_only=True)
            if is_pull:
                rows = _rows_array(self._table.pull(keys))
                writer.write_batch(pa.record_batch([rows], schema=answer))
            else:
                self._table.push(keys, _rows_of(chunk.data.column(1), self._dim))
                writer.write_metadata(b"done")


class Connection:
    """A client with one stream for pulls and one for pushes."""

    def __init__(self, address: str, dim: int) -> None:
        self._dim = dim
        self._client = flight.FlightClient(f"grpc://{address}")
        self._streams = {
            command: self._client.do_exchange(flight.FlightDescriptor.for_command(command))
            for command in (_PULL, _PUSH)
        }
        for command, (writer, _) in self._streams.items():
            writer.begin(_schema(command, dim))

    def pull(self, keys: Keys) -> Rows:
        """float32 [N, dim]."""
        writer, reader = self._streams[_PULL]
        writer.write_batch(pa.record_batch([pa.array(keys)], schema=_schema(_PULL, self._dim)))
        return _rows_of(reader.read_chunk().data.column(0), self._dim)

    def push(self, keys: Keys, grads: Rows) -> None:
        """Returns once the server has applied it."""
        writer, reader = self._streams[_PUSH]
        columns = [pa.array(keys), _rows_array(grads)]
        writer.write_batch(pa.record_batch(columns, schema=_schema(_PUSH, self._dim)))
        assert reader.read_chunk().app_metadata is not None

    def close(self) -> None:
        for writer, _ in self._streams.values():
            writer.done_writing()
        self._client.close()


class FlightClient(Blocking):
    """Four connections, as many as requests are in flight."""

    def __init__(self, address: str, workload: Workload) -> None:
        connections = [Connection(address, workload.dim) for _ in range(IN_FLIGHT)]
        super().__init__(connections, workload)


def connect(addresses: list[str], workload: Workload, number: int) -> FlightClient:
    """A client."""
    return FlightClient(addresses[0], workload)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts a server."""
    return peer_command("flight_peer", setting)


def serve(workload: Workload, folder: str) -> None:
    """A server until the process ends."""
    server = LookUp(Embedded(workload), workload.dim)
    print(f"listening on 127.0.0.1:{server.port}", flush=True)
    server.serve()
