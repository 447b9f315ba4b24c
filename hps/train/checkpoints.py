"""Finds the checkpoint that a training run can go on from.

Above it: `hps train --resume`, `hps evaluate`. Below it: `hps.ParameterServer`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hps.parameter_server import ParameterServer


def newest_with_model(server: "ParameterServer") -> str | None:
    """The tag of the newest checkpoint that holds a model and a reader's position, or None."""
    for checkpoint in reversed(server.checkpoints()):
        if checkpoint["has_model"] and checkpoint["has_reader"]:
            return str(checkpoint["tag"])
    return None
