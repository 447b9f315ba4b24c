"""By which rules a position was read: what became of keys and numbers, which examples were kept.

Above it: `Reader.load_state_dict`, store_rules.py. Below it: the position, as a checkpoint has it.
"""

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.reader.config import HASHED, LOG1P, NO_TRANSFORM, RAW, WHOLE, ReaderConfig

SETTLE = {
    HASHED: "hash_keys=True (--hash-keys)",
    RAW: "hash_keys=False (--raw-keys)",
}
_MEANING = {
    HASHED: "keys that are whole numbers are hashed with their feature",
    RAW: "keys that are whole numbers are taken as they stand",
}


def stored_keys(state: JsonView) -> str | None:
    """The rule of keys that a position was read by: "hashed" or "raw".

    None of a parquet log whose position an earlier version wrote: raw, unless it was asked to hash.
    The other formats' defaults are what they were.
    """
    rule = state.get("keys")
    return rule if rule in (HASHED, RAW) else None


def stored_transform(state: JsonView) -> str:
    """The dense transform that a position was read by; earlier versions had one a format."""
    before = LOG1P if state.get("format") == "criteo" else NO_TRANSFORM
    return str(state.get("dense_transform", before))


def check_keys(config: ReaderConfig, state: JsonView) -> None:
    """Refuses to go on from a position that was read by another rule of keys.

    Raises:
        ConfigError: it was, or an earlier version wrote it and the reader does not say its rule.
    """
    stored, own = stored_keys(state), config.key_rule
    if stored is None:
        if config.format == "parquet" and config.hash_keys is None:
            raise unknown("the position")
    elif stored != own:
        raise differs("the position", stored, own, "read from the beginning")


_FLAGS = {"hash_range": "--valid-share", "negative_rate": "--negative-rate"}


def sample_state(config: ReaderConfig) -> Json:
    """Of a position: which examples of the log are kept; nothing where all are."""
    state: Json = {}
    if config.hash_range not in (None, WHOLE):
        state["hash_range"] = list(config.hash_range or WHOLE)
    if config.negative_rate < 1:
        state["negative_rate"] = config.negative_rate
    return state


def check_sample(config: ReaderConfig, state: JsonView) -> None:
    """Refuses to go on with other examples of the log than a position is of.

    Raises:
        ConfigError: names both ranges, or both rates.
    """
    own = sample_state(config)
    for name in ("hash_range", "negative_rate"):
        stored, given = state.get(name), own.get(name)
        if stored != given:
            raise ConfigError(
                f"the position is of a log read with {name}={stored!r}, this reader has {given!r} "
                f"({_FLAGS[name]}; None keeps all examples); give the same, or train on other data "
                "from its beginning (--new-data)"
            )


_DIVIDED_BY = {
    "fields": ("field {!r} has the indices", "fields"),
    "separators": ("column {!r} is divided by", "separators"),
}


def divided_state(config: ReaderConfig) -> Json:
    """Of a position: the fields of the indices of libsvm, what divides columns of text; nothing
    without them."""
    given = {name: getattr(config, name) for name in _DIVIDED_BY}
    return {name: dict(value) for name, value in given.items() if value is not None}


def check_divided(config: ReaderConfig, state: JsonView) -> None:
    """Refuses to go on with values that are divided otherwise.

    Raises:
        ConfigError: names the first field or column that differs.
    """
    for key, (words, what) in _DIVIDED_BY.items():
        stored, own = state.get(key) or {}, getattr(config, key) or {}
        name = next((one for one in (*stored, *own) if stored.get(one) != own.get(one)), None)
        if name is not None:
            raise ConfigError(
                f"the position is of a log whose {words.format(name)} {stored.get(name)!r}, this "
                f"reader gives it {own.get(name)!r}; give the same {what}, or read from the "
                "beginning"
            )


def buffer_state(config: ReaderConfig) -> Json:
    """Of a position: how examples are shuffled; nothing where they are not."""
    if not config.shuffle_buffer:
        return {}
    names = ("shuffle_buffer", "shuffle_seed", "batch_size")
    return {name: getattr(config, name) for name in names}


def check_buffer(config: ReaderConfig, state: JsonView) -> None:
    """Refuses to go on where examples would come in another order, some twice and some never.

    Raises:
        ConfigError: names what differs, and both values.
    """
    stored: Json = {"shuffle_buffer": 0, **state}
    own: Json = {"shuffle_buffer": 0, **buffer_state(config)}
    for name, given in own.items():
        if stored.get(name) != given:
            why = "" if name == "shuffle_buffer" else " with a shuffle buffer"
            raise ConfigError(
                f"the position is of a log read with {name}={stored.get(name)!r}{why}, this reader "
                f"has {given!r} (of hps train: --shuffle-buffer, --seed, --batch-size); give the "
                "same, or train on other data from its beginning (--new-data)"
            )


def differs(what: str, stored: str, own: str, otherwise: str) -> ConfigError:
    """`what` was read by another rule of keys; with what settles it."""
    return ConfigError(
        f"{what} says {stored!r}: {_MEANING[stored]}; this reader has {own!r}, which makes other "
        f"keys of the same values. Give the reader {SETTLE[stored]} to go on as before, or "
        f"{otherwise}"
    )


def unknown(what: str) -> ConfigError:
    """`what` does not tell its rule of keys."""
    return ConfigError(
        f"{what} was written when columns of integers in parquet were taken as they stand "
        f"({RAW!r}) unless hash_keys was given; now they are {HASHED!r}: say which, "
        f"ReaderConfig({SETTLE[RAW]}) goes on as before"
    )
