"""Halt: what a rank says that has come to an end of its own, for those that still wait for it.

Above it: local_world.py and torch_world.py, which carry it. Below it: nothing. A rank that leaves
its loop earlier than others takes part in none of their collectives any more. It cannot know
whether they still have some: so it says how many it has taken part in, of each channel. Who waits
in a later one knows for certain that nobody will come; who waits in an earlier one knows that it
comes to its end. So no moment at which this is heard can be the wrong one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from hps.common.json_text import parse_json
from hps.errors import ClusterError


@dataclass(frozen=True)
class Halt:
    """One rank's, until all ranks have come to where it is.

    Args:
        rank: who says it.
        words: where it is.
        number: how many times all ranks have come together so before.
        entered: by channel the collectives that it has entered; channels that are not named go on.
    """

    rank: int
    words: str
    number: int
    entered: Mapping[str, int]

    def refuse(self, rank: int, channel: str, number: int) -> None:
        """To be called by a rank that waits in a collective, the `number`th of its channel.

        Raises:
            ClusterError: the one that halts does not come to it.
        """
        if number > self.entered.get(channel, number):
            raise ClusterError(
                f"rank {rank}: rank {self.rank} {self.words}, while this rank goes on and waits "
                f"for it in the {channel} channel; end the loops of all ranks after the same "
                "batch, e.g. by a condition that they agree on (server.agree)"
            )

    def to_text(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """What `to_text` gave."""
        return cls(**parse_json(text, "what a rank said", error=ClusterError))
