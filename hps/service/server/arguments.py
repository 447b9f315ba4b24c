"""What handlers make of the small fields of a change, and what refuses them.

Above it: row_handlers.py, store_handlers.py. Below it: messages/status.py, the shard.
"""

from hps.errors import ConfigError
from hps.service.messages.status import Refusal, mismatch
from hps.service.shard.shard import Ack


def as_ack(ack: int) -> Ack:
    """The level that a message asks for; ConfigError if there is none of that number."""
    try:
        return Ack(ack)
    except ValueError as error:
        raise ConfigError(f"ack={ack} must be 0 (MEMORY), 1 (LOGGED) or 2 (DURABLE)") from error


def other_history(lineage: str, asked: str) -> Refusal:
    """The refusal of a client that believes in another history of the rows."""
    return mismatch(
        f"the shard's history is {lineage!r}, not {asked[:80]!r}: it was restored meanwhile, or is "
        "at another checkpoint; restore all shards to one"
    )
