"""DenseGraph: the dense part of a model as an ONNX graph, whose weights lie in a file beside it.

Above it: version_writer.py, which writes it; `hps.export_dense`, `ClickModel.export_dense` and
`hps.train`, which make one; followers, which score by it. Below it: nothing. The graph names its
weights in `model.bin` by offset and length: that file is written anew for each version, and the
graph stays for as long as the model is made alike.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.errors import ConfigError

WEIGHTS_FILE = "model.bin"  # by which the graph's external data goes
GRAPH_FILE = "dense.onnx"
LOGIT, PROBABILITY = "logit", "probability"
# What an input of a graph holds, in the field `holds` of its description.
EMBEDDINGS, ROWS, EXAMPLE, DENSE = "embeddings", "rows", "example", "dense"


@dataclass(frozen=True)
class DenseGraph:
    """A module without its look-ups, as ONNX.

    Its outputs are `logit` and `probability`, float32 [B]: of examples as they come, log(R) added
    where the module was trained on the share R of the negatives.

    Args:
        onnx: the model as a file of ONNX has it, without weights: they are external data, in the
            file `model.bin` at the offsets of `tensors`.
        tensors: of the module's `state_dict`, as `weights_layout` of model_files.py has them.
        features: table -> names of its features, in the order in which a batch has them.
        inputs: of each input of the graph its `name`, `dtype`, `shape` (a text is any length,
            "batch" that of all), and what it `holds`; docs/publishing.md has the fields.
        opset: version of ONNX's operators.
    """

    onnx: bytes
    tensors: list[Json]
    features: dict[str, list[str]]
    inputs: list[Json]
    opset: int

    def check_fits(self, tensors: Sequence[JsonView]) -> None:
        """Refuses weights that lie elsewhere than the graph looks for them.

        Raises:
            ConfigError: names one of them.
        """
        own, given = (
            {str(one["name"]): dict(one) for one in some} for some in (self.tensors, tensors)
        )
        wrong = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))
        if wrong:
            raise ConfigError(
                f"publish: the ONNX graph was exported from a module with other weights: "
                f"{wrong[0]!r} is {_shown(own.get(wrong[0]))} there, and "
                f"{_shown(given.get(wrong[0]))} in the checkpoint; export the module that the "
                "checkpoint is of"
            )

    def described(self, mark: str) -> Json:
        """What a version says of it, beside its file."""
        return {
            "mark": mark,
            "opset": self.opset,
            "features": self.features,
            "inputs": self.inputs,
            "outputs": [
                {"name": name, "dtype": "float32", "shape": ["batch"]}
                for name in (LOGIT, PROBABILITY)
            ],
        }


def _shown(tensor: Json | None) -> str:
    return "missing" if tensor is None else f"{tensor['dtype']} {tensor['shape']}"


class GraphMaker(Protocol):
    """Makes the graph of a checkpoint's model."""

    def mark(self, state: JsonView) -> str:
        """Equal for models that have one graph; cheap.

        Args:
            state: what the checkpoint holds of the model.
        """

    def make(self, state: JsonView, tables: Mapping[str, TableConfig]) -> DenseGraph:
        """The graph; takes seconds where it is not made yet.

        Args:
            tables: of the checkpoint, by name.

        Raises:
            ConfigError: the model cannot be exported; says why, and what to do.
        """


class FixedGraph:
    """A graph that was made already, of whatever checkpoint.

    Args:
        graph: that of all checkpoints.
    """

    def __init__(self, graph: DenseGraph) -> None:
        self._graph = graph
        # Where its inputs come from is no part of the file: bags may be summed or averaged.
        told = json.dumps([graph.opset, graph.features, graph.inputs])
        self._mark = hashlib.sha256(graph.onnx + told.encode()).hexdigest()

    def mark(self, state: JsonView) -> str:
        """As GraphMaker has it."""
        return self._mark

    def make(self, state: JsonView, tables: Mapping[str, TableConfig]) -> DenseGraph:
        """As GraphMaker has it."""
        return self._graph


class ExportableModule(Protocol):
    """A module that knows its look-ups and the sizes of a batch, as `hps.models.ClickModel`."""

    def export_dense(self) -> DenseGraph:
        """Its dense part."""

    def graph_mark(self) -> str:
        """Equal for modules that have one graph; cheap."""


class ModuleGraph:
    """The graph of a module of hps, exported once it is asked for.

    Args:
        module: that the checkpoints are of.
    """

    def __init__(self, module: ExportableModule) -> None:
        self._module = module

    @classmethod
    def of(cls, model: Any) -> Self:
        """Of what a user gives as a model.

        Raises:
            ConfigError: it is no module that can be exported without a batch.
        """
        if not (hasattr(model, "export_dense") and hasattr(model, "graph_mark")):
            raise ConfigError(
                "publish: onnx=True exports a module of hps.models (model=module); of a "
                f"{type(model).__name__} give the graph, onnx=hps.export_dense(module, batch), and "
                "of a checkpoint of `hps train` run 'hps publish STORE URL --onnx'"
            )
        return cls(model)

    def mark(self, state: JsonView) -> str:
        """As GraphMaker has it."""
        return self._module.graph_mark()

    def make(self, state: JsonView, tables: Mapping[str, TableConfig]) -> DenseGraph:
        """As GraphMaker has it."""
        return self._module.export_dense()
