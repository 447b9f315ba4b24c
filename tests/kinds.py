"""Kinds of models by what a log must have for them.

Above it: tests that go through all kinds. Below it: `hps.models`.
"""

from hps.models import MODELS

# Those that any log does for; others want a sequence with a target, and have tests of their own.
POOLING = [kind for kind, model in MODELS.items() if not model.takes_sequences]
