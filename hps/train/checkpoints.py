"""Finds the checkpoint that a training run can go on from.

Above it: `hps train --resume`, `hps evaluate`. Below it: `hps.ParameterServer`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hps.row_server import CutServer


@dataclass(frozen=True)
class ModelCheckpoint:
    """A checkpoint that holds all it takes to go on.

    Args:
        name: its tag, or its id where it has none; None is the newest of all.
        model: what `Trainer.state` returned, or a user's own mapping.
        reader: the position after the last applied batch.
    """

    name: str | int | None
    model: dict[str, Any]
    reader: dict[str, Any]

    def __str__(self) -> str:
        return "the newest" if self.name is None else repr(self.name)


def newest_with_model(server: "CutServer") -> ModelCheckpoint | None:
    """The checkpoint to go on from, or None: one that holds a model and a reader's position.

    The current cut comes first: after `restore` it is older than others that are kept. Then the
    newest.
    """
    entries = sorted(reversed(server.checkpoints()), key=lambda entry: not entry.get("current"))
    names: list[str | int | None] = [
        entry["tag"] if entry["tag"] is not None else entry["id"] for entry in entries
    ]
    if not entries or not entries[0].get("current"):
        names.insert(0, None)  # the current cut is not listed any more: its tag was deleted
    for name in names:
        model, reader = server.checkpoint_state(name)
        if model is not None and reader is not None:
            return ModelCheckpoint(name, model, reader)
    return None
