"""Small click logs with something to learn, written where a test wants them."""

from pathlib import Path

import numpy as np

NUM_DENSE, NUM_FEATURES = 13, 26


def write_criteo(
    path: Path, num_examples: int, *, num_keys: int = 400, seed: int = 0, world: int = 7
) -> Path:
    """A log in criteo's format whose clicks follow a planted first-order model.

    Args:
        num_keys: distinct values of each feature; drawn so that low numbers are frequent.
        seed: of the examples.
        world: of the planted model; logs of one world can train and test one model.
    """
    planted = np.random.default_rng(world).normal(0.0, 0.5, (NUM_FEATURES, num_keys))
    generator = np.random.default_rng(seed)
    uniform = generator.random((num_examples, NUM_FEATURES))
    values = (num_keys * uniform**3).astype(np.int64)
    logits = planted[np.arange(NUM_FEATURES), values].sum(axis=1)
    clicks = generator.random(num_examples) < 1 / (1 + np.exp(-logits))
    dense = generator.integers(0, 50, (num_examples, NUM_DENSE))
    of_key = [f"{key:08x}" for key in range(num_keys)]
    with path.open("w") as file:
        for click, numbers, features in zip(
            clicks.tolist(), dense.tolist(), values.tolist(), strict=True
        ):
            columns = [str(int(click)), *map(str, numbers), *(of_key[key] for key in features)]
            file.write("\t".join(columns) + "\n")
    return path
