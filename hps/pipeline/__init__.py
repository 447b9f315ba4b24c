"""From a reader's batches to batches whose rows are in place: `hps.Pipeline`."""

from hps.pipeline.bound import Bound, bound_of
from hps.pipeline.clock import add_seconds
from hps.pipeline.pipeline import Pipeline
from hps.pipeline.trace import Trace

__all__ = ["Bound", "Pipeline", "Trace", "add_seconds", "bound_of"]
