"""The dense side of a checkpoint: model, reader position, learning rates and tables, as blobs.

Above it: parameter_server/checkpoints.py. Below it: the store keeps each blob with its digest, in
the same checkpoint as the rows. The model is written by torch.save and is read with
weights_only=True, so that a checkpoint from a stranger can run no code; torch is needed only where
a model is given.
"""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hps import _C
from hps.checkpoint.names import find_listed
from hps.common.admission import Admission
from hps.common.expiry import Expiry
from hps.common.initializers import INITIALIZERS, Initializer
from hps.common.json_text import Json, JsonView, check_depth, parse_json
from hps.common.optimizers import OPTIMIZERS
from hps.config import TableConfig
from hps.errors import ConfigError, CorruptionError
from hps.table.schema import TableSchema
from hps.table.waiting import is_records

MODEL, READER, RATES, TABLES = "model.pt", "reader.json", "rates.json", "tables.json"
PERIOD = "period.json"
LINEAGE = "lineage"  # of the rows: another text after each return to an older checkpoint
LAST = "last"
ModelState = Mapping[str, Any]  # what torch.load(weights_only=True) reads, by name
Dense = tuple[dict[str, Any] | None, Json | None]  # (model, reader), each None if not given


def encode_model(model: ModelState) -> bytes:
    """torch.save of a mapping, after making sure that it can be read back.

    Raises:
        ConfigError: not a mapping, or it holds what torch.load(weights_only=True) refuses.
    """
    if not isinstance(model, Mapping):
        raise ConfigError(
            f"model is a {type(model).__name__}; pass a mapping such as {{'model': "
            "model.state_dict()}"
        )
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(dict(model), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise ConfigError(
            f"model cannot be read back with torch.load(weights_only=True): {error}; give tensors, "
            f"numbers, strings, lists and dicts only"
        ) from error
    return buffer.getvalue()


def decode_model(extras: Mapping[str, bytes]) -> dict[str, Any] | None:
    """The mapping that was given to checkpoint(model=), or None; tensors on the CPU."""
    if MODEL not in extras:
        return None
    import torch

    try:
        buffer = io.BytesIO(extras[MODEL])
        model: dict[str, Any] = torch.load(buffer, map_location="cpu", weights_only=True)
        return model
    except Exception as error:
        raise CorruptionError(f"the checkpoint's {MODEL} cannot be read: {error}") from error


def encode_json(value: object, what: str) -> bytes:
    """JSON bytes.

    Raises:
        ConfigError: `value` has parts that JSON cannot carry, or is nested too deeply.
    """
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{what} cannot be written as JSON: {error}; use numbers, strings, lists and dicts"
        ) from error
    check_depth(text, what)  # what is written can be read
    return text.encode()


def decode_json(extras: Mapping[str, bytes], name: str) -> Any:
    """What encode_json wrote under `name`, or None."""
    if name not in extras:
        return None
    return parse_json(extras[name], f"the checkpoint's {name}")


def encode_tables(
    tables: Mapping[str, TableConfig], rates: Mapping[str, float], others: "OtherTables"
) -> dict[str, bytes]:
    """The blobs of a checkpoint that describe its tables; tables_from_store reads them.

    Args:
        tables: of the config.
        rates: learning rate of each of them.
        others: stored tables that the config does not name, described as before.
    """
    described = [table_to_json(table) for table in tables.values()] + others.described
    return {
        TABLES: encode_json(described, "tables"),
        RATES: encode_json({**others.rates, **rates}, "learning_rates"),
    }


def encode_period(
    period: int,
    rules: Mapping[str, Expiry],
    unsettled: Collection[str] = (),
    num_updates: Mapping[str, int] | None = None,
    early: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, bytes]:
    """The blob of a checkpoint that holds its period, by which rules rows die in it, by table, the
    tables whose rows have those rules in part alone, the updates of tables that draw which keys
    they admit, and what bounds did as the period began: (lead, rows that died early) by table; none
    of period 0 without the others, at which stores begin.

    >>> encode_period(0, {}), decode_period(encode_period(7, {}))
    ({}, 7)
    """
    if not period and not rules and not unsettled and not num_updates:
        return {}
    value: Json = {"period": period}
    if rules:
        value["rules"] = {name: expiry.described() for name, expiry in rules.items()}
    if unsettled:
        value["unsettled"] = sorted(unsettled)
    if num_updates:
        value["updates"] = dict(num_updates)
    if early:
        value["early"] = {name: list(deaths) for name, deaths in early.items()}
    return {PERIOD: encode_json(value, "period")}


def decode_period(extras: Mapping[str, bytes]) -> int:
    """The period that encode_period wrote.

    Raises:
        CorruptionError: it cannot be read.
    """
    found = decode_json(extras, PERIOD)
    period = 0 if found is None else found.get("period") if isinstance(found, dict) else None
    if type(period) is not int or not 0 <= period <= _C.MAX_PERIOD:
        raise CorruptionError(f"the checkpoint's {PERIOD} holds no period: {found!r}")
    return period


def decode_rules(extras: Mapping[str, bytes]) -> dict[str, Expiry]:
    """The rules that encode_period wrote, by table.

    Raises:
        CorruptionError: they cannot be read.
    """
    decode_period(extras)
    found = decode_json(extras, PERIOD) or {}
    try:
        return {name: Expiry(**numbers) for name, numbers in found.get("rules", {}).items()}
    except (AttributeError, ConfigError, TypeError) as error:
        raise CorruptionError(f"the checkpoint's {PERIOD} holds no rules: {error}") from error


def decode_unsettled(extras: Mapping[str, bytes]) -> frozenset[str]:
    """The tables that encode_period was given as unsettled.

    Raises:
        CorruptionError: they cannot be read.
    """
    decode_period(extras)
    found = (decode_json(extras, PERIOD) or {}).get("unsettled", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise CorruptionError(f"the checkpoint's {PERIOD} holds no list of tables: {found!r}")
    return frozenset(found)


def decode_num_updates(extras: Mapping[str, bytes]) -> dict[str, int]:
    """The numbers of updates that encode_period was given, by table.

    Raises:
        CorruptionError: they cannot be read.
    """
    decode_period(extras)
    found = (decode_json(extras, PERIOD) or {}).get("updates", {})
    if not isinstance(found, dict) or not all(type(one) is int for one in found.values()):
        raise CorruptionError(f"the checkpoint's {PERIOD} holds no numbers of updates: {found!r}")
    return found


def decode_early(extras: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    """What bounds did as the period began, as encode_period was given it.

    Raises:
        CorruptionError: it cannot be read.
    """
    decode_period(extras)
    found = (decode_json(extras, PERIOD) or {}).get("early", {})
    try:
        return {name: (int(lead), int(rows)) for name, (lead, rows) in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptionError(
            f"the checkpoint's {PERIOD} holds no early deaths: {error}"
        ) from error


def encode_dense(model: ModelState | None, reader: JsonView | None) -> dict[str, bytes]:
    """The blobs of a checkpoint that hold what its caller gave; decode_dense reads them.

    Args:
        model, reader: as given to ParameterServer.checkpoint.

    Raises:
        ConfigError: a model or reader that could not be read back.
    """
    extras = {}
    if model is not None:
        extras[MODEL] = encode_model(model)
    if reader is not None:
        if not isinstance(reader, Mapping):
            raise ConfigError(
                f"reader is a {type(reader).__name__}; pass a mapping such as state_dict() of a "
                "reader returns"
            )
        extras[READER] = encode_json(dict(reader), "reader")
    return extras


def decode_dense(extras: Mapping[str, bytes]) -> Dense:
    """(model or None, reader or None) of a checkpoint.

    Raises:
        CorruptionError: a blob cannot be read.
    """
    return decode_model(extras), decode_json(extras, READER)


def id_of(checkpoints: Sequence[JsonView], tag: str | int | None) -> int | None:
    """The id of a checkpoint among those listed; of None None.

    Raises:
        ConfigError: there is none.
    """
    found = None if tag is None else find_listed("the store", checkpoints, tag)
    return None if found is None else int(found["id"])


@dataclass(frozen=True)
class OtherTables:
    """What a checkpoint says of stored tables that a config does not name.

    A session that leaves a table alone hands these on, or its hyperparameters would be lost.
    """

    described: list[Json]
    rates: dict[str, float]

    @classmethod
    def of(cls, extras: Mapping[str, bytes], known: Collection[str]) -> "OtherTables":
        """Those in a checkpoint's extras whose names are not `known`.

        Raises:
            CorruptionError: a blob cannot be read.
        """
        described = decode_json(extras, TABLES) or []
        rates = decode_json(extras, RATES) or {}
        return cls(
            [value for value in described if value["name"] not in known],
            {name: rate for name, rate in rates.items() if name not in known},
        )

    def with_more(self, others: "OtherTables") -> "OtherTables":
        """These, and those of `others` that are not among them."""
        here = {value["name"] for value in self.described}
        more = [value for value in others.described if value["name"] not in here]
        return OtherTables([*self.described, *more], {**others.rates, **self.rates})


def table_to_json(table: TableConfig) -> Json:
    """A TableConfig as plain values; table_from_json makes it again."""
    described: Json = {
        "name": table.name,
        "dim": table.dim,
        "optimizer": {"kind": table.optimizer.kind, **table.optimizer.numbers()},
        "initializer": _numbers_of(table.initializer),
        "features": None if table.features is None else list(table.features),
        "shared_vocabulary": table.shared_vocabulary,
        "share": table.share,
    }
    # Of others nothing is said, as before there were any.
    if table.statistics:
        described["statistics"] = True
    if table.expiry is not None:
        described["expiry"] = table.expiry.described()
    if table.admission is not None:
        described["admission"] = table.admission.described()
    for name in ("max_rows", "max_bytes"):
        if getattr(table, name) is not None:
            described[name] = getattr(table, name)
    if table.is_narrow:
        described |= {"dtype": table.dtype, "rounding": table.rounding}
    if table.negative_rate < 1:
        described["negative_rate"] = table.negative_rate
    return described


def _numbers_of(owner: Initializer) -> Json:
    numbers = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return {"kind": owner.kind, **numbers}


def table_from_json(value: JsonView) -> TableConfig:
    """The TableConfig that table_to_json wrote.

    Raises:
        ConfigError: a field is missing or unknown.
    """
    try:
        optimizer, initializer = dict(value["optimizer"]), dict(value["initializer"])
        expiry, admission = value.get("expiry"), value.get("admission")
        return TableConfig(
            **{
                **value,
                "optimizer": OPTIMIZERS[optimizer.pop("kind")](**optimizer),
                "initializer": INITIALIZERS[initializer.pop("kind")](**initializer),
                "expiry": None if expiry is None else Expiry(**expiry),
                "admission": None if admission is None else Admission(**admission),
            }
        )
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{repr(value)[:200]} does not describe a table: {error!r}") from error


def described_tables(extras: Mapping[str, bytes]) -> list[TableConfig]:
    """The tables as a checkpoint describes them; none if there is no checkpoint.

    Raises:
        CorruptionError: they cannot be read.
    """
    return [table_from_json(value) for value in decode_json(extras, TABLES) or ()]


def tables_from_store(
    schemas: Sequence[TableSchema],
    extras: Mapping[str, bytes],
    others: Sequence[TableConfig] = (),
) -> list[TableConfig]:
    """Every stored table: as `others` or else its checkpoint describes it, or its schema with
    default numbers."""
    described = {table.name: table for table in [*described_tables(extras), *others]}
    tables = []
    for schema in schemas:
        if is_records(schema.name):
            continue
        if schema.name in described:
            tables.append(described[schema.name])
            continue
        initializer = INITIALIZERS[schema.initializer]
        numbers = schema.numbers[: len(fields(initializer))]
        tables.append(
            TableConfig(
                name=schema.name,
                dim=schema.dim,
                optimizer=OPTIMIZERS[schema.optimizer](),
                initializer=initializer(*numbers),
                features=[] if len(schemas) > 1 else None,
                statistics=schema.statistics,
                dtype=schema.dtype,
            )
        )
    return tables
