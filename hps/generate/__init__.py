"""Synthetic click logs from a planted model, so that the best possible AUC is known.

Above it: `hps generate`, benchmarks. Below it: numba (in the extra `train`); it is imported only
when a log is made, so that `import hps` works without it.
"""

from hps.generate.config import FORMATS, GeneratorConfig

__all__ = ["FORMATS", "GeneratorConfig"]
