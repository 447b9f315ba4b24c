"""The rules of a table as the native core takes them.

Above it: parameter_server/tables.py and life.py, row_checks.py beside it. Below it:
hps/common/expiry.py, hps._C.LifeRules, which holds the arithmetic.
"""

from hps import _C
from hps.common.expiry import Expiry


def native_rules(expiry: Expiry) -> _C.LifeRules:
    """With the powers of its decay, 256 KiB.

    >>> import numpy as np
    >>> rules = native_rules(Expiry(unseen=30, min_score=0.8))
    >>> show, click = np.array([8, 9], np.float32), np.zeros(2, np.float32)
    >>> rules.dies_at(show, click, np.zeros(2, np.uint32)).tolist()
    [1, 6]
    """
    return _C.LifeRules(
        unseen=_C.MAX_GAP if expiry.unseen is None else expiry.unseen,
        min_score=0.0 if expiry.min_score is None else expiry.min_score,
        decay=expiry.decay,
        nonclick=expiry.nonclick,
        click=expiry.click,
    )
