"""What a URL hides, in a URL and in a text.

Above it: pytest. Below it: hps/common/url_text.py.
"""

import pytest

from hps.common.url_text import hidden_url, hidden_urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host/a.csv", "https://host/a.csv"),
        ("https://token@host/x", "https://host/x"),
        ("s3://me:se/cret@b", "s3://b"),
        ("s3://me:se@cret@b", "s3://b"),
        ("s3://me:se@cr/et@b/x", "s3://b/x"),
        ("s3://me:se?c=ret@b/x", "s3://b/x"),
        ("s3://:secret@b/x", "s3://b/x"),
        ("https://me:se cret@host/a", "https://host/a"),
        ("https://mé:gehéim@hóst/ä.csv", "https://hóst/ä.csv"),
        ("HTTPS://me:secret@[::1]:80/x", "HTTPS://[::1]:80/x"),
        ("https:/me:secret@host/x", "https:/host/x"),
        ("https://h/x?X-Amz-Signature=12ab%2F&part=1", "https://h/x?X-Amz-Signature=...&part=..."),
        ("https://me:s@h/x?sig=a@b/c", "https://h/x?sig=..."),
        ("https://h/x?secret", "https://h/x?..."),
        ("https://h/x#access_token=secret", "https://h/x#access_token=..."),
        ("zip://a.csv::https://me:secret@h/l.zip", "zip://a.csv::https://h/l.zip"),
        ("simplecache::s3://me:secret@b/x", "simplecache::s3://b/x"),
        ("--valid=s3://me:secret@b/x", "--valid=s3://b/x"),
    ],
)
def test_what_lets_others_in_is_hidden(url: str, shown: str) -> None:
    assert hidden_url(url) == shown
    assert hidden_url(shown) == shown


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.csv", "/logs/me@home.csv", "C:/me@home.csv", "me:x@home", "a?b=c", "-", "µ ¿@"),
        "s3://bucket/day=?/me@home.csv",
        "s3://bucket/part-?.csv",
        "https://host:9000/me@home.csv",
        "file:///logs/me@home.csv",
        "memory://a/b*",
    ],
)
def test_what_hides_nothing_stays(url: str) -> None:
    assert hidden_url(url) == url and hidden_urls(url) == url


def test_a_text_keeps_what_is_around_its_urls() -> None:
    text = "'https://me:secret@h/x', s3://t@b/y: gone; mail me@home"
    assert hidden_urls(text) == "'https://h/x', s3://b/y: gone; mail me@home"
