"""Where versions are published while processes are killed: a folder, and S3 with faults.

Above it: publishing_kills.py. Below it: moto's S3 server in this process
(tests/reader/s3_server.py), whose answers are refused, cut off half way, or late; s3_server.py of
this folder, a real one.
"""

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from tests.torture.s3_server import missing_server, s3_server

_REFUSED, _CUT, _LATE = 0.02, 0.02, 0.05  # of requests
_LATE_SECONDS = 0.2
_OUTAGE = 0.002  # of requests, with which nothing is answered for a while
_OUTAGE_SECONDS = 6.0
_BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"


@dataclass(frozen=True)
class Place:
    """A destination.

    Args:
        url: of it.
        environment: that its users need.
        set_faults: turns its faults on or off.
        faults: that were made, by kind.
    """

    url: str
    environment: Mapping[str, str]
    set_faults: Callable[[bool], None] = lambda are_on: None
    faults: Counter[str] = field(default_factory=Counter)


def missing_place(name: str) -> str:
    """What is not installed that a place of this name needs; empty if all is there."""
    wanted: dict[str, tuple[str, ...]] = {
        "s3": ("moto", "s3fs", "boto3", "werkzeug"),
        "s3-server": ("s3fs",),
    }
    lacking = [one for one in wanted.get(name, ()) if find_spec(one) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return missing_server() if name == "s3-server" else ""


@contextmanager
def _folder(folder: Path, seed: int) -> Iterator[Place]:
    yield Place(str(folder / "pub"), {})


@contextmanager
def _s3(folder: Path, seed: int) -> Iterator[Place]:
    from tests.reader.s3_server import KEY, SECRET, Cut, Refused, S3Server, s3fs

    server, chance = S3Server(), random.Random(seed)
    faults: Counter[str] = Counter()
    are_on, over = False, 0.0

    def gate(request: Any) -> Refused | Cut | None:
        nonlocal over
        drawn = chance.random()
        if not are_on:
            return None
        if drawn < _OUTAGE:
            faults["outages"] += 1
            over = time.monotonic() + chance.random() * _OUTAGE_SECONDS
        if drawn < _OUTAGE + _REFUSED or time.monotonic() < over:
            faults["requests refused"] += 1
            return Refused("503 Slow Down", _BUSY)
        if drawn < _OUTAGE + _REFUSED + _CUT:
            faults["answers cut"] += 1
            return Cut()
        if drawn < _OUTAGE + _REFUSED + _CUT + _LATE:
            faults["answers late"] += 1
            time.sleep(chance.random() * _LATE_SECONDS)
        return None

    def set_faults(wanted: bool) -> None:
        nonlocal are_on, over
        are_on, over = wanted, 0.0

    environment = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server.client.create_bucket(Bucket="models")
    server.gate = gate
    try:
        with mock.patch.dict(os.environ, environment):
            yield Place("s3://models/ctr", environment, set_faults, faults)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.close()


@contextmanager
def _server(folder: Path, seed: int) -> Iterator[Place]:
    from s3fs import S3FileSystem

    with s3_server(folder) as found, mock.patch.dict(os.environ, found.of_s3fs()):
        try:
            yield Place(f"{found.url}/{uuid.uuid4().hex}/ctr", found.of_s3fs())
        finally:
            S3FileSystem.clear_instance_cache()


PLACES: dict[str, Callable[[Path, int], AbstractContextManager[Place]]] = {
    "folder": _folder,
    "s3": _s3,
    "s3-server": _server,
}
