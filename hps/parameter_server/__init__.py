"""One object over the tiers: tables of embedding rows with pull, push and checkpoints."""

from hps.parameter_server.open_server import open
from hps.parameter_server.server import ParameterServer

__all__ = ["ParameterServer", "open"]
