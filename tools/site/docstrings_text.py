"""The text of docstrings as Markdown: examples are blocks of code.

Above it: docstrings.py, tests/site/. Below it: nothing.
"""

import re

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?: *\n)*\1(?:>>>|\.\.\.).*|\n\1\S.*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring whose examples are blocks of code.

    Args:
        text: without the indent of its first line.
    """
    return _EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
