"""Publishing: versions for serving of a server's rows, as they are now.

Above it: ParameterServer. Below it: checkpoints.py, hps/publish. What is published is a checkpoint,
read from the store beside everything else that the server does.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hps.checkpoint.blobs import ModelState
from hps.checkpoint.names import find_listed
from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.parameter_server.checkpoints import Checkpoints
from hps.parameter_server.tables import Tables
from hps.publish.graph import DenseGraph, FixedGraph, GraphMaker, ModuleGraph
from hps.publish.options import PublishOptions
from hps.publish.publisher import Publisher
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin

if TYPE_CHECKING:
    import torch


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

    def publish(
        self, place: str, model: "ModelState | torch.nn.Module | None", options: dict[str, Any]
    ) -> Json:
        """As ParameterServer.publish."""
        onnx = options.pop("onnx", False)
        if onnx is not False and onnx is not None:
            options["graph"] = _graph_maker(onnx, model)
        asked = PublishOptions(**options)
        if model is not None and not isinstance(model, Mapping):
            model = {"model": _weights(model)}
        with self._lock:
            checkpoint = self._to_publish(model)
            key = place, repr(asked.described())
            publisher = self._publishers.get(key)
            if publisher is None:
                publisher = Publisher(StoreOrigin(self._tables.config.path), place, asked)
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


def _graph_maker(onnx: object, model: object) -> GraphMaker:
    """Of what a user gives as `onnx`."""
    if isinstance(onnx, DenseGraph):
        return FixedGraph(onnx)
    if onnx is True:
        return ModuleGraph.of(model)
    raise ConfigError(
        f"publish: onnx is a {type(onnx).__name__}; give True, or the graph that "
        "hps.export_dense(module, batch) returns"
    )


def _weights(module: "torch.nn.Module") -> Mapping[str, Any]:
    """Those of a module's dense part."""
    weights = getattr(module, "state_dict", None)
    if not callable(weights):
        raise ConfigError(
            f"publish: model is a {type(module).__name__}; give a torch module, or what checkpoint "
            "takes, with the weights under 'model'"
        )
    found: Mapping[str, Any] = weights()
    return found
