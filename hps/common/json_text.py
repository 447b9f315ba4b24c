"""JSON from outside: parsed within limits of length and depth, or refused with a typed error.

Above it: all that reads JSON: checkpoints, manifests, the update log, token files, parquet files,
replies of servers. Below it: Python's json, whose parser raises a RecursionError for text that is
nested deeply enough.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from hps.errors import ConfigError, CorruptionError, HpsError

Json = dict[str, Any]  # an object of JSON, or what could be one: counters, figures, a manifest
JsonView = Mapping[str, Any]  # the same, to be read

MAX_BYTES = 2**30  # of what hps itself has stored
MAX_DEPTH = 64  # of lists and objects in each other
# A string as a whole, so that brackets in it do not count, or one bracket.
# The closing quote may lack: else text with many open strings would take quadratic time.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{\]}]', re.DOTALL)


def parse_json(
    text: str | bytes,
    where: str,
    *,
    error: type[HpsError] = CorruptionError,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
) -> Any:
    """The value that a text describes.

    Args:
        text: JSON; bytes are UTF-8, or what json.loads takes beside it.
        where: what the text is, for the error.
        error: the type to raise.
        max_bytes: bytes, or characters of a str.
        max_depth: lists and objects in each other.

    Raises:
        HpsError: of the type `error`: longer, deeper, or no JSON.

    Cost: that of json.loads; text with more brackets than `max_depth` is looked through once more.

    >>> parse_json('{"marks": [1, 2]}', "a group")
    {'marks': [1, 2]}
    """
    if len(text) > max_bytes:
        raise error(f"{where} has {len(text):,} bytes of JSON; {max_bytes:,} at most are read")
    try:
        decoded = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text
        check_depth(decoded, where, error=error, max_depth=max_depth)
        return json.loads(decoded)
    except (ValueError, RecursionError) as cause:
        if isinstance(cause, HpsError):
            raise
        raise error(f"{where} is not JSON: {cause}") from cause


def check_depth(
    text: str, where: str, *, error: type[HpsError] = ConfigError, max_depth: int = MAX_DEPTH
) -> None:
    """Refuses text whose lists and objects are nested more deeply than `max_depth`.

    Raises:
        HpsError: of the type `error`.

    >>> check_depth("[[1], [2]]", "a position", max_depth=2)
    """
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for found in _TOKEN.finditer(text):
        if found[0] in "[{":
            depth += 1
            if depth > max_depth:
                raise error(
                    f"{where} nests JSON more than {max_depth} levels deep (at character "
                    f"{found.start():,}); {max_depth} at most are read"
                )
        elif found[0] in "]}":
            depth = max(0, depth - 1)
