"""What a user asks of `server.publish`: a model, and options, as the publisher takes them.

Above it: `hps.ParameterServer.publish`, `hps.RemoteParameterServer.publish`. Below it: options.py,
graph.py.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hps.checkpoint.blobs import ModelState
from hps.errors import ConfigError
from hps.publish.graph import DenseGraph, FixedGraph, GraphMaker, ModuleGraph
from hps.publish.options import PublishOptions

if TYPE_CHECKING:
    import torch

# A torch module, or what a checkpoint takes, with the weights under "model".
Publishable: TypeAlias = "ModelState | torch.nn.Module | None"


def asked_of(
    model: Publishable, options: Mapping[str, Any]
) -> tuple[PublishOptions, ModelState | None]:
    """Options as the publisher takes them, and the model as a checkpoint takes it.

    Args:
        model: as `server.publish` takes it.
        options: fields of PublishOptions; `onnx`: True, or the graph of `hps.export_dense`.

    Raises:
        ConfigError: what is neither.
    """
    given = dict(options)
    onnx = given.pop("onnx", False)
    if onnx is not False and onnx is not None:
        given["graph"] = _graph_maker(onnx, model)
    asked = PublishOptions(**given)
    if model is not None and not isinstance(model, Mapping):
        return asked, {"model": _weights(model)}
    return asked, model


def _graph_maker(onnx: object, model: object) -> GraphMaker:
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
