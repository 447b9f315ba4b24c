"""The list of decisions, one line each: its title, and its first sentence.

Above it: pages.py. Below it: docs/decisions/.
"""

import re
from collections.abc import Mapping

_TOP = """# Decisions

Why hps is built as it is: each page says what was measured, what was chosen and what was left. The
number is the order in which they were made.

| number | decision | in a sentence |
| --- | --- | --- |
"""


def page(texts: Mapping[str, str]) -> str:
    """The page, in Markdown.

    Args:
        texts: place of a decision -> its Markdown.
    """
    lines = []
    for place, text in sorted(texts.items()):
        name = place.rpartition("/")[2]
        first, _, rest = text.partition("\n")
        title = re.sub(r"^# (\d{4}:? )?", "", first)
        title = title[0].upper() + title[1:]
        sentence = _first_sentence(rest).replace("|", "\\|")
        lines.append(f"| {name[:4]} | [{title}]({name}) | {sentence} |\n")
    return _TOP + "".join(lines)


def _first_sentence(text: str) -> str:
    """Of the first paragraph, or line of a list, that is prose."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.removeprefix("- ").split())
        if words and words[0] not in "#|`!>":
            return re.split(r"(?<=[.:])\s+(?=[A-Z`])", words)[0].rstrip(":")
    raise ValueError(f"a decision without a sentence: {text[:60]!r}")
