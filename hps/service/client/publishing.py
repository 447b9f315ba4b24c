"""RemotePublishing: versions for serving of what all shards of a service hold.

Above it: parameter_server.py, `hps publish --server`, `hps train --server --publish`. Below it:
publish_origin.py, hps/publish.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from hps.checkpoint.blobs import ModelState
from hps.checkpoint.over_parts import CheckpointsOverParts
from hps.common.json_text import Json, parse_json
from hps.publish.asked import Publishable, asked_of
from hps.publish.destination import open_destination
from hps.publish.options import PublishOptions
from hps.publish.publisher import Publisher
from hps.service.client.checkpoints import RemoteParts
from hps.service.client.connections import Connections
from hps.service.client.names import RemoteNames
from hps.service.client.publish_origin import ServiceCheckpoint, ServiceOrigin
from hps.service.client.shards import Shards
from hps.v1 import parameter_server_pb2 as pb


class RemotePublishing:
    """Publishes versions of what the shards hold, one publisher a destination and kind of version.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        parts: of the checkpoints.
        names: of these.
    """

    def __init__(
        self,
        connections: Connections,
        shards: Shards,
        parts: RemoteParts,
        names: RemoteNames,
    ) -> None:
        self._connections = connections
        self._shards = shards
        self._checkpoints = CheckpointsOverParts(parts)
        self._parts = parts
        self._names = names
        self._lock = threading.Lock()  # of the publishers; a version is made by one thread
        self._publishers: dict[tuple[str, str], Publisher[ServiceCheckpoint]] = {}

    def publish(self, place: str, model: Publishable, options: Mapping[str, Any]) -> Json:
        """As RemoteParameterServer.publish."""
        self._shards.check_usable("publish")
        asked, state = asked_of(model, options)
        with self._lock:
            key = place, repr(asked.described())
            publisher = self._publishers.get(key)
            if publisher is None:
                self._origin(place).check()
                publisher = self._publishers[key] = self.publisher(place, asked)
            publisher.options = asked
            return publisher.publish(self.take_if_changed(state))

    def publisher(
        self,
        place: str,
        options: PublishOptions,
        told: Callable[[int, int], object] = lambda rows, num_bytes: None,
    ) -> Publisher[ServiceCheckpoint]:
        """One that publishes checkpoints that there are; `told` as ServiceOrigin has it."""
        return Publisher(self._origin(place, told), place, options)

    def check(self, place: str) -> None:
        """As ServiceOrigin.check."""
        self._origin(place).check()

    def _origin(
        self, place: str, told: Callable[[int, int], object] = lambda rows, num_bytes: None
    ) -> ServiceOrigin:
        shown = open_destination(place).shown
        return ServiceOrigin(self._connections, shown, self._parts, self._names, told)

    def take_if_changed(self, model: ModelState | None = None) -> int:
        """The id of a checkpoint over all shards of the rows as they are; taken if there is none.

        Args:
            model: as `RemoteParameterServer.checkpoint` takes it; one is taken with it.
        """
        if model is not None or not self._is_unchanged():
            self._checkpoints.checkpoint(None, model, None)
            return int(self._parts.kept()[-1].info.id)
        return int(self._parts.find(None).info.id)

    def _is_unchanged(self) -> bool:
        """Whether no shard has changed since the newest checkpoint of all of them."""
        listed = self._parts.listed()
        kept = self._parts.kept()
        if not kept or not kept[-1].info.current:
            return False
        newest = [infos[-1].created if infos else None for infos in listed]
        if newest != [info.created for info in kept[-1].parts]:  # a shard has taken one by itself
            return False
        stats = self._connections.ask_all("Stats", pb.StatsRequest(), pb.StatsReply)
        figures = [parse_json(one.json, "stats").get("service", {}) for one in stats]
        return all(one.get("records_since_checkpoint") == 0 for one in figures)
