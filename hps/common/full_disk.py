"""What a full disk asks of its user: that depends on who called.

Above it: the command line, the service. Below it: the text of csrc/files/file_system.cc.
"""

import errno

from hps.errors import HpsError, StoreError

_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CALLER = ("free space and repeat the call", "make space and repeat the call")


def is_full_disk(error: HpsError) -> bool:
    """True if the disk had no room for what was asked."""
    return isinstance(error, StoreError) and error.errno in _ERRORS


def advise(text: str, advice: str) -> str:
    """The message of a full disk, for others than a program that has made the call itself.

    >>> advise("cannot write a: no space; free space and repeat the call", "repeat the command")
    'cannot write a: no space; repeat the command'
    """
    for words in _CALLER:
        text = text.replace(words, advice)
    return text
