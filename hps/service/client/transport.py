"""One channel to one shard: bytes out, bytes back, or a Failure.

Above it: the client's session and rounds; tests put one with faults here. Below it: grpc. Messages
pass as bytes, since generated code would copy their arrays once more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import grpc

from hps.service.client.errors import Failure
from hps.service.client.options import ClientConfig
from hps.service.client.probe import tls_difference

SERVICE = "hps.v1.ParameterServer"
_OF_PUBLISHING = ("DescribePart", "PublishPart", "DropPart")  # methods of hps.v1.Publishing
MODEL_SERVICE = "hps.v1.ModelServer"
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # the server's own limit holds
    ("grpc.max_send_message_length", -1),
    # A server that is started again is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Two clients of one process share no connection: neither waits behind the other.
    ("grpc.use_local_subchannel_pool", 1),
)


class Pending(Protocol):
    """A call that is under way."""

    def reply(self) -> bytes:
        """Waits for it.

        Raises:
            Failure: there is none.
        """

    def then(self, call: Callable[[bool], object]) -> None:
        """Calls it once, in any thread, when the reply is here (True) or will not come (False);
        now if that is so."""


class Transport(Protocol):
    """How calls reach one shard."""

    address: str

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        """One call, waited for.

        Raises:
            Failure: no reply within `timeout` seconds, or a status.
        """

    def start(self, method: str, request: bytes, timeout: float) -> Pending:
        """One call; those started one after the other leave in this order."""

    def stream(self, method: str, request: bytes, timeout: float) -> Iterator[bytes]:
        """Replies as they come; raises Failure."""

    def close(self) -> None:
        """Ends what is under way."""


class _PendingCall:
    def __init__(
        self, future: "grpc.Future[bytes]", failure_of: Callable[[grpc.RpcError], Failure]
    ) -> None:
        self._future = future
        self._failure_of = failure_of

    def reply(self) -> bytes:
        try:
            reply: bytes = self._future.result()
        except grpc.RpcError as error:
            raise self._failure_of(error) from None
        except grpc.FutureCancelledError:
            raise Failure(grpc.StatusCode.CANCELLED, None, "the channel was closed") from None
        return reply

    def then(self, call: Callable[[bool], object]) -> None:
        def done(future: "grpc.Future[bytes]") -> None:
            call(not future.cancelled() and future.exception() is None)

        self._future.add_done_callback(done)


class GrpcTransport:
    """The transport of grpcio; `service` is that whose methods are called."""

    def __init__(self, address: str, config: ClientConfig, service: str = SERVICE) -> None:
        self.address = address
        self._service = service
        self._tls = config.tls
        options: list[tuple[str, str | int]] = list(_CHANNEL_OPTIONS)
        # Of multi-callables, whose types the calls' own bytes do not fit.
        self._methods: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._metadata: tuple[tuple[str, str], ...] = ()
        if config.token is not None:
            self._metadata = (("authorization", f"Bearer {config.token}"),)
        if config.tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            ca, key, cert = config.tls.read()
            credentials = grpc.ssl_channel_credentials(ca, key, cert)
            if config.tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", config.tls.server_name))
            self._channel = grpc.secure_channel(address, credentials, options)

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        """One call, waited for."""
        try:
            reply: bytes = self._method(method)(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failure_of(error) from None
        return reply

    def start(self, method: str, request: bytes, timeout: float) -> _PendingCall:
        """One call; grpc sends it from a thread of its own."""
        method_of = self._method(method)
        future = method_of.future(request, timeout=timeout, metadata=self._metadata)
        return _PendingCall(future, self._failure_of)

    def stream(self, method: str, request: bytes, timeout: float) -> Iterator[bytes]:
        """Replies as they come."""
        opened: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            f"/{self._service}/{method}"
        )
        replies = opened(request, timeout=timeout, metadata=self._metadata)
        try:
            yield from replies
        except grpc.RpcError as error:
            raise self._failure_of(error) from None
        finally:
            replies.cancel()

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _failure_of(self, error: grpc.RpcError) -> Failure:
        look = partial(tls_difference, self.address, self._tls)
        return Failure.of(error, self._tls is not None, look)

    def _method(self, name: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
        if name not in self._methods:
            service = "hps.v1.Publishing" if name in _OF_PUBLISHING else self._service
            self._methods[name] = self._channel.unary_unary(f"/{service}/{name}")
        return self._methods[name]
