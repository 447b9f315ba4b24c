"""PublishPlaces: where a server may write versions to, as whoever runs it has said.

Above it: the server, `hps serve --publish-to`. Below it: nothing.
"""

from collections.abc import Sequence

from hps.common.url_text import hidden_url, is_url
from hps.errors import ConfigError

_MOST_BYTES = 2048
_LOCAL = ("file", "local")
_REFUSED = ("?", "#", "::", "\\", "\0")  # queries, a place within another one, other separators


class PublishPlaces:
    """Prefixes of places; a place lies below one of them, part by part.

    Args:
        prefixes: URLs, or absolute paths of this machine; none: nothing may be written.

    Raises:
        ConfigError: one that is neither.

    >>> places = PublishPlaces(["s3://bucket/ctr", "/srv/models"])
    >>> places.check("s3://bucket/ctr/day-1"), places.check("file:///srv/models")
    ('s3://bucket/ctr/day-1', '/srv/models')
    """

    def __init__(self, prefixes: Sequence[str] = ()) -> None:
        self._prefixes = [_plain(prefix, "--publish-to") for prefix in prefixes]

    def check(self, place: str) -> str:
        """A place that may be written to, as `open_destination` takes it.

        Raises:
            ConfigError: it is none of those; names them.
        """
        if not self._prefixes:
            raise ConfigError(
                "this server publishes nowhere; start it with 'hps serve --publish-to URL', the "
                "place, or what it begins with"
            )
        plain = _plain(place, "publish")
        if not any(_is_below(plain, prefix) for prefix in self._prefixes):
            allowed = ", ".join(self._prefixes)
            raise ConfigError(
                f"publish: {plain} is not among the places that this server may write to "
                f"(--publish-to): {allowed}"
            )
        return plain


def _is_below(place: str, prefix: str) -> bool:
    return place == prefix or place.startswith(prefix.rstrip("/") + "/")


def _plain(place: str, what: str) -> str:
    """Without a slash at its end; a local URL as a path. No part of it leads elsewhere."""
    shown = hidden_url(place)[:_MOST_BYTES]
    if len(place.encode(errors="replace")) > _MOST_BYTES:
        raise ConfigError(f"{what}: a place of more than {_MOST_BYTES} bytes: {shown[:80]}...")
    if shown.rstrip("/") != place.rstrip("/"):
        raise ConfigError(
            f"{what}: {shown}: a server takes no login and no query from a URL; give it "
            "credentials in its environment"
        )
    scheme, _, rest = place.partition("://") if is_url(place) else ("", "", place)
    if scheme.lower() in _LOCAL:
        scheme, rest = "", "/" + rest.lstrip("/")
    parts = rest.strip("/").split("/")
    is_odd = any(part in ("", ".", "..") for part in parts) and rest != "/"
    if is_odd or any(mark in rest for mark in _REFUSED) or not (scheme or rest.startswith("/")):
        raise ConfigError(
            f"{what}: {shown!r} must be a URL such as s3://bucket/ctr, or an absolute path of the "
            "server's machine, without '.', '..' or empty parts"
        )
    return f"{scheme.lower()}://{rest.rstrip('/')}" if scheme else rest.rstrip("/") or "/"
