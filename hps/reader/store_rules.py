"""Whether a reader has the rules by which the rows of a store came to be.

Above it: `open_reader(server=...)`, `hps.Pipeline`. Below it: what a server tells of its
checkpoints, reading_rules.py.
"""

from collections.abc import Callable, Mapping

from hps.checkpoint.blobs import MODEL, READER, decode_json, decode_model
from hps.common.json_text import Json, JsonView
from hps.contracts.training import RowServer
from hps.errors import ConfigError, RemoteError
from hps.reader.config import HASHED, RAW
from hps.reader.reader import Reader
from hps.reader.reading_rules import SETTLE, differs, stored_keys, stored_transform, unknown

_CHECKPOINT = "the newest checkpoint with these tables"


def check_store(reader: Reader, server: RowServer) -> None:
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
        raise unknown(_CHECKPOINT)
    if not is_said and stored not in (None, config.key_rule):
        otherwise = f"{SETTLE[config.key_rule]} if you mean it"
        raise differs(_CHECKPOINT, stored, config.key_rule, otherwise)
    before, is_alike = stored_transform(state), state.get("format") == config.format
    if is_alike and config.dense_transform is None and before != config.transform:
        raise ConfigError(
            f"{_CHECKPOINT} says that dense values are read as {before!r}, this reader would read "
            f"them as {config.transform!r}; ReaderConfig(dense_transform={before!r}) goes on as "
            f"before, {config.transform!r} there if you mean it"
        )


def _stored_state(server: RowServer, reader: Reader) -> tuple[JsonView | None, str | None]:
    """The position in the newest checkpoint that has one of the reader's tables; and the rule of
    keys of its model, which is looked up only where the position does not tell."""
    state, model = _newest(server)
    if not isinstance(state, Mapping) or not isinstance(features := state.get("features"), Mapping):
        return None, None
    if not set(features) & set(reader.schema.features()):  # as read, as the position has them
        return None, None
    if stored_keys(state) is not None:
        return state, None
    recipe = (model() or {}).get("recipe")
    if not isinstance(recipe, Mapping) or not isinstance(recipe.get("reader"), Mapping):
        return state, None
    hashes = bool(recipe["reader"].get("hash_keys"))
    return state, HASHED if hashes or state.get("format") == "criteo" else RAW


def _newest(server: RowServer) -> tuple[Json | None, Callable[[], Json | None]]:
    """The newest position that is kept, and what gives the model beside it; None without one."""
    try:
        names = [None, *(entry["id"] for entry in reversed(server.checkpoints()))]
        for name in names:
            state, model = _state_of(server, name)
            if state is not None:
                return state, model
    except RemoteError:
        pass  # a client that may not read checkpoints cannot go on from one either
    return None, dict


def _state_of(server: RowServer, name: int | None) -> tuple[Json | None, Callable[[], Json | None]]:
    blobs = server.checkpoint_blobs
    if blobs is None:
        model, state = server.checkpoint_state(name)
        return state, lambda: model
    # The model, which may be large, stays unread.
    state = decode_json(blobs(name, {READER}), READER)
    return state, lambda: decode_model(blobs(name, {MODEL}))
