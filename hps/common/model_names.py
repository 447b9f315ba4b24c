"""How models are named: those that hps has, and a user's own as `file.py:Class`; and the tables of
two-level rows.

Above it: `hps.models`; the options of `hps train`, which know it without torch. Below it: nothing.
"""

KINDS = ("deepfm", "dlrm", "wide_deep", "dcn_v2", "lr", "fm", "autoint", "din")
OWN = "file.py:Class"
_FIRST_ORDER = ".first_order"


def own_model(kind: object) -> tuple[str, str] | None:
    """The file and the class that a name gives; None of what is no such name.

    >>> own_model("models/mine.py:Mine")
    ('models/mine.py', 'Mine')
    >>> own_model("deepfm") is None
    True
    """
    if not isinstance(kind, str):
        return None
    file, _, name = kind.rpartition(":")
    return (file, name) if file.endswith(".py") and name.isidentifier() else None


def first_order_table(table: str) -> str:
    """The table of the first-order weights that go with a table of vectors.

    >>> first_order_table("ads")
    'ads.first_order'
    """
    return table + _FIRST_ORDER
