"""docs/options.md, made of the declarations: python -m hps.options.page > docs/options.md.

Above it: the person who changes an option; a test compares. Below it: groups.py.
"""

from hps.options.declare import Option, options_of
from hps.options.groups import GROUPS

_TOP = """# The options of `hps train`

Made of their declarations in `hps/options/` by `python -m hps.options.page`, not written by hand.
Each is a flag of `hps train`, a key of the file that `--config` names (the flag without its
dashes), and a field of `hps.train.TrainOptions` in Python. The command line wins over the file;
the second flag of a switch gives the default again, and is no key of the file, where `false` does.
A whole number may be written 2000000, 2_000_000 or 2e6.
`hps models STORE --show TAG` prints those that a stored model was trained with. How they go
together: `docs/training.md`.
"""
_HEAD = """
| flag | in Python | default | values | what it is |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page, in Markdown."""
    text = _TOP
    for title, groups in GROUPS.items():
        text += f"\n## {title[0].upper()}{title[1:]}\n{_HEAD}"
        for group in groups:
            text += "".join(_row(name, default, one) for name, default, one in options_of(group))
    return text


def _row(name: str, default: object, option: Option) -> str:
    flags = option.flags or (option.flag(name),)
    opposite = option.opposite(name)
    flags = flags if opposite is None else (*flags, opposite)
    if option.many == "*":
        flags = (option.metavar,)
    help = option.help.replace("%(default)s", str(default))
    if option.off_help:
        help = f"{help}; {flags[1]}: {option.off_help}"
    shown = "" if default == () else f"`{default!r}`"
    cells = (", ".join(f"`{flag}`" for flag in flags), f"`{name}`", shown, _values(option), help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _values(option: Option) -> str:
    what = ", ".join(f"`{one}`" for one in option.choices) or option.kind.wanted
    return f"several: each {what}" if option.many else what


if __name__ == "__main__":
    print(page(), end="")
