"""The dense part of a module as ONNX: torch.export, then torch.onnx, with weights as external data.

Above it: dense_export.py. Below it: torch, and the packages of the extra "onnx", which are imported
when a graph is made.

No operation on weights alone is folded: the graph computes with them as they come, so that another
version's weights are all that it takes to be that version's graph.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hps.common.json_text import JsonView
from hps.errors import ConfigError, HpsError
from hps.nn.graph_run import INSTALL
from hps.nn.graph_seams import BATCH, GraphInput
from hps.publish.graph import LOGIT, PROBABILITY, WEIGHTS_FILE

OPSET = 18
_EXAMPLES = 3  # of the trace; not 0 or 1, which torch.export takes as what they are
_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")  # of what is no matter to a user
_FILE_LINE = re.compile(r'File "([^"<]+)", line (\d+)')
# Of torch and of hps, where nobody looks for what to change.
_FOLDERS = tuple(str(folder) for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_MODULE = "module."  # before the names of weights, as `DensePart` holds the module


def example_of(inputs: Sequence[GraphInput], examples: int, seed: int = 0) -> list[torch.Tensor]:
    """Values of every input, for so many examples; what is of other lengths has one more each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = {BATCH: examples}
    found = []
    for one in inputs:
        for size in one.shape:
            if isinstance(size, str) and size not in lengths:
                lengths[size] = examples + len(lengths)
        shape = [lengths[size] if isinstance(size, str) else size for size in one.shape]
        if one.dtype == "int64":  # of the example that a row is of
            found.append(torch.arange(shape[0]) % examples)
        else:
            found.append(torch.randn(shape, generator=generator))
    return found


def to_onnx(part: nn.Module, inputs: Sequence[GraphInput], weights: Sequence[JsonView]) -> bytes:
    """A file of ONNX without weights.

    Args:
        part: called with a tensor an input; gives logits and probabilities. Its weights are those
            of its `module`.
        inputs: of the graph.
        weights: where each of them lies in the file of weights, by its name in `module`.

    Raises:
        ConfigError: a package is missing, or the module cannot be exported.
    """
    try:
        import onnx
        import onnx_ir
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    except ImportError as error:
        raise ConfigError(f"an ONNX graph needs the package {error.name!r}; {INSTALL}") from error
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _traced(part, inputs),
            input_names=[one.name for one in inputs],
            output_names=[LOGIT, PROBABILITY],
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        assert program is not None, "of torch.onnx.export without a file"
        model = program.model
        held = _hold_weights(model, {str(one["name"]): one for one in weights})
        program.optimize()
    for value in held:
        model.graph.inputs.remove(value)
        if value.uses():
            value.const_value = _external(onnx_ir, value, _own_name(value.name), weights)
            model.graph.register_initializer(value)
    _name_lengths(onnx_ir, model, inputs)
    _forget_sources(model)
    model.graph.name, model.producer_name = "dense", "hps"
    file = onnx_ir.to_proto(model)
    onnx.checker.check_model(_without_weights(onnx, file))
    data: bytes = file.SerializeToString(deterministic=True)
    return data


def _traced(part: nn.Module, inputs: Sequence[GraphInput]) -> torch.export.ExportedProgram:
    """By torch.export: first as torch.compile reads it, which follows `len(batch)`, then as Python
    runs it, which takes code that torch.compile does not know."""
    lengths = {
        size: torch.export.Dim(size if size == BATCH else f"length_{number}", min=1)
        for number, size in enumerate(
            dict.fromkeys(size for one in inputs for size in one.shape if isinstance(size, str))
        )
    }
    shapes = [
        {place: lengths[size] for place, size in enumerate(one.shape) if isinstance(size, str)}
        for one in inputs
    ]
    given = tuple(example_of(inputs, _EXAMPLES))
    told = []
    for strict in (True, False):
        try:
            return torch.export.export(
                part, given, dynamic_shapes={"given": tuple(shapes)}, strict=strict
            )
        except HpsError:
            raise
        except Exception as error:  # whatever torch makes of a user's code
            refusal = _cause_of(error)
            if refusal is not None:
                raise refusal from None
            told.append(f"{_first_line(error)}{_line_of(str(error))}")
            if type(error).__name__ == "UserError":  # of what no graph can have, however it is read
                break
    raise ConfigError(
        f"the module cannot be exported as a graph: {told[0]}. A graph does the same to every "
        "batch: have no `if` or loop depend on the values of tensors or on their number (torch."
        "where and sums over a dimension serve instead), and take nothing from tensors by item() "
        "or tolist(); or publish without ONNX"
    )


def _cause_of(error: BaseException) -> HpsError | None:
    """What hps itself has raised in the module's code."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, HpsError):
            return found
        found = found.__cause__ or found.__context__
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What torch says to who develops it comes after.
    return f"{type(error).__name__}: {lines[0] if lines else ''}".split("! For more")[0][:400]


def _line_of(text: str) -> str:
    """Where it was in a user's code, in words, if the text of an error tells."""
    own = [place for place in _FILE_LINE.findall(text) if not place[0].startswith(_FOLDERS)]
    return "" if not own else f", at line {own[-1][1]} of {own[-1][0]}"


def _own_name(name: str) -> str:
    return name.removeprefix(_MODULE)


def _hold_weights(model: Any, weights: Mapping[str, JsonView]) -> list[Any]:
    """Makes weights inputs for as long as the graph is simplified; those of no element stay."""
    found = []
    for name, value in list(model.graph.initializers.items()):
        place = weights.get(_own_name(name))
        if place is not None and place["bytes"]:
            del model.graph.initializers[name]
            value.const_value = None
            model.graph.inputs.append(value)
            found.append(value)
    return found


def _external(onnx_ir: Any, value: Any, name: str, weights: Sequence[JsonView]) -> Any:
    """The tensor of a weight that lies in the file of weights."""
    place = next(one for one in weights if one["name"] == name)
    value.name = name
    tensor = onnx_ir.ExternalTensor(
        WEIGHTS_FILE,
        place["offset"],
        place["bytes"],
        value.dtype,
        shape=onnx_ir.Shape(place["shape"]),
        name=name,
    )
    assert tensor.nbytes == place["bytes"], f"{name} has another type in the graph"
    return tensor


def _name_lengths(onnx_ir: Any, model: Any, inputs: Sequence[GraphInput]) -> None:
    """Lengths that are called s0, u1 and so on, by their own names; unused inputs go."""
    named = {}
    for value, one in zip(list(model.graph.inputs), inputs, strict=True):
        for own, size in zip(value.shape, one.shape, strict=True):
            if isinstance(size, str):
                named[str(own)] = size
        value.shape = onnx_ir.Shape(one.shape)
        if not value.uses():
            model.graph.inputs.remove(value)
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None:
                value.shape = onnx_ir.Shape(
                    [own if isinstance(own, int) else named.get(str(own)) for own in value.shape]
                )


def _forget_sources(model: Any) -> None:
    """Leaves out what the exporter notes beside each operator: lines of code, with their paths."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()


def _without_weights(onnx: Any, file: Any) -> Any:
    """The same with weights as inputs: a checker looks for the file of external data."""
    copy = onnx.ModelProto()
    copy.CopyFrom(file)
    external = onnx.TensorProto.EXTERNAL
    for tensor in [one for one in copy.graph.initializer if one.data_location == external]:
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        copy.graph.input.append(value)
        copy.graph.initializer.remove(tensor)
    return copy


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps to itself what torch and its exporter say beside the error that they raise."""
    handlers = logging.getLogger("torch").handlers  # to standard error, which it does by itself
    found: list[Any] = [*(logging.getLogger(name) for name in _CHATTY), *handlers]
    levels = [one.level for one in found]
    for one in found:
        one.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(found, levels, strict=True):
            one.setLevel(level)
