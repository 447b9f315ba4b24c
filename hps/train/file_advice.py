"""Files that a run is given twice: said once, before training; figures are then not what they seem.

Above it: `hps.train.run`. Below it: `find_files`.
"""

import os
from collections import Counter
from collections.abc import Sequence

from hps.common.url_text import hidden_url, is_url
from hps.errors import HpsError
from hps.reader.files import PathLike, find_files


def advice_on_files(
    data: Sequence[PathLike], valid: Sequence[PathLike], test: Sequence[PathLike]
) -> list[str]:
    """Lines for people; none where each file has one use.

    Args:
        data: files and patterns that are trained on.
        valid: that are validated on.
        test: that are tested on.

    >>> advice_on_files(["day1.csv"], ["day2.csv"], ["day3.csv"])
    []
    """
    trained = Counter(_names(data))
    lines = [
        f"warning: DATA has {_shown(name)} {count} times: its examples count as often"
        for name, count in trained.items()
        if count > 1
    ]
    for flag, paths in (("--valid", valid), ("--test", test)):
        both = [name for name in dict.fromkeys(_names(paths)) if name in trained]
        if both:
            more = f" and {len(both) - 1} more" if len(both) > 1 else ""
            lines.append(
                f"warning: {flag}: {_shown(both[0])}{more} is trained on, too, so its figures tell "
                "how well the model remembers, not how well it predicts; give files that DATA "
                "does not have"
            )
    return lines


def _shown(name: str) -> str:
    return repr(hidden_url(name) if is_url(name) else name)


def _names(paths: Sequence[PathLike]) -> list[str]:
    """What is equal of two names of one file. Of URLs their text: what patterns match is not asked
    for. None of files that cannot be found, which the readers tell."""
    named = [os.fspath(path) for path in paths if isinstance(path, str | os.PathLike)]
    try:
        local = [text for text in named if not is_url(text)]
        files = find_files(local) if local else ()
    except HpsError:
        return []
    return [os.path.realpath(str(file)) for file in files] + [
        text for text in named if is_url(text)
    ]
