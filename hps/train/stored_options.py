"""The options of a run as plain values, which each of its checkpoints keeps beside the model.

Above it: `Trainer.state`, model_list.py. Below it: options.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from os import PathLike, fspath

from hps.common.json_text import Json
from hps.common.url_text import hidden_url
from hps.train.options import TrainOptions

_SECRETS = ("token",)  # of a client: who reads a store is not thereby let onto the servers


def plain_options(options: TrainOptions) -> Json:
    """Every option by name, as numbers, texts, lists and dicts: for JSON, and for
    torch.load(weights_only=True). Of a token only that there was one; URLs without their secrets;
    DATA as it was asked for, whatever of it is held out or was in a folder that is followed.

    >>> from pathlib import Path
    >>> options = TrainOptions(data=[Path("log.tsv")], store=Path("ctr"), hidden=(8, 4))
    >>> plain = plain_options(options)
    >>> plain["data"], plain["store"], plain["hidden"], plain["lr"]
    (['log.tsv'], 'ctr', [8, 4], None)
    """
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    if values.pop("followed") is not None:
        values["data"] = ()
    held_out = values.pop("held_out")
    if held_out is not None:
        values["data"] = held_out.asked
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # numpy's, too
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str | PathLike):
        return hidden_url(str(fspath(value)))
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: "..." if field.name in _SECRETS and found is not None else _plain(found)
            for field in fields(value)
            for found in [getattr(value, field.name)]
        }
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(one) for one in value]
    return str(value)
