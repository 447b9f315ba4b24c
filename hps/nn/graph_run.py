"""GraphSession: an ONNX graph and its weights, ready to score, by onnxruntime.

Above it: dense_export.py, which checks what it has exported; hps/train/graph_model.py. Below it:
onnxruntime and onnx, which are imported when a session is made.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hps.common.row_layout import Floats
from hps.errors import ConfigError, CorruptionError
from hps.publish.graph import LOGIT, WEIGHTS_FILE

INSTALL = "install it with: pip install 'hps-ctr[onnx]'"


class GraphSession:
    """A graph with one set of weights; threads may share it.

    Args:
        graph: its file.
        weights: the file of weights.
        where: the graph comes from, for errors.

    Raises:
        ConfigError: onnxruntime is not installed. CorruptionError: what is given is no graph, or
            none that takes all its weights from those.
    """

    def __init__(self, graph: bytes, weights: bytes, where: str = "the ONNX graph") -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise ConfigError(
                f"scoring by an ONNX graph needs the package {error.name!r}; {INSTALL}"
            ) from error
        _check_external(onnx, graph, len(weights), where)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        # A thread that waits for work by turning in circles takes it from the caller's.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_external_initializers_from_files_in_memory(
            [WEIGHTS_FILE], [weights], [len(weights)]
        )
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of the library, whose errors share no class
            raise CorruptionError(f"{where}: onnxruntime cannot run it: {error}") from error
        self.inputs = [one.name for one in self._session.get_inputs()]

    def logits(self, given: Mapping[str, NDArray[Any]]) -> Floats:
        """Logits, float32 [B].

        Args:
            given: a value for each of `inputs`.
        """
        found: Floats = self._session.run([LOGIT], dict(given))[0]
        return np.asarray(found, np.float32)


def _check_external(onnx: Any, data: bytes, num_bytes: int, where: str) -> None:
    """Refuses a graph that would read another file than that of its weights."""
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise CorruptionError(f"{where}: it is no ONNX model: {error}") from error
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        found = {one.key: one.value for one in tensor.external_data}
        begin, count = int(found.get("offset", "0")), int(found.get("length", "-1"))
        if found.get("location") != WEIGHTS_FILE or not 0 <= count <= num_bytes - begin:
            raise CorruptionError(
                f"{where}: its tensor {tensor.name!r} lies in {found.get('location')!r}, bytes "
                f"{begin:,} and {count:,} more; weights are in {WEIGHTS_FILE!r}, which has "
                f"{num_bytes:,}"
            )


def _tensors(graph: Any) -> Iterator[Any]:
    """All of a graph and the graphs in it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer:
                    yield from _tensors(inner)
