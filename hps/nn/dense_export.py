"""export_dense(): the dense part of a user's module as an ONNX graph.

Above it: users, `hps.models.ClickModel`. Below it: graph_seams.py (where rows are looked up),
onnx_graph.py (torch.export and torch.onnx). The module is copied, its look-ups are replaced by
inputs of the graph, and what remains is exported.
"""

import hashlib
import inspect
import math
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from hps.errors import ConfigError
from hps.nn.embedding import SparseEmbedding
from hps.nn.embeddings import SparseEmbeddings
from hps.nn.graph_run import GraphSession
from hps.nn.graph_seams import (
    BATCH,
    GivenBatch,
    GraphInput,
    Names,
    NoFeatures,
    Seam,
    seams_of,
    server_of,
)
from hps.nn.onnx_graph import OPSET, example_of, to_onnx
from hps.publish.graph import DENSE, DenseGraph
from hps.publish.model_files import encode_model_files, weights_layout
from hps.types import Batch

# What a graph's logits may differ from the module's, of 1 or of the largest: far beyond rounding,
# and far below what an operator does that was exported as another one.
_MOST_OFF = 1e-3


def export_dense(module: nn.Module, batch: Batch) -> DenseGraph:
    """The dense part of a module as an ONNX graph, for `server.publish(url, model=module, onnx=)`.

    The module is called with an `hps.Batch` and returns logits [B]; it looks rows up by
    `hps.SparseEmbeddings`, `hps.SparseEmbedding` (pooled) or the `embed` methods of
    `hps.models.ClickModel`, called with that batch. The graph is given what those return, and the
    dense columns; it is that of the module in eval mode, for any number of examples. The module's
    `negative_rate` counts, if it has one: see `hps.models.ClickModel.score`.

    Args:
        module: of any class; it is copied, and stays as it is.
        batch: two examples or more, as the module is called with them.

    Raises:
        ConfigError: the module cannot be exported, as where an `if` of it depends on a tensor's
            values; it looks no rows up, or at the keys of a batch itself; it gives no logits [B];
            a package of the extra "onnx" is missing.

    Cost: seconds. While torch exports, code of other threads of this process that asks whether it
    is being compiled is told so: train in no other thread meanwhile.

    >>> import hps, tempfile, torch
    >>> class Mine(torch.nn.Module):
    ...     def __init__(self, server):
    ...         super().__init__()
    ...         self.rows = hps.SparseEmbeddings(server, {"ad": "ads"})
    ...         self.top = torch.nn.Linear(5, 1)
    ...
    ...     def forward(self, batch):
    ...         return self.top(torch.cat([self.rows(batch), batch.dense], dim=1)).squeeze(1)
    >>> ads = hps.Ids(torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    >>> batch = hps.Batch({"ads": ads}, torch.zeros(2, 1), torch.ones(2))
    >>> config = hps.Config(path=tempfile.mkdtemp(), tables=[hps.TableConfig(name="ads", dim=4)])
    >>> with hps.ParameterServer(config) as server:
    ...     [one["name"] for one in hps.export_dense(Mine(server), batch).inputs]
    ['embeddings.rows', 'dense']
    """
    if not isinstance(batch, Batch):
        raise ConfigError(f"export_dense: batch is a {type(batch).__name__}; give an hps.Batch")
    if len(batch) < 2:
        raise ConfigError(f"export_dense: a batch of {len(batch)} examples; give one of 2 or more")
    called = _copy(module, {}).eval()
    with torch.no_grad():
        called(batch)  # which tells look-ups their features
    return export_sized(called, int(batch.dense.shape[1]), batch, None)


def export_sized(
    module: nn.Module, num_dense: int, batch: Batch | None, names: Names | None
) -> DenseGraph:
    """As `export_dense`, of a module that knows its look-ups.

    Args:
        num_dense: dense columns of a batch.
        batch: that it was called with; None: every look-up knows its features.
        names: of features.
    """
    seams = seams_of(module, server_of(module).tables, batch, names)
    inputs = [one for seam in seams for one in seam.inputs]
    if num_dense:
        inputs.append(GraphInput(DENSE, "float32", (BATCH, num_dense), {"holds": DENSE}))
    part = _DensePart(_given(module, seams), inputs).eval().requires_grad_(False)
    _check_logits(part, inputs, type(module).__name__)
    weights = module.state_dict()
    tensors = weights_layout(weights)
    data = to_onnx(part, inputs, tensors)
    session = GraphSession(data, encode_model_files({"model": weights}).weights)
    used = [one for one in inputs if one.name in session.inputs]
    for examples in (1, 4):
        _check_same(part, session, inputs, examples)
    features = {table: list(own) for seam in seams for table, own in seam.features.items()}
    return DenseGraph(data, tensors, features, [one.described() for one in used], OPSET)


def module_mark(module: nn.Module) -> str:
    """Equal for modules with equal graphs, so far as their code, layers, numbers, texts and
    tensors tell that are no weights."""
    told: list[object] = [repr(module)]
    weights = module.state_dict().keys()
    for path, own in module.named_modules():
        if isinstance(own, SparseEmbeddings | SparseEmbedding):
            continue
        told.append(_source_of(type(own)))
        plain = [*vars(own).items(), *own.named_buffers(recurse=False)]
        for name, value in sorted(plain, key=lambda one: one[0]):
            if isinstance(value, torch.Tensor) and f"{path}.{name}".strip(".") not in weights:
                told.append((path, name, value.tolist()))
            elif name != "training" and isinstance(value, bool | int | float | str | tuple | dict):
                told.append((path, name, _plain(value)))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _plain(value: Any) -> object:
    """Of a dict or tuple what is numbers and texts; torch keeps modules and hooks in such, too."""
    if isinstance(value, dict):
        return [(name, one) for name, one in value.items() if isinstance(one, int | float | str)]
    if isinstance(value, tuple):
        return [one for one in value if isinstance(one, int | float | str)]
    return value


def _source_of(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # of a class that was typed in
        return kind.__qualname__


class _DensePart(nn.Module):
    """A module without its look-ups: called with the graph's inputs, it gives logits and
    probabilities of examples as they come."""

    def __init__(self, module: nn.Module, inputs: list[GraphInput]) -> None:
        super().__init__()
        self.module = module
        self._names = [one.name for one in inputs]
        self._sized = next(place for place, one in enumerate(inputs) if one.shape[0] == BATCH)
        self._shift = math.log(getattr(module, "negative_rate", 1.0))

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits [B], probabilities [B])."""
        by_name = dict(zip(self._names, given, strict=True))
        nothing = given[self._sized].new_zeros(given[self._sized].shape[0], 0)
        batch = GivenBatch(
            features=NoFeatures(),
            dense=by_name.get(DENSE, nothing),
            labels=nothing.sum(dim=1),
            global_size=1,
            global_weight=1.0,
            given=by_name,
        )
        logits = self.module(batch).float()
        if self._shift:
            logits = logits + self._shift
        return logits, torch.sigmoid(logits)


def _copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    server = server_of(module)
    try:
        return deepcopy(module, {id(server): server, **memo})
    except Exception as error:  # whatever a user's class holds
        raise ConfigError(
            f"export_dense: {type(module).__name__} cannot be copied, as copy.deepcopy does it: "
            f"{type(error).__name__}: {error}; keep what cannot be copied outside of the module"
        ) from error


def _given(module: nn.Module, seams: list[Seam]) -> nn.Module:
    """A copy on the host, in which look-ups are given."""
    given: dict[int, Any] = {}
    for seam in seams:
        given |= seam.given
    return _copy(module, given).cpu()


def _check_logits(part: _DensePart, inputs: list[GraphInput], name: str) -> None:
    with torch.no_grad():
        logits, _ = part(*example_of(inputs, 2))
    if tuple(logits.shape) != (2,):
        raise ConfigError(
            f"export_dense: {name} returned {list(logits.shape)} for 2 examples; it is to return "
            "logits [B]"
        )


def _check_same(
    part: _DensePart, session: GraphSession, inputs: list[GraphInput], examples: int
) -> None:
    """That the graph gives what the module gives."""
    given = example_of(inputs, examples, seed=examples)
    with torch.no_grad():
        expected, _ = part(*given)
    by_name = {one.name: value for one, value in zip(inputs, given, strict=True)}
    found = session.logits({name: by_name[name].numpy() for name in session.inputs})
    off = float((torch.from_numpy(found) - expected).abs().max())
    if not off <= _MOST_OFF * max(1.0, float(expected.abs().max())):
        raise ConfigError(
            f"export_dense: of {examples} examples the graph's logits are off by {off:.3g} from "
            "the module's: an operator of it was exported as another one, or it gives what a "
            "batch's other examples, its size or chance decide; leave that out in eval mode"
        )
