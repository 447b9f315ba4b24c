"""Docstrings as mkdocstrings needs them: examples are blocks of code; own arguments are not shown.

Above it: mkdocs.yml. Below it: griffe, which reads the sources.
"""

import re
from typing import Any

from griffe import Extension, Parameters

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?: *\n)*\1(?:>>>|\.\.\.).*|\n\1\S.*)*", re.MULTILINE)


class Docstrings(Extension):
    """Puts a fence around each example of every docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        if obj.is_function:  # arguments with an underscore are hps's own
            shown = [one for one in obj.parameters if not one.name.startswith("_")]
            obj.parameters = Parameters(*shown)


def fenced(text: str) -> str:
    """A docstring whose examples are blocks of code.

    Args:
        text: without the indent of its first line.
    """
    return _EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
