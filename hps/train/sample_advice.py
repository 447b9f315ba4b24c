"""Whether a sample of a log can have the share that is asked for.

Above it: opening.py. Below it: the log's first examples. A sample takes all examples of one content
or none (docs/formats.md, "A sample of a log"). Where few contents come again and again, as where
the columns that tell examples apart are ignored, the share of the examples is a matter of luck.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hps.reader.config import WHOLE
from hps.reader.sample import hash_rows
from hps.train.base_rate import NUM_EXAMPLES, beside

if TYPE_CHECKING:
    from hps.reader.reader import Reader
    from hps.types import Batch

_MUCH = 0.1  # of the share, that it may be off by, more often than not
_COPIES = 10.0  # of a content, as a mean over the examples


def advice_on_sample(reader: "Reader") -> list[str]:
    """Lines for people; none where the shares are what they should be.

    Args:
        reader: of the log that is trained on; it is not moved. Of its first 10,000 examples all are
            looked at, whether they are kept or not.
    """
    config = reader.config
    if not config.is_sample:
        return []
    whole = {"hash_range": None, "negative_rate": 1.0}
    ahead = beside(reader, on_error="skip", batch_size=NUM_EXAMPLES, **whole)
    batch = next(ahead, None)
    ahead.close()
    if batch is None:
        return []
    contents = _contents(reader, batch)
    low, high = config.hash_range or WHOLE
    trained, held_out = high - low, 1.0 - (high - low)  # the smaller one is off by more of itself
    which, share = ("trained on", trained) if trained < held_out else ("held out", held_out)
    negatives = contents[batch.labels.numpy() <= 0]
    asked = [
        (f"--valid-share: the share that is {which}", share, contents),
        ("--negative-rate: the share that is kept", config.negative_rate, negatives),
    ]
    return [
        line
        for what, share, of_these in asked
        if 0 < share < 1 and (line := _on_share(what, share, of_these)) is not None
    ]


def _contents(reader: "Reader", batch: "Batch") -> NDArray[np.uint64]:
    """A hash of each example's content, uint64 [B]."""
    names, keys, offsets = [], [], []
    size = len(batch)
    for table, features in reader.schema.features().items():
        ids = batch.features[table]
        all_keys, ends = ids.keys_L.numpy().view(np.uint64), ids.offsets.numpy()
        for place, name in enumerate(features):
            own = ends[place * size : (place + 1) * size + 1]
            names.append(name)
            keys.append(all_keys[own[0] : own[-1]])
            offsets.append(own - own[0])
    return hash_rows(names, keys, offsets, batch.dense.numpy())


def _on_share(what: str, share: float, contents: NDArray[np.uint64]) -> str | None:
    """What is to be said of a share of these examples, if anything."""
    _, counts = np.unique(contents, return_counts=True)
    num_examples = int(counts.sum())
    squares = float(np.square(counts.astype(np.float64)).sum())
    if not num_examples or squares < _COPIES * num_examples:
        return None
    # Each content is kept or not, by chance: the standard deviation of the share of the examples.
    off_by = np.sqrt(share * (1.0 - share) * squares) / num_examples
    if off_by < _MUCH * share:
        return None
    low, high = max(share - 2 * off_by, 0.0), min(share + 2 * off_by, 1.0)
    return (
        f"warning: {what} may be {low:.2g} to {high:.2g} in place of "
        f"{share:g}: examples of one content are chosen together, and {num_examples:,} of the "
        f"first ones have {len(counts):,} contents; an ignored column is no content: read one that "
        "tells examples apart, or sample the log before"
    )
