"""DenseMark: which dense part fits the rows of a store, from one checkpoint to the next.

Above it: parameter_server/checkpoints.py, which keeps one while a server is open;
hps/cluster/folder/checkpoints.py and the shards, which compare those of their parts. Below it:
blobs.py (the names of blobs). A checkpoint that is given no model takes over the dense part of the
one that its rows descend from, as long as they were only erased, assigned or created since. After a
push they fit no stored model any more.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from hps.checkpoint.blobs import MODEL, READER
from hps.errors import CorruptionError

DENSE = "dense.json"  # among a checkpoint's blobs
DENSE_PARTS = (MODEL, READER)
_WHOLE = "cut"  # the key of `whole` in DENSE
TRAINING = ("push", "apply")  # verbs after which rows and stored model are of different steps


@dataclass(frozen=True, kw_only=True)
class DenseMark:
    """What is known of the dense part of the checkpoint that rows descend from.

    Args:
        has_model: there is one. Of a part of a checkpoint over several ranks or shards: the whole
            has one.
        source: the checkpoint that it was given to, by tag or id; empty: this one.
        whole: names that checkpoint among the parts of all ranks or shards; empty: of one store.
        is_trained: rows have been trained on since; it does not fit them.
    """

    has_model: bool = False
    source: str = ""
    whole: str = ""
    is_trained: bool = False

    @classmethod
    def of(cls, blobs: Mapping[str, bytes], whole: str = "") -> Self:
        """From a checkpoint's blobs.

        Args:
            blobs: all of it, or those called DENSE and DENSE_PARTS.
            whole: its name, of one that an older hps has taken, which has no mark.

        Raises:
            CorruptionError: the mark cannot be read.
        """
        if DENSE not in blobs:
            return cls(has_model=MODEL in blobs, whole=whole)
        try:
            fields = {**json.loads(blobs[DENSE])}
            return cls(whole=fields.pop(_WHOLE, ""), **fields)
        except (TypeError, ValueError) as error:
            raise CorruptionError(f"the checkpoint's {DENSE} cannot be read: {error}") from error

    def blobs(self) -> dict[str, bytes]:
        """What a checkpoint says of it; `of` reads it."""
        fields = asdict(self)
        fields[_WHOLE] = fields.pop("whole")
        return {DENSE: json.dumps(fields, sort_keys=True).encode()}

    @property
    def fits(self) -> bool:
        """True if there is a dense part, and the rows have been left as it knows them."""
        return self.has_model and not self.is_trained

    @property
    def is_taken_over(self) -> bool:
        """True of a checkpoint that has the dense part of another one."""
        return self.fits and bool(self.source)

    def described(self) -> dict[str, str]:
        """What `checkpoint` returns of it."""
        return {"model_from": self.source} if self.is_taken_over else {}


def holds_dense(blobs: Mapping[str, bytes]) -> bool:
    """True if a caller has given a checkpoint a model or a reader's position."""
    return any(name in blobs for name in DENSE_PARTS)
