"""Docstrings as mkdocstrings needs them: examples are blocks of code; own arguments are not shown.

Above it: mkdocs.yml. Below it: griffe, which reads the sources;
docstrings_text.py.
"""

from typing import Any

from griffe import Extension, Parameters

from tools.site.docstrings_text import fenced


class Docstrings(Extension):
    """Puts a fence around each example of every docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        if obj.is_function:  # arguments with an underscore are hps's own
            shown = [one for one in obj.parameters if not one.name.startswith("_")]
            obj.parameters = Parameters(*shown)
