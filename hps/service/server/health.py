"""The public services health checking (grpc.health.v1) and reflection, open to every caller.

Above it: front.py; probes, grpcurl. Below it: calls.py, which ends what stalls. They tell
whether the server is serving and what its messages look like, nothing of what it holds.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from hps.service.messages.framing import read_small
from hps.service.messages.status import not_found
from hps.service.server.calls import Call, Handler, Service

if TYPE_CHECKING:
    from grpc_reflection.v1alpha import reflection

HEALTH_NAME = "grpc.health.v1.Health"
REFLECTION_NAME = "grpc.reflection.v1alpha.ServerReflection"
_LOOK_SECONDS = 0.5  # how soon a watcher notices that the call has ended


class Health:
    """Whether services are up; thread-safe.

    Args:
        names: of the services; "" is the server as a whole.
        is_alive: False once nothing can be answered any more, whatever is asked.
    """

    def __init__(self, names: tuple[str, ...], is_alive: Callable[[], bool]) -> None:
        self._is_alive = is_alive
        self._changed = threading.Condition()
        self._is_serving = {name: True for name in ("", *names)}

    def stop(self) -> None:
        """From now on nothing is serving."""
        with self._changed:
            self._is_serving = dict.fromkeys(self._is_serving, False)
            self._changed.notify_all()

    def is_serving(self) -> bool:
        """Whether the server as a whole is up, as Health.Check says of ""."""
        return self._is_serving[""] and self._is_alive()

    def check(self, call: Call, data: bytes) -> bytes:
        """Health.Check."""
        name = read_small(health_pb2.HealthCheckRequest, data).service
        if name not in self._is_serving:
            raise not_found(f"there is no service {name[:80]!r} here")
        return self._reply(name)

    def watch(self, call: Call, data: bytes) -> Iterator[bytes]:
        """Health.Watch: the status now, and again whenever it changes."""
        name = read_small(health_pb2.HealthCheckRequest, data).service
        told = b""
        while True:
            reply = self._reply(name)
            if reply != told:
                yield reply
                told = reply
            call.remaining()
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)

    def _reply(self, name: str) -> bytes:
        status = health_pb2.HealthCheckResponse
        is_serving = self._is_serving.get(name)
        if is_serving is None:
            kind = status.SERVICE_UNKNOWN
        else:
            is_up = is_serving and self._is_alive()
            kind = status.SERVING if is_up else status.NOT_SERVING
        reply: bytes = status(status=kind).SerializeToString()
        return reply


class Reflection:
    """What the services look like, for clients that have no .proto; thread-safe.

    Args:
        names: of the services.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = (*names, REFLECTION_NAME)
        self._servicer: reflection.ReflectionServicer | None = None

    def info(self, call: Call, data: bytes) -> bytes:
        """One request of ServerReflectionInfo."""
        # Imported when it is first asked for: it would take a tenth of the server's start.
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        if self._servicer is None:
            self._servicer = reflection.ReflectionServicer(self._names)
        request = read_small(reflection_pb2.ServerReflectionRequest, data)
        (reply,) = self._servicer.ServerReflectionInfo(iter([request]), None)
        answer: bytes = reply.SerializeToString()
        return answer


def open_handlers(service: Service, health: Health, names: tuple[str, ...]) -> dict[str, Handler]:
    """The handlers of both services, by their full names; they need no token."""
    about = Reflection((*names, HEALTH_NAME))
    return {
        f"/{HEALTH_NAME}/Check": service.unary("Health.Check", health.check),
        f"/{HEALTH_NAME}/Watch": service.server_stream("Health.Watch", health.watch),
        f"/{REFLECTION_NAME}/ServerReflectionInfo": service.both_streams(
            "ServerReflectionInfo", about.info
        ),
    }
