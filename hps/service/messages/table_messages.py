"""Tables as messages: hps.TableConfig to the proto's Table and back.

Above it: the server's handlers, the client. Below it: hps.config. What a message leaves out has
hps's default.
"""

from collections.abc import Mapping
from typing import TypeVar

from hps.common import initializers, optimizers
from hps.common.admission import Admission
from hps.common.expiry import Expiry
from hps.common.initializers import INITIALIZERS
from hps.common.json_text import Json, JsonView
from hps.common.optimizers import OPTIMIZERS
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.v1 import parameter_server_pb2 as pb
from hps.v1.parameter_server_pb2 import FeatureList, Initializer, Optimizer, Table

_Kind = TypeVar("_Kind", optimizers.Optimizer, initializers.Initializer)
_BETAS = ("beta1", "beta2")  # the message's names for the two numbers of Adam's `betas`
_MAX_FEATURES = 10_000


def to_message(table: TableConfig) -> Table:
    """The message of a table."""
    numbers = _numbers_of(table.optimizer.numbers())
    rate = numbers.pop("lr")
    message = Table(
        name=table.name,
        dim=table.dim,
        optimizer=Optimizer(kind=table.optimizer.kind, lr=rate, numbers=numbers),
        initializer=Initializer(
            kind=table.initializer.kind, numbers=_numbers_of(vars(table.initializer))
        ),
        shared_vocabulary=table.shared_vocabulary,
        share=table.share,
        state_floats=table.layout.state_floats,
        statistics=table.statistics,
        max_rows=table.max_rows or 0,
        max_bytes=int(table.max_bytes or 0),
    )
    if table.features is not None:
        message.features.CopyFrom(FeatureList(names=table.features))
    if table.expiry is not None:
        message.expiry.CopyFrom(pb.Expiry(**table.expiry.described()))
    if table.admission is not None:
        message.admission.CopyFrom(pb.Admission(**table.admission.described()))
    if table.is_narrow:
        message.dtype, message.rounding = table.dtype, table.rounding
    if table.negative_rate < 1:
        message.negative_rate = table.negative_rate
    return message


def has_rules(table: TableConfig) -> bool:
    """True if its message says what an older hps passes over."""
    return table.expiry is not None or table.admission is not None or table.is_narrow


def without_rules(message: Table) -> None:
    """Makes it the message of an hps that knows no rules."""
    for name in ("expiry", "admission", "max_rows", "max_bytes", "dtype", "rounding"):
        message.ClearField(name)
    without_rate(message)


def without_rate(message: Table) -> None:
    """Makes it the message of an hps whose tables count all occurrences alike."""
    message.ClearField("negative_rate")


def from_message(message: Table) -> TableConfig:
    """The table of a message.

    Raises:
        ConfigError: a field outside its limits, or a number that its owner does not have.
    """
    where = f"table {message.name[:80]!r}"
    if len(message.features.names) > _MAX_FEATURES:
        raise ConfigError(
            f"{where}: {len(message.features.names)} features; {_MAX_FEATURES} at most"
        )
    options: Json = {}
    if message.HasField("optimizer"):
        numbers: Json = dict(message.optimizer.numbers)
        if message.optimizer.lr:
            numbers["lr"] = message.optimizer.lr
        if not numbers.keys().isdisjoint(_BETAS) and message.optimizer.kind == "adam":
            default = OPTIMIZERS["adam"]().betas  # type: ignore[attr-defined]
            betas = [numbers.pop(name, value) for name, value in zip(_BETAS, default, strict=True)]
            numbers["betas"] = tuple(betas)
        options["optimizer"] = _make(OPTIMIZERS, message.optimizer.kind, numbers, where)
    if message.HasField("initializer"):
        numbers = dict(message.initializer.numbers)
        options["initializer"] = _make(INITIALIZERS, message.initializer.kind, numbers, where)
    if message.HasField("features"):
        options["features"] = list(message.features.names)
    for name in ("share", "max_rows", "max_bytes", "dtype", "rounding", "negative_rate"):
        if value := getattr(message, name):
            options[name] = value
    if message.HasField("expiry"):
        options["expiry"] = Expiry(**_given(message.expiry))
    if message.HasField("admission"):
        options["admission"] = Admission(**_given(message.admission))
    return TableConfig(
        name=message.name,
        dim=message.dim,
        shared_vocabulary=message.shared_vocabulary,
        statistics=message.statistics,
        **options,
    )


def _given(message: pb.Expiry | pb.Admission) -> Json:
    return {field.name: value for field, value in message.ListFields()}


def _make(kinds: Mapping[str, type[_Kind]], kind: str, numbers: Json, where: str) -> _Kind:
    if kind not in kinds:
        raise ConfigError(f"{where}: kind {kind[:80]!r} must be one of {sorted(kinds)}")
    try:
        return kinds[kind](**numbers)
    except TypeError as error:
        raise ConfigError(f"{where}: {kind} has no numbers {sorted(numbers)}") from error


def _numbers_of(named: JsonView) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in named.items():
        if isinstance(value, tuple):
            numbers.update(zip(_BETAS, map(float, value), strict=True))
        else:
            numbers[name] = float(value)
    return numbers
