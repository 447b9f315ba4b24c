"""By which rules a position, or the store it lies in, was read: what became of keys and numbers.

Above it: `Reader.load_state_dict`, `hps.Pipeline`. Below it: what a server tells of its
checkpoints.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hps.checkpoint import MODEL, READER, decode_json, decode_model
from hps.errors import ConfigError, RemoteError
from hps.reader.config import HASHED, LOG1P, NO_TRANSFORM, RAW, ReaderConfig

if TYPE_CHECKING:
    from hps.reader.reader import Reader
    from hps.row_server import RowServer

_SETTLE = {
    HASHED: "hash_keys=True (--hash-keys)",
    RAW: "hash_keys=False (--raw-keys)",
}
_CHECKPOINT = "the newest checkpoint with these tables"
_MEANING = {
    HASHED: "keys that are whole numbers are hashed with their feature",
    RAW: "keys that are whole numbers are taken as they stand",
}


def stored_keys(state: Mapping[str, Any]) -> str | None:
    """The rule of keys that a position was read by: "hashed" or "raw".

    None of a parquet log whose position an earlier version wrote: raw, unless it was asked to hash.
    The other formats' defaults are what they were.
    """
    rule = state.get("keys")
    return rule if rule in (HASHED, RAW) else None


def stored_transform(state: Mapping[str, Any]) -> str:
    """The dense transform that a position was read by; earlier versions had one a format."""
    before = LOG1P if state.get("format") == "criteo" else NO_TRANSFORM
    return str(state.get("dense_transform", before))


def check_keys(config: ReaderConfig, state: Mapping[str, Any]) -> None:
    """Refuses to go on from a position that was read by another rule of keys.

    Raises:
        ConfigError: it was, or an earlier version wrote it and the reader does not say its rule.
    """
    stored, own = stored_keys(state), config.key_rule
    if stored is None:
        if config.format == "parquet" and config.hash_keys is None:
            raise _unknown("the position")
    elif stored != own:
        raise _differs("the position", stored, own, "read from the beginning")


def check_store(reader: "Reader", server: "RowServer") -> None:
    """Refuses a reader whose rules were not said where the server's rows came by other ones.

    The newest checkpoint with a reader's position tells them. Rules that were said are the
    caller's own business.

    Raises:
        ConfigError: names both rules, and what settles it.
    """
    config = reader.config
    is_said = config.hash_keys is not None or config.format == "criteo"
    if is_said and (config.dense_transform is not None or not reader.num_dense):
        return
    state, model_keys = _stored_state(server, reader)
    if state is None:
        return
    stored = stored_keys(state) or model_keys
    if not is_said and stored is None and state.get("format") == "parquet":
        raise _unknown(_CHECKPOINT)
    if not is_said and stored not in (None, config.key_rule):
        otherwise = f"{_SETTLE[config.key_rule]} if you mean it"
        raise _differs(_CHECKPOINT, stored, config.key_rule, otherwise)
    before, is_alike = stored_transform(state), state.get("format") == config.format
    if is_alike and config.dense_transform is None and before != config.transform:
        raise ConfigError(
            f"{_CHECKPOINT} says that dense values are read as {before!r}, this reader would read "
            f"them as {config.transform!r}; ReaderConfig(dense_transform={before!r}) goes on as "
            f"before, {config.transform!r} there if you mean it"
        )


def _stored_state(
    server: "RowServer", reader: "Reader"
) -> tuple[Mapping[str, Any] | None, str | None]:
    """The position in the newest checkpoint that has one of the reader's tables; and the rule of
    keys of its model, which is looked up only where the position does not tell."""
    state, model = _newest(server)
    if not isinstance(state, Mapping) or not isinstance(features := state.get("features"), Mapping):
        return None, None
    if not set(features) & set(reader.features):
        return None, None
    if stored_keys(state) is not None:
        return state, None
    recipe = (model() or {}).get("recipe")
    if not isinstance(recipe, Mapping) or not isinstance(recipe.get("reader"), Mapping):
        return state, None
    hashes = bool(recipe["reader"].get("hash_keys"))
    return state, HASHED if hashes or state.get("format") == "criteo" else RAW


def _newest(server: "RowServer") -> tuple[Any, Callable[[], Any]]:
    """The newest position that is kept, and what gives the model beside it; None without one."""
    source: Any = server
    if not hasattr(source, "checkpoint_state"):
        return None, dict
    try:
        names = [None, *(entry["id"] for entry in reversed(source.checkpoints()))]
        for name in names:
            state, model = _state_of(source, name)
            if state is not None:
                return state, model
    except RemoteError:
        pass  # a client that may not read checkpoints cannot go on from one either
    return None, dict


def _state_of(source: Any, name: int | None) -> tuple[Any, Callable[[], Any]]:
    if hasattr(source, "checkpoint_blobs"):  # there the model, which may be large, stays unread
        state = decode_json(source.checkpoint_blobs(name, {READER}), READER)
        return state, lambda: decode_model(source.checkpoint_blobs(name, {MODEL}))
    model, state = source.checkpoint_state(name)
    return state, lambda: model


def _differs(what: str, stored: str, own: str, otherwise: str) -> ConfigError:
    return ConfigError(
        f"{what} says {stored!r}: {_MEANING[stored]}; this reader has {own!r}, which makes other "
        f"keys of the same values. Give the reader {_SETTLE[stored]} to go on as before, or "
        f"{otherwise}"
    )


def _unknown(what: str) -> ConfigError:
    return ConfigError(
        f"{what} was written when columns of integers in parquet were taken as they stand "
        f"({RAW!r}) unless hash_keys was given; now they are {HASHED!r}: say which, "
        f"ReaderConfig({_SETTLE[RAW]}) goes on as before"
    )
