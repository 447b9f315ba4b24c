"""The DLRM of TorchRec with the settings of hps: the peer of `dlrm`.

Above it: contenders.py. Below it: the packages torchrec and fbgemm-gpu-cpu.
Sizes and layers are those of hps: the bottom part has one hidden layer as wide as the last of
`hidden`, ReLU behind each of its layers. What differs, as the peer's own code has it: the output
bias begins at a draw, not at the base rate; and the class does not do without dense columns. A log
that has none is given one that is 0, of which the bottom part's biases make a vector that is
learned and equal in all examples.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.quality.logs import Array, Log, Vocabulary, in_epochs, labels_of, longest_bag
from benchmarks.quality.settings import Settings
from benchmarks.quality.two_optimizers import TwoOptimizers

# Dense columns [B, C]; codes of all features, one feature after the other; how many of each
# feature's each example has, [F * B].
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def peer_classes() -> tuple[Any, Any, Any, Any]:
    """DLRM, EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor.

    Raises:
        ImportError, OSError: it is not installed, or not with the torch that is here.
    """
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return DLRM, EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor


class Coded:
    """A part of a log as codes of what training has seen.

    Args:
        log: whose columns are meant.
        parts: of the log; the vocabularies are those of "train".
        part: its name.
    """

    def __init__(self, log: Log, parts: Mapping[str, pa.Table], part: str) -> None:
        train, table = parts["train"], parts[part]
        self.sizes: dict[str, int] = {}
        self._codes: list[Array] = []  # [B, longest], of a feature [B, 1]
        self._is_there: list[Array] = []  # the same, of bool
        for name in log.columns("features"):
            known = Vocabulary.of([train[name]])
            self.sizes[name] = len(known)
            codes = known.codes_of(table[name]).reshape(-1, 1)
            self._codes.append(codes)
            self._is_there.append(np.ones(codes.shape, bool))
        for name in log.columns("bags"):
            known = Vocabulary.of([train[name]])
            self.sizes[name] = len(known)
            codes = known.bags_of(table[name], longest_bag(parts, name))
            self._codes.append(codes)
            self._is_there.append(codes > 0)
        columns = [table[name].to_numpy() for name in log.columns("dense")]
        columns = columns or [np.zeros(len(table), np.float32)]
        self._dense = np.stack(columns, axis=1).astype(np.float32)

    @property
    def num_dense(self) -> int:
        """Dense columns, at least the one that is 0."""
        return int(self._dense.shape[1])

    def batches(self, size: int) -> Iterator[Inputs]:
        """In order, the last one shorter."""
        for begin in range(0, len(self._dense), size):
            rows = slice(begin, begin + size)
            pairs = zip(self._codes, self._is_there, strict=True)
            codes = np.concatenate([codes[rows][there[rows]] for codes, there in pairs])
            lengths = np.concatenate([there[rows].sum(axis=1) for there in self._is_there])
            dense = torch.from_numpy(self._dense[rows])
            yield dense, torch.from_numpy(codes), torch.from_numpy(lengths)


def model_of(sizes: Mapping[str, int], num_dense: int, settings: Settings) -> torch.nn.Module:
    """The peer's DLRM over tables of so many rows, drawn from torch's generator."""
    dlrm, collection, table, _ = peer_classes()
    assert settings.dim is not None and settings.init_std is not None, settings
    hidden, std = tuple(settings.hidden or ()), settings.init_std
    tables = [
        table(
            name=name,
            embedding_dim=settings.dim,
            num_embeddings=rows,
            feature_names=[name],
            init_fn=lambda weights: torch.nn.init.normal_(weights, std=std),
        )
        for name, rows in sizes.items()
    ]
    made: torch.nn.Module = dlrm(
        collection(tables=tables, device=torch.device("cpu")),
        dense_in_features=num_dense,
        dense_arch_layer_sizes=[*hidden[-1:], settings.dim],
        over_arch_layer_sizes=[*hidden, 1],
    )
    return made


def _logits(model: torch.nn.Module, names: list[str], inputs: Inputs) -> torch.Tensor:
    _, _, _, jagged = peer_classes()
    dense, codes, lengths = inputs
    features = jagged.from_lengths_sync(names, codes, lengths)
    logits: torch.Tensor = model(dense_features=dense, sparse_features=features)
    return logits.squeeze(1)


def predictions(
    log: Log, parts: Mapping[str, pa.Table], settings: Settings, seed: int
) -> dict[str, Array]:
    """Of the valid and the test part."""
    assert settings.epochs is not None and settings.batch_size is not None, settings
    assert settings.model == "dlrm" and not settings.dropout, settings
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    ordered = {**parts, "train": in_epochs(parts["train"], settings.epochs, seed)}
    train = Coded(log, ordered, "train")
    model = model_of(train.sizes, train.num_dense, settings)
    names = list(train.sizes)
    optimizer = TwoOptimizers(model, "embedding_bags", settings)
    labels = torch.from_numpy(labels_of(ordered["train"])).split(settings.batch_size)
    for inputs, own in zip(train.batches(settings.batch_size), labels, strict=True):
        optimizer.zero_grad()
        logits = _logits(model, names, inputs)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, own).backward()
        optimizer.step()
    with torch.no_grad():
        return {
            part: torch.cat(
                [
                    torch.sigmoid(_logits(model, names, inputs))
                    for inputs in Coded(log, ordered, part).batches(8192)
                ]
            ).numpy()
            for part in ("valid", "test")
        }
