"""The models of DeepCTR-Torch with the settings of hps: the peer.

Above it: contenders.py. Below it: the package deepctr-torch.
What differs from hps, as the peer's own code has it: its linear term is there in DCN and AutoInt,
too; dense columns take part in no product of pairs and in no attention; the deep part's weights
begin at a normal of `init_std` (those of DIN of 0.0001); the output bias begins at 0, not at the
base rate; the first order begins at 0.0001. Its loss is a sum, which neither Adagrad nor Adam sees.
Its penalties are off, as hps has none.
AutoInt's heads are dim / heads wide there, for which it has no argument; here its layers get
weights of hps's widths, drawn as its own are.
"""

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.quality.logs import Array, Log, Vocabulary, in_epochs, labels_of, longest_bag
from benchmarks.quality.settings import SEQUENCE_KINDS, Settings
from benchmarks.quality.two_optimizers import TwoOptimizers

CROSSES, LAYERS, HEADS = 3, 3, 2  # as hps has them
HEAD_WIDTHS = 2  # of a head of AutoInt, in dims, as hps has it
ATTENTION = (36,)


def peer_modules() -> tuple[ModuleType, ModuleType]:
    """Its modules of inputs and of models.

    When it is imported it asks the network for newer versions, in a thread; not here.

    Raises:
        ImportError: it is not installed.
    """
    quiet = ModuleType("deepctr_torch.utils")
    quiet.check_version = lambda version: None  # type: ignore[attr-defined]
    sys.modules.setdefault("deepctr_torch.utils", quiet)
    import deepctr_torch.inputs
    import deepctr_torch.models

    return deepctr_torch.inputs, deepctr_torch.models


def _columns(
    log: Log, parts: Mapping[str, pa.Table], dim: int
) -> tuple[list[Any], dict[str, dict[str, Array]]]:
    """The peer's columns, and of each part the arrays by name."""
    inputs, _ = peer_modules()
    columns: list[Any] = []
    arrays: dict[str, dict[str, Array]] = {part: {} for part in parts}
    for name in log.columns("features"):
        known = Vocabulary.of([parts["train"][name]])
        columns.append(inputs.SparseFeat(name, len(known), dim))
        for part, table in parts.items():
            arrays[part][name] = known.codes_of(table[name]).astype(np.float32)
    for name in log.columns("bags"):
        known, longest = Vocabulary.of([parts["train"][name]]), longest_bag(parts, name)
        sparse = inputs.SparseFeat(name, len(known), dim)
        columns.append(inputs.VarLenSparseFeat(sparse, longest, combiner="sum"))
        for part, table in parts.items():
            arrays[part][name] = known.bags_of(table[name], longest).astype(np.float32)
    for name in log.columns("dense"):
        columns.append(inputs.DenseFeat(name, 1))
        for part, table in parts.items():
            arrays[part][name] = table[name].to_numpy()
    return columns, arrays


def _add_history(
    log: Log, parts: Mapping[str, pa.Table], columns: list[Any], arrays: dict[str, dict[str, Array]]
) -> None:
    """The history, in the rows of its target; what training has not seen is left out of it."""
    inputs, _ = peer_modules()
    assert log.history is not None and log.target is not None
    name, target = f"hist_{log.target}", log.target
    known = Vocabulary.of([parts["train"][target], parts["train"][log.history]])
    longest = longest_bag(parts, log.history)
    place = next(place for place, column in enumerate(columns) if column.name == target)
    dim = columns[place].embedding_dim
    columns[place] = inputs.SparseFeat(target, len(known), dim)
    own = inputs.SparseFeat(name, len(known), dim, embedding_name=target)
    columns.append(inputs.VarLenSparseFeat(own, longest, length_name="hist_length"))
    for part, table in parts.items():
        bags = known.bags_of(table[log.history], longest)
        arrays[part][target] = known.codes_of(table[target]).astype(np.float32)
        arrays[part][name] = bags.astype(np.float32)
        arrays[part]["hist_length"] = (bags > 0).sum(axis=1).astype(np.float32)


def _model(log: Log, columns: list[Any], settings: Settings, seed: int) -> Any:
    _, models = peer_modules()
    kind, hidden = settings.model, tuple(settings.hidden or ())
    given: dict[str, Any] = {"init_std": settings.init_std, "seed": seed}
    given |= {"dnn_dropout": settings.dropout, "l2_reg_embedding": 0.0}
    if kind == "din":
        attention = {"att_hidden_size": ATTENTION, "att_activation": "prelu"}
        return models.DIN(columns, [log.target], dnn_hidden_units=hidden, **attention, **given)
    if kind == "autoint":
        given |= {"att_layer_num": LAYERS, "att_head_num": HEADS}
        made = models.AutoInt(columns, columns, dnn_hidden_units=hidden, **given)
        return _with_wide_heads(made, hidden)
    given["l2_reg_linear"] = 0.0
    if kind in ("lr", "fm"):
        return models.DeepFM(columns, columns, use_fm=kind == "fm", dnn_hidden_units=(), **given)
    if kind == "dcn_v2":
        given |= {"cross_num": CROSSES, "cross_parameterization": "matrix", "l2_reg_cross": 0.0}
    made = {"deepfm": models.DeepFM, "wide_deep": models.WDL, "dcn_v2": models.DCN}[kind]
    return made(columns, columns, dnn_hidden_units=hidden, **given)


def _with_wide_heads(model: Any, hidden: tuple[int, ...]) -> Any:
    """AutoInt with heads of `HEAD_WIDTHS` dims; what its layers compute is the peer's code."""
    dim, fields = model.embedding_size, len(model.embedding_dict)
    head_width = HEAD_WIDTHS * dim
    incoming, width = dim, HEADS * head_width
    for layer in model.int_layers:
        layer.att_embedding_size = head_width
        for name in ("W_Query", "W_key", "W_Value", "W_Res"):
            weights = torch.nn.Parameter(torch.empty(incoming, width))
            setattr(layer, name, torch.nn.init.normal_(weights, std=0.05))
        incoming = width
    inputs = fields * width + (hidden[-1] if hidden else 0)
    model.dnn_linear = torch.nn.Linear(inputs, 1, bias=False)
    return model


def predictions(
    log: Log, parts: Mapping[str, pa.Table], settings: Settings, seed: int
) -> dict[str, Array]:
    """Of the valid and the test part."""
    assert settings.epochs is not None and settings.dim is not None, settings
    torch.set_num_threads(1)
    ordered = {**parts, "train": in_epochs(parts["train"], settings.epochs, seed)}
    columns, arrays = _columns(log, ordered, settings.dim)
    if settings.model in SEQUENCE_KINDS:
        _add_history(log, ordered, columns, arrays)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        model = _model(log, columns, settings, seed)
        model.compile(TwoOptimizers(model, "embedding_dict", settings), "binary_crossentropy")
        model.fit(
            arrays["train"],
            labels_of(ordered["train"]),
            batch_size=settings.batch_size,
            epochs=1,
            verbose=0,
            shuffle=False,
        )
        return {part: model.predict(arrays[part], 8192).reshape(-1) for part in ("valid", "test")}
