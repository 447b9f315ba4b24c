"""ModelServerClient: what an operator, or a pipeline of click logs, asks of `hps serve-model`.

Above it: `hps versions`, users. Below it: the channel of hps/service/client, hps.v1.ModelServer.
Scores are asked for with any client of the Open Inference Protocol.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.service.client.errors import Failure
from hps.service.client.options import ClientConfig
from hps.service.client.transport import MODEL_SERVICE, GrpcTransport
from hps.v1 import model_server_pb2 as pb

R = TypeVar("R", bound=Message)


class ModelServerClient:
    """A client of one model's server. A context manager.

    Args:
        config: its address, token, TLS and deadline; nothing else of it counts.
        name: of the model; empty: the only one that is there.

    Raises:
        ConfigError: several addresses.
    """

    def __init__(self, config: ClientConfig, name: str = "") -> None:
        if len(config.addresses) != 1:
            raise ConfigError(
                f"--server {', '.join(config.addresses)}: each server of a model has its own "
                "version; name one"
            )
        (self._address,) = config.addresses
        self._deadline = config.deadline
        self._transport = GrpcTransport(self._address, config, MODEL_SERVICE)
        self._name = name

    def versions(self, limit: int = 0) -> Json:
        """What is served and what is kept: the fields of GetVersionsReply in
        proto/hps/v1/model_server.proto, with `versions` as a list.

        Args:
            limit: most versions that are described, the newest ones; 0: 100.

        Raises:
            ConfigError: the model is of a store. RemoteError, StoreError: it cannot be told.
        """
        request = _made(pb.GetVersionsRequest, name=self._name, limit=limit)
        return _plain(self._call("GetVersions", request, pb.GetVersionsReply))

    def go_to(self, version: int) -> Json:
        """Goes to a version that is kept, and follows no more; returns what `versions` does.

        Raises:
            ConfigError: it is not kept, or the model is of a store. CorruptionError, StoreError: it
                is damaged or cannot be read; the version before it goes on. RemoteError: another
                change is under way, or this one was not done within the deadline, and goes on.
        """
        request = _made(pb.SetVersionRequest, name=self._name, version=version)
        return _plain(self._call("SetVersion", request, pb.GetVersionsReply))

    def follow(self) -> Json:
        """Lets newer versions be taken over from now on; as `go_to`."""
        request = pb.SetVersionRequest(name=self._name, follow=True)
        return _plain(self._call("SetVersion", request, pb.GetVersionsReply))

    def add_outcomes(
        self,
        version: str,
        scores: Sequence[float],
        labels: Sequence[float],
        weights: Sequence[float] = (),
    ) -> int:
        """Adds what became of scored examples to the figures of a version; sent twice it counts
        twice.

        Args:
            version: that has scored them, as replies have it.
            scores: [B], that it has given.
            labels: [B], 1 for a click, 0 for none.
            weights: [B], how much each counts; empty: 1 each.

        Returns:
            How many were added.

        Raises:
            ConfigError: they are none of these. RemoteError: it is not known whether they count.
        """
        request = _made(
            pb.OutcomeRequest,
            name=self._name,
            version=version,
            scores=scores,
            labels=labels,
            weights=weights,
        )
        return int(self._call("Outcome", request, pb.OutcomeReply).examples)

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, method: str, request: Message, reply: type[R]) -> R:
        data = request.SerializeToString()
        try:
            return reply.FromString(self._transport.call(method, data, self._deadline))
        except Failure as failure:
            raise failure.typed(self._address, "server of a model") from None


def _made(kind: type[R], **fields: Any) -> R:
    """A request; ConfigError where a field is none that it can have."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        given = {name: value for name, value in fields.items() if name != "name"}
        raise ConfigError(f"{kind.__name__} of {str(given)[:200]}: {error}") from None


def _plain(reply: pb.GetVersionsReply) -> Json:
    own = {one.name: getattr(reply, one.name) for one in reply.DESCRIPTOR.fields}
    listed = [
        {one.name: getattr(version, one.name) for one in version.DESCRIPTOR.fields}
        for version in reply.versions
    ]
    return {**own, "versions": listed}
