"""What is a URL; URLs as messages, checkpoints and reports may show them: without what lets others
in.

Above it: whatever tells or keeps the name of a log. Below it: nothing.
"""

import re

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z][A-Za-z0-9+.-]+:/"  # of a Path two slashes are one
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WORD = re.compile(rf"(?:{_SCHEME})\S*")
_PART = re.compile(rf"({_SCHEME})(.*)", re.DOTALL)
_PORT = re.compile(r":\d{1,5}$")
_VALUE = re.compile(r"([?&#;][^/?&#;=\s]+=)[^&#;]*")


def is_url(text: str) -> bool:
    """True of what names a file by a URL.

    >>> is_url("s3://bucket/day=1/part-0.parquet"), is_url("day-1.tsv"), is_url("C:/day")
    (True, False, False)
    """
    return _URL.match(text) is not None


def hidden_url(url: str) -> str:
    """A URL without names and passwords, and without the values of its query.

    A login ends at the last `@` before the first `/`. Of one with a password it ends at the last
    `@` of all, as keys with a `/` in them are often given as they are.

    >>> hidden_url("https://me:secret@host:80/a.csv?X-Amz-Signature=12ab&part=1")
    'https://host:80/a.csv?X-Amz-Signature=...&part=...'
    >>> hidden_url("s3://me:se/cr@et@bucket/x"), hidden_url("s3://bucket/day=?/me@home.csv")
    ('s3://bucket/x', 's3://bucket/day=?/me@home.csv')
    """
    # One may lie within another: zip://a.csv::https://host/logs.zip
    starts = sorted({0, *(found.end() for found in re.finditer(r"::(?=\w[\w+.-]*://)", url))})
    ends = [*starts[1:], len(url)]
    return "".join(_hidden(url[begin:end]) for begin, end in zip(starts, ends, strict=True))


def hidden_urls(text: str) -> str:
    """A text whose URLs, which end at a space, are as `hidden_url` has them.

    >>> hidden_urls("cannot read s3://me:secret@bucket/x: it is gone")
    'cannot read s3://bucket/x: it is gone'
    """
    return _WORD.sub(lambda found: hidden_url(found[0]), text)


def _hidden(url: str) -> str:
    found = _PART.search(url)
    if found is None:
        return url
    before, scheme, rest = url[: found.start()], found[1], found[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, _, host = authority.rpartition("@")
    if ":" in login or (":" in host and not _PORT.search(host)):  # a password may go on
        rest = _after_last_at(rest)
    else:
        rest = rest[len(authority) - len(host) :]
    if scheme.lower().startswith("http"):
        rest = re.sub(r"\?[^=&#]+(?=&|#|$)", "?...", rest, count=1)  # elsewhere `?` is a pattern
    return before + scheme + _VALUE.sub(r"\1...", rest)


def _after_last_at(rest: str) -> str:
    """What follows the login; a `?` before its end may be of the password, one after it is not."""
    query = re.search(r"\?[^/?&#;=\s@]+=", rest)
    end = len(rest) if query is None or "@" not in rest[: query.start()] else query.start()
    return rest[rest.rfind("@", 0, end) + 1 :]
