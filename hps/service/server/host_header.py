"""names_this_machine(): whether a request asks for this machine, by its Host header.

Above it: metrics_http.py, hps/dashboard/server.py. Below it: nothing of hps. Pages of others, whose
names an attacker leads to an address of this machine, are to read nothing of what it serves without
tokens.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit


def names_this_machine(given: str | None, own: str) -> bool:
    """True of a Host header that names this machine; of none, for browsers send one.

    Args:
        given: the header.
        own: the host that is listened on.

    >>> names_this_machine("127.0.0.1:9200", "127.0.0.1"), names_this_machine("x.example", "::1")
    (True, False)
    """
    if given is None:
        return True
    try:
        host = urlsplit(f"//{given.strip()}").hostname or ""
        if host in (own, "localhost") or host.endswith(".localhost"):
            return True
        return ip_address(host).is_loopback
    except ValueError:
        return False
