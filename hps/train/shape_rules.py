"""Which parts of a model's shape a kind has, and their limits.

Above it: options.py, reading.py. Below it: `hps.models`, hps.config.
"""

from collections.abc import Sequence
from pathlib import Path

from hps.common.field_checks import require_whole
from hps.common.json_text import Json
from hps.config import MAX_DIM
from hps.errors import ConfigError
from hps.features.column import Column, Cross
from hps.features.features import Features
from hps.features.table import Table
from hps.models.base import ClickModel
from hps.models.kinds import class_of, load_class

LEAST_DECAY = 2.0**-25  # of a step: less is rounded away


def what_it_lacks(kind: str) -> Json:
    """The parts of the shape that a kind has not, by name, as its models store them.

    >>> what_it_lacks("lr"), what_it_lacks("deepfm")
    ({'dim': 0, 'hidden': (), 'dropout': 0.0}, {})
    """
    model = class_of(kind)
    lacks: Json = {} if model.has_vectors else {"dim": 0}
    return lacks if model.has_deep_part else lacks | {"hidden": (), "dropout": 0.0}


def refuse_what_it_lacks(kind: str, given: Json) -> None:
    """Refuses a flag that does nothing in a model of this kind.

    Args:
        given: values by name of the option; None, and what the models store, count as not given.

    Raises:
        ConfigError: names the flag.
    """
    for name, empty in what_it_lacks(kind).items():
        value = given.get(name)
        is_none = value is None or (isinstance(value, Sequence) and not value) or value == empty
        if not is_none:
            why = "has no deep part"
            if name == "dim":
                why = "has no embedding, its rows are one weight"
            raise ConfigError(f"{name}={value!r} (--{name}): model {kind} {why}; leave it out")


def check_kind(kind: str, store: str | Path | None, *, has_base_rate: bool) -> None:
    """Finds the class of a kind that was asked for; a user's own is loaded.

    Args:
        store: of the run, which holds no code.
        has_base_rate: its output bias is to be set.

    Raises:
        ConfigError: there is none, or it has no output bias and needs one.
    """
    found = load_class(kind, store=store)
    if has_base_rate and found.output_bias is ClickModel.output_bias:
        raise ConfigError(
            f"model {kind}: {found.__name__} has no property output_bias, which begins at the "
            "log's share of clicks; give it one, or leave that out: base_rate=False "
            "(--no-base-rate)"
        )


def check_two_level(kind: str, score: float) -> None:
    """Refuses rows of two levels of a kind that cannot have them.

    Args:
        score: that is asked for.

    Raises:
        ConfigError: says why.
    """
    if why := class_of(kind).why_one_level():
        raise ConfigError(
            f"two_level={score!r} (--two-level): model {kind}: {why}; leave it out, or take "
            "deepfm, wide_deep or fm"
        )


def check_table_dims(kind: str | None, features: Features, *, two_level: bool = False) -> None:
    """The limits of the dims that a features file gives its tables.

    Args:
        kind: None where only the stored model tells.
        two_level: first-order weights lie elsewhere.

    Raises:
        ConfigError: rows would be too wide, or have no embedding.
    """
    if kind is None:
        return
    model = class_of(kind)
    most = MAX_DIM - (model.has_first_order and not two_level)
    groups: dict[str, Sequence[Table | Column | Cross]] = {
        "tables": features.tables,
        "columns": features.columns,
        "crosses": features.crosses,
    }
    for group, one in ((group, one) for group, ones in groups.items() for one in ones):
        if one.dim is None:
            continue
        where = f"{features.at(group, one.name, 'dim')}: dim = {one.dim} of {one.name!r}"
        if not model.has_vectors:
            raise ConfigError(
                f"{where}: model {kind} has no embedding, its rows are one weight; leave it out"
            )
        if one.dim > most:
            raise ConfigError(
                f"{where}: a row has {MAX_DIM} columns at most, and model {kind} takes 1 for its "
                f"first-order weight; give {most} or less"
            )


def check_sizes(
    kind: str | None, dim: int, hidden: Sequence[int], dropout: float, *, two_level: bool = False
) -> None:
    """What the sizes may be in a model of this kind.

    Args:
        kind: None where only the stored model tells.
        two_level: first-order weights lie elsewhere.

    Raises:
        ConfigError: a size outside its limits, or one that the kind lacks.
    """
    if kind is not None:
        refuse_what_it_lacks(kind, {"dim": dim, "hidden": hidden, "dropout": dropout})
    model = None if kind is None else class_of(kind)
    has_vectors = model is None or model.has_vectors
    require_whole("dim", dim, int(has_vectors), MAX_DIM if has_vectors else 0)
    most = MAX_DIM - (model is not None and model.has_first_order and not two_level)
    if dim > most:
        raise ConfigError(
            f"dim={dim} (--dim): a row has {MAX_DIM} columns at most, and model {kind} takes 1 for "
            f"its first-order weight; give {most} or less"
        )


def check_decay(part: str, decay: float, rate: float) -> None:
    """Refuses a weight decay that changes the sign of weights, or that float32 does not show.

    Args:
        part: "" of the rows, "dense_" of the dense part.
        decay: of it; 0 is none.
        rate: its learning rate.

    Raises:
        ConfigError: decay * rate is above 1, or too small.

    >>> check_decay("", 0.01, 0.02)
    """
    flag = part.replace("_", "-")
    product = decay * rate
    where = (
        f"{part}weight_decay={decay!r} (--{flag}weight-decay) with {part}lr={rate!r} "
        f"(--{flag}lr): a step multiplies weights by 1 - {product:g}"
    )
    if not product <= 1:
        raise ConfigError(f"{where}, which must not be below 0; lower one of them")
    if decay and product < LEAST_DECAY:
        raise ConfigError(
            f"{where}, which is 1 in float32, so that nothing would decay; give a weight decay of "
            f"{2 * LEAST_DECAY / rate:.1g} or more, or none"
        )
