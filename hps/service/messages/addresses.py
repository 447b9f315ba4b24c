"""Addresses: HOST:PORT taken apart, and what others could read there without TLS.

Above it: the server's options and service/server/tls.py, the client's options. Below it: the
system's resolver.
"""

import ipaddress
import socket
from collections.abc import Mapping

from hps.errors import ConfigError


def split_address(flag: str, address: str, example: str = "127.0.0.1:50051") -> tuple[str, int]:
    """(host, port) of "127.0.0.1:50051" or "[::1]:50051".

    Raises:
        ConfigError: anything else.

    >>> split_address("--listen", "[::1]:0")
    ('::1', 0)
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon and address and not address.isdecimal():
        raise ConfigError(f"{flag} {address!r}: the port is missing; write HOST:PORT, as {example}")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{flag} {address!r}: write HOST:PORT, such as {example}")
    return host, int(port)


def check_free(addresses: Mapping[str, str | None]) -> None:
    """Refuses addresses that cannot be listened on now, so that this is told before a store is
    opened or a model loaded; the server's own listening has the last word.

    Args:
        addresses: flag -> HOST:PORT; None for one that was not given.

    Raises:
        ConfigError: names the flag and the system's reason.
    """
    for flag, address in addresses.items():
        if address is None:
            continue
        host, port = split_address(flag, address)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            raise ConfigError(
                f"{flag} {address}: cannot listen there: {error.strerror or error}; check whether "
                "another server uses this port, or give another one"
            ) from error


def is_loopback(host: str) -> bool:
    """True if a host's every address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, False, True)
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    return bool(found) and all(
        ipaddress.ip_address(address.split("%")[0]).is_loopback for address in found
    )


def check_exposure(flag: str, host: str, what: str, *, has_tls: bool, allow_insecure: bool) -> None:
    """Refuses to listen beyond this machine without TLS.

    Args:
        flag, host: where.
        what: others could read on the way, or there.
        has_tls, allow_insecure: of the server.

    Raises:
        ConfigError: neither TLS nor permission to do without.
    """
    if not has_tls and not allow_insecure and not is_loopback(host):
        raise ConfigError(
            f"{flag} {host}: other machines can reach it, and can read {what} without TLS; give "
            f"--tls-cert and --tls-key, or --allow-insecure if the network is trusted, or listen "
            f"on 127.0.0.1"
        )
