"""Publishing: versions for serving of a server's rows, as they are now.

Above it: ParameterServer. Below it: checkpoints.py, hps/publish. What is published is a checkpoint,
read from the store beside everything else that the server does.
"""

import threading
from collections.abc import Mapping
from typing import Any

from hps.checkpoint.blobs import ModelState
from hps.checkpoint.names import find_listed
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.parameter_server.checkpoints import Checkpoints
from hps.parameter_server.tables import Tables
from hps.publish.asked import Publishable, asked_of
from hps.publish.publisher import Publisher
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin


class Publishing:
    """The publishers of a server, one a destination and kind of version; each keeps what it
    published last open, so that the next delta begins at once.

    Args:
        tables, checkpoints: of the server.
    """

    def __init__(self, tables: Tables, checkpoints: Checkpoints) -> None:
        self._tables = tables
        self._checkpoints = checkpoints
        self._lock = threading.Lock()  # of the publishers; a version is made by one thread
        self._publishers: dict[tuple[str, str], Publisher[Source]] = {}

    def publish(self, place: str, model: Publishable, options: Mapping[str, Any]) -> Json:
        """As ParameterServer.publish."""
        asked, state = asked_of(model, options)
        with self._lock:
            checkpoint = self._to_publish(state)
            key = place, repr(asked.described())
            publisher = self._publishers.get(key)
            if publisher is None:
                held = self._tables.store.held_folder
                publisher = Publisher(StoreOrigin(self._tables.config.path, held), place, asked)
                self._publishers[key] = publisher
            publisher.options = asked
            return publisher.publish(checkpoint)

    def _to_publish(self, model: ModelState | None) -> int:
        """The id of a checkpoint of the rows as they are; taken if there is none."""
        with self._tables.updates:
            self._tables.check_writable("publish")
            store = self._tables.store
            current = find_listed("the store", store.checkpoints())
            if current is None or self._tables.is_changed or model is not None:
                self._checkpoints.take(None, model, None)
                current = find_listed("the store", store.checkpoints())
            if current is None:
                raise ConfigError("publish: the checkpoint was deleted meanwhile; try again")
            return int(current["id"])

    def close(self) -> None:
        """Lets go of what was published last."""
        with self._lock:
            while self._publishers:
                self._publishers.popitem()[1].close()
