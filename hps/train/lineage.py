"""The lineage of a model: the checkpoints that its runs went on from with new data, or back to.

Above it: beginning.py, trainer.py, model_list.py. Below it: hps.checkpoint.names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hps.checkpoint.names import find_listed, text_of
from hps.common.json_text import Json, JsonView

if TYPE_CHECKING:
    from hps.train.checkpoints import ModelCheckpoint

MOST_ANCESTORS = 100  # that a checkpoint tells of


def ancestor_of(stored: "ModelCheckpoint", listed: Sequence[JsonView]) -> Json:
    """What a checkpoint says of the one that its run went on from.

    Returns:
        `checkpoint` (its tag then, or its id as id:N; None: it was deleted while it was current),
        `created` (seconds since 1970, or None), `examples` that it was trained on (or None).
    """
    found = find_listed("the store", listed, stored.name)
    totals = stored.model.get("totals", {})
    name = None if found is None else found["tag"] or found["id"]
    return {
        "checkpoint": None if name is None else text_of(name),
        "created": None if found is None else found.get("created"),
        "examples": totals.get("examples"),
    }
