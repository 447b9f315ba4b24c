"""A second look at a server that closes the connection: whether it is TLS that the sides differ in.

Above it: client_transport.py, after gRPC could not connect and tells no more than that. Below it:
one connection of Python's own. A server that stops closes connections, too; only one that finishes
a TLS handshake shows what it wants.
"""

import socket
import ssl

from hps.errors import ConfigError
from hps.service.addresses import split_address
from hps.service.client_options import TlsConfig

_SECONDS = 1.0  # for the connection, and for each answer
_WANTS_TLS = "the server talks TLS: give --tls-ca FILE or --tls (TlsConfig)"
_WANTS_CERTIFICATE = (
    "the server takes only clients with a certificate that it trusts: give --tls-cert and "
    "--tls-key (TlsConfig(cert=, key=)), signed by its --tls-client-ca"
)


def tls_difference(address: str, tls: TlsConfig | None) -> str:
    """What the client has to change about TLS, in words; empty if this does not show.

    Args:
        address: "host:port" of the server.
        tls: of the client; None for one without TLS.

    Cost: a connection; a second at most for each of its steps.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # gRPC has tried that; nothing is told to the server here
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        host, port = split_address("address", address)
        if tls is not None and tls.cert is not None and tls.key is not None:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")  # else it asks for one
        with socket.create_connection((host, port), _SECONDS) as plain:
            name = host if tls is None or tls.server_name is None else tls.server_name
            with context.wrap_socket(plain, server_hostname=name) as wrapped:
                return _WANTS_TLS if tls is None else _after_handshake(wrapped)
    except (OSError, ConfigError):
        return ""


def _after_handshake(wrapped: ssl.SSLSocket) -> str:
    """A server that lets the client in speaks first; one that does not ends the connection."""
    try:
        return "" if wrapped.recv(1) else _WANTS_CERTIFICATE
    except TimeoutError:
        return ""
    except ssl.SSLError:  # an alert
        return _WANTS_CERTIFICATE
