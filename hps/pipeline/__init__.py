"""From a reader's batches to batches whose rows are in place: `hps.Pipeline`."""

from hps.pipeline.pipeline import MAX_DEPTH, Pipeline
from hps.pipeline.trace import Trace

__all__ = ["MAX_DEPTH", "Pipeline", "Trace"]
