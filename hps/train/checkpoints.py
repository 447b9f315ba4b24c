"""Finds the checkpoint that a training run can go on from.

Above it: `hps train --resume`, `hps evaluate`. Below it: `hps.ParameterServer`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.checkpoint.names import own_name, text_of
from hps.common.json_text import Json
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.contracts.training import KeptCheckpoints


@dataclass(frozen=True)
class ModelCheckpoint:
    """A checkpoint that holds all it takes to go on.

    Args:
        name: its tag, or its id where it has none; None is the newest of all.
        model: what `Trainer.state` returned, or a user's own mapping.
        reader: the position after the last applied batch.
        created: when it was taken, seconds since 1970; None where that is not known.
    """

    name: str | int | None
    model: Json
    reader: Json
    created: float | None = None

    def __str__(self) -> str:
        if self.name is None:
            return "the newest"
        return repr(self.name) if isinstance(self.name, str) else text_of(self.name)


def newest_with_model(
    server: "KeptCheckpoints", *, passes_over: bool = False
) -> ModelCheckpoint | None:
    """The checkpoint to go on from, or None: one that holds a model and a reader's position.

    The current checkpoint comes first: after `restore` it is older than others that are kept. Then
    the newest.

    Args:
        server: of any kind.
        passes_over: take an older one also where that which comes first holds no model.

    Raises:
        ConfigError: the one that comes first holds no model, and an older one does. Those that a
            server takes by itself do not count: what came after a client's is its to do again.
            Of servers also: none that is kept is the one that the rows descend from.
    """
    entries = sorted(reversed(server.checkpoints()), key=lambda entry: not entry.get("current"))
    names: list[str | int | None] = [
        entry["tag"] if entry["tag"] is not None else entry["id"] for entry in entries
    ]
    if not entries or not entries[0].get("current"):
        names.insert(0, None)  # the current checkpoint is not listed any more: its tag was deleted
    by_itself = {entry["id"] for entry in entries if entry.get("automatic")}
    by_itself |= {entry["tag"] for entry in entries if entry.get("automatic")}
    passed_over: list[str | int | None] = []
    for name in names:
        try:
            model, reader = server.checkpoint_state(name)
        except ConfigError:  # of servers: no checkpoint that is kept is current
            if name is not None or not passes_over:
                raise
            continue
        if model is not None and reader is not None:
            if passed_over and not passes_over:
                raise _without_model(passed_over[0], name)
            return ModelCheckpoint(name, model, reader)
        if name not in by_itself:
            passed_over.append(name)
    return None


def named_with_model(server: "KeptCheckpoints", name: str | int) -> ModelCheckpoint:
    """A checkpoint by its tag, promoted name or id; of a promoted name, which may move, the one
    that has it now, under its own name.

    Raises:
        ConfigError: there is none, or it holds no model and position.
    """
    listed = server.checkpoints()
    name = own_name(listed, name)
    model, reader = server.checkpoint_state(name)
    if model is None or reader is None:
        raise ConfigError(
            f"checkpoint {text_of(name)!r} holds no model and position to resume from; name one "
            "that `hps train` has taken, or that took one over"
        )
    created = next((one.get("created") for one in listed if name in (one["tag"], one["id"])), None)
    return ModelCheckpoint(name, model, reader, created)


def _without_model(passed_over: str | int | None, older: str | int | None) -> ConfigError:
    what = "the current checkpoint"
    if passed_over is not None:
        what = f"checkpoint {text_of(passed_over)!r}"
    name = "the current one" if older is None else text_of(older)
    return ConfigError(
        f"{what}, at which the rows are, holds no model, and {name!r} does: the rows were trained "
        "on without that model, or an older hps took the checkpoint. Name the one to take: 'hps "
        f"evaluate --checkpoint {name}' measures that one, 'hps train --resume-from {name}' goes "
        "back to its rows and on from there; or take one of the rows as they are with "
        "checkpoint(model=, reader=)"
    )
