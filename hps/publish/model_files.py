"""The dense part of a published version: a description in JSON, and the weights, as bytes.

Above it: publisher.py; the follower, which makes a module of it. Below it: torch, where there is a
model. Nothing of it is ever unpickled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hps.common.json_text import Json, JsonView, parse_json
from hps.errors import ConfigError, CorruptionError

if TYPE_CHECKING:
    import torch

_ALIGNED = 64  # bytes from one tensor's begin to the next are a multiple of it
# What a description keeps of what `hps train` stores: enough to make the module again.
_KEPT = ("format_version", "recipe")
_WEIGHTS = "model"


@dataclass(frozen=True)
class EncodedModel:
    """A dense part as bytes.

    Args:
        about: the description.
        weights: all tensors, one after the other.
        tensors: as `weights_layout` has them.
    """

    about: bytes
    weights: bytes
    tensors: list[Json]


def weights_layout(weights: "Mapping[str, torch.Tensor]") -> list[Json]:
    """Where each tensor of a `state_dict` lies in the file of weights.

    Returns:
        Of each `name`, `dtype`, `shape`, `offset` and `bytes`, in their order.
    """
    end, found = 0, []
    for name, tensor in weights.items():
        end += -end % _ALIGNED
        num_bytes = tensor.numel() * tensor.element_size()
        found.append(
            {
                "name": name,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "offset": end,
                "bytes": num_bytes,
            }
        )
        end += num_bytes
    return found


def encode_model_files(state: JsonView) -> EncodedModel:
    """Of what a checkpoint holds of a model.

    Args:
        state: as `hps train` stores it, or a mapping with the weights under "model".

    Raises:
        ConfigError: there are no weights under "model".
    """
    import torch

    weights = state.get(_WEIGHTS)
    if not isinstance(weights, Mapping) or not all(
        isinstance(one, torch.Tensor) for one in weights.values()
    ):
        raise ConfigError(
            "the checkpoint's model has no weights under 'model', a mapping of names to tensors; "
            "take checkpoints with model={'model': module.state_dict()}, or publish rows alone"
        )
    tensors, data = weights_layout(weights), bytearray()
    for place, tensor in zip(tensors, weights.values(), strict=True):
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        data += b"\0" * (place["offset"] - len(data)) + raw
    about = {name: state[name] for name in _KEPT if name in state}
    text = json.dumps(about, sort_keys=True, allow_nan=False)
    return EncodedModel(text.encode(), bytes(data), tensors)


def decode_model_files(
    about: bytes, weights: bytes, tensors: Sequence[JsonView], where: str
) -> Json:
    """What `encode_model_files` was given, as far as it is kept: the weights are under "model".

    Raises:
        CorruptionError: they do not go together.
    """
    import torch

    state: Json = parse_json(about, where)
    found: dict[str, torch.Tensor] = {}
    for one in tensors:
        kind: Any = getattr(torch, str(one["dtype"]), None)
        begin, count = int(one["offset"]), int(one["bytes"])
        if not isinstance(kind, torch.dtype) or not 0 <= begin <= begin + count <= len(weights):
            raise CorruptionError(f"{where}: it has no tensor {one['name']!r}")
        # A bytearray is writable, as a parameter is; one of no bytes is no buffer to torch.
        raw = np.frombuffer(bytearray(weights[begin : begin + count]), np.uint8)
        try:
            found[one["name"]] = torch.from_numpy(raw).view(kind).reshape(one["shape"])
        except RuntimeError as error:
            raise CorruptionError(f"{where}: tensor {one['name']!r}: {error}") from error
    return {**state, _WEIGHTS: found}
