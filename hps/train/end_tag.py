"""The tag of the checkpoint at the end of a training run, and which it may be.

Above it: options.py, closing.py, validation.py. Below it: hps.checkpoint.names.
"""

from hps.checkpoint.blobs import LAST
from hps.checkpoint.names import BEST_TAG, check_tag
from hps.errors import ConfigError


def check_end_tag(tag: str | None) -> None:
    """Refuses what a user cannot name the end of a run.

    Raises:
        ConfigError: no tag, or one that other checkpoints take.
    """
    if tag is None:
        return
    check_tag(tag)
    if tag in (BEST_TAG, LAST):
        what = "the best model of a validation" if tag == BEST_TAG else "rows that were changed"
        raise ConfigError(f"tag={tag!r} (--tag): {what} is kept under it; use another one")
