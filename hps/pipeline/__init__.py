"""From a reader's batches to batches whose rows are in place: `hps.Pipeline`."""

from hps.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
