"""An S3 server that the environment names, for the tests of destinations, instead of moto's.

Above it: test_destinations.py, tests/torture. Below it: the environment. HPS_TEST_S3_ENDPOINT is
its URL, HPS_TEST_S3_KEY and HPS_TEST_S3_SECRET are credentials, HPS_TEST_S3_BUCKET is a bucket that
is there, in which tests make folders of names that no other has.
"""

import os
from dataclasses import dataclass

ENDPOINT, KEY = "HPS_TEST_S3_ENDPOINT", "HPS_TEST_S3_KEY"
SECRET, BUCKET = "HPS_TEST_S3_SECRET", "HPS_TEST_S3_BUCKET"


@dataclass(frozen=True)
class GivenS3:
    """A server, by its endpoint, credentials and a bucket."""

    endpoint: str
    key: str
    secret: str
    bucket: str

    @property
    def url(self) -> str:
        """Of the bucket."""
        return f"s3://{self.bucket}"

    def of_s3fs(self) -> dict[str, str]:
        """The environment by which s3fs, as a user's, finds it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def of_tests(self) -> dict[str, str]:
        """The environment by which `given_s3` finds it."""
        values = (self.endpoint, self.key, self.secret, self.bucket)
        return dict(zip((ENDPOINT, KEY, SECRET, BUCKET), values, strict=True))


def given_s3() -> GivenS3 | None:
    """The server that the environment names; None where it names none.

    Raises:
        KeyError: it names an endpoint, and not all of the rest.
    """
    if not os.environ.get(ENDPOINT):
        return None
    return GivenS3(*(os.environ[name] for name in (ENDPOINT, KEY, SECRET, BUCKET)))
