"""What tests of published versions share.

Above it: pytest. Below it: moto's S3 server.
"""

from collections.abc import Iterator

import pytest

from tests.publish.given_s3 import given_s3


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's server, or of the one that the environment names, by an URL; s3fs finds it
    as a user's does."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    given = given_s3()
    if given is not None:
        s3fs = pytest.importorskip("s3fs")
        for name, value in given.of_s3fs().items():
            monkeypatch.setenv(name, value)
        yield given.url
        s3fs.S3FileSystem.clear_instance_cache()
        return
    from tests.reader.s3_server import KEY, SECRET, S3Server, s3fs

    server = S3Server()
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server.client.create_bucket(Bucket="models")
    yield "s3://models"
    s3fs.S3FileSystem.clear_instance_cache()
    server.close()
