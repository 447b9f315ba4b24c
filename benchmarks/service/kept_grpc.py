"""Bare gRPC with malloc's limits as `hps serve` sets them, in the client's process, too.

Above it: service_bench.py. Below it: bare_grpc.py. Without them glibc maps and unmaps the memory of
a message or does not, by how blocks happen to lie, and bare gRPC has two speeds; this is the faster
one (docs/decisions/0012-service-requests.md).
"""

from benchmarks.service import bare_grpc
from benchmarks.service.bare_grpc import BareClient
from benchmarks.service.contender import Setting, peer_command
from benchmarks.service.workload import Workload
from hps.common.process_memory import keep_freed_memory

NAME = "bare gRPC, memory kept"


def connect(addresses: list[str], workload: Workload, number: int) -> BareClient:
    """A client."""
    keep_freed_memory(arenas=1)
    return bare_grpc.connect(addresses, workload, number)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts a server."""
    return peer_command("kept_grpc", setting)


def serve(workload: Workload, folder: str) -> None:
    """A server until the process ends."""
    keep_freed_memory(arenas=1)
    bare_grpc.serve(workload, folder)
