"""The text of `hps serve --table`: a table with all its numbers and rules in one flag.

Above it: serve.py. Below it: service/messages/table_messages.py, hps.config. Rules have the names
of the flags of `hps train`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from hps.common.admission import Admission
from hps.common.expiry import Expiry
from hps.common.json_text import Json
from hps.config import MAX_DIM, TableConfig
from hps.errors import ConfigError

_INITIALIZERS = {"constant": ("value",), "uniform": ("low", "high"), "normal": ("std", "mean")}
_FLAGS = {"true": True, "false": False}
_EXPIRY = {
    "expire-unseen": "unseen",
    "expire-below": "min_score",
    "expire-decay": "decay",
    "expire-nonclick": "nonclick",
    "expire-click": "click",
}
_ADMISSION = {
    "admit-count": "count",
    "admit-probability": "probability",
    "admit-by": "by",
    "admit-score": "min_score",
}
_ROWS = {
    "max-rows": "max_rows",
    "max-bytes": "max_bytes",
    "row-dtype": "dtype",
    "rounding": "rounding",
    "negative-rate": "negative_rate",
}
_WORDS = ("admit-by", "max-bytes", "row-dtype", "rounding")  # whose values are no numbers
_OWN_FIELDS = {"name", "dim", "optimizer", "init", "features", "share", "statistics"}
_OWN_FIELDS |= _EXPIRY.keys() | _ADMISSION.keys() | _ROWS.keys()


def parse_table(text: str) -> TableConfig:
    """The TableConfig of `--table name=ads,dim=16,optimizer=adagrad,lr=0.05,init=normal:0.01`.

    Raises:
        ConfigError: a field that is missing, unknown or outside its limits.

    >>> parse_table("name=ads,dim=16,optimizer=adam,lr=0.01,beta1=0.8,init=uniform:-0.1:0.1").dim
    16
    >>> parse_table("name=ads,dim=16,expire-unseen=30,admit-count=10").admission
    Admission(count=10, probability=None, by=None, min_score=None)
    """
    from hps.service.messages.table_messages import from_message
    from hps.v1.parameter_server_pb2 import FeatureList, Table

    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name in fields:
            raise ConfigError(f"--table {text!r}: {part!r} is not NAME=VALUE, or is given twice")
        fields[name] = value
    for name in ("name", "dim"):
        if name not in fields:
            raise ConfigError(f"--table {text!r}: {name}= is missing")
    message = Table(name=fields["name"], share=_number(text, fields.get("share", "1")))
    if not re.fullmatch("[0-9]{1,6}", fields["dim"]):
        raise ConfigError(f"--table {text!r}: dim={fields['dim']!r} must be from 1 to {MAX_DIM}")
    message.dim = int(fields["dim"])
    message.optimizer.kind = fields.get("optimizer", "adagrad")
    for name, value in fields.items():
        if name not in _OWN_FIELDS:
            message.optimizer.numbers[name] = _number(text, value)
    if "init" in fields:
        message.initializer.kind, *numbers = fields["init"].split(":")
        names = _INITIALIZERS.get(message.initializer.kind, ())
        if len(numbers) > len(names):
            raise ConfigError(f"--table {text!r}: init={fields['init']!r} has too many numbers")
        for name, value in zip(names, numbers, strict=False):
            message.initializer.numbers[name] = _number(text, value)
    if "statistics" in fields:
        if fields["statistics"] not in _FLAGS:
            raise ConfigError(f"--table {text!r}: statistics= must be one of {sorted(_FLAGS)}")
        message.statistics = _FLAGS[fields["statistics"]]
    if "features" in fields:
        message.features.CopyFrom(FeatureList(names=fields["features"].split("+")))
    table = from_message(message)
    rules: Json = _given(text, fields, _ROWS)
    if expiry := _given(text, fields, _EXPIRY):
        rules["expiry"] = Expiry(**expiry)
    if admission := _given(text, fields, _ADMISSION):
        rules["admission"] = Admission(**admission)
    return replace(table, **rules)


def _given(text: str, fields: Mapping[str, str], names: Mapping[str, str]) -> Json:
    """The fields of these names that are given, under the names that hps has."""
    return {
        own: fields[name] if name in _WORDS else _whole_or_number(text, fields[name])
        for name, own in names.items()
        if name in fields
    }


def _whole_or_number(text: str, value: str) -> int | float:
    return int(value) if re.fullmatch("[0-9]{1,18}", value) else _number(text, value)


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ConfigError(f"--table {text!r}: {value!r} is not a number") from error
