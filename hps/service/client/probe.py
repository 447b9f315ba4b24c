"""A second look at a server that gRPC cannot connect to: whether the two sides differ in TLS.

Above it: transport.py. Below it: one connection of Python's own. gRPC tells its last failure
again for a second, whatever has become of the server since; and it says "Socket closed" of a server
that wants another form of TLS as of one that is just being stopped.
"""

import socket
import ssl

from hps.errors import ConfigError
from hps.service.client.errors import hint_of
from hps.service.client.options import TlsConfig
from hps.service.messages.addresses import split_address

_SECONDS = 1.0  # for the connection, and for each answer
_OTHER_NAME = (62, 64)  # what OpenSSL calls a certificate of another host, of another IP address
_WANTS_TLS = "the server talks TLS: give --tls-ca FILE or --tls (TlsConfig)"
_WANTS_CERTIFICATE = (
    "the server takes only clients with a certificate that it trusts: give --tls-cert and "
    "--tls-key (TlsConfig(cert=, key=)), signed by its --tls-client-ca and not out of date"
)


def tls_difference(address: str, tls: TlsConfig | None) -> str:
    """What has to be changed about TLS, in words; empty if nothing has, or if it does not show.

    Args:
        address: "host:port" of the server.
        tls: of the client; None for one without TLS.

    Cost: a connection, or two; a second at most for each step of one.
    """
    found = _look(address, tls)
    # A server that is just being stopped ends connections, too, but takes no further one.
    return _look(address, tls) if found == _WANTS_CERTIFICATE else found


def _look(address: str, tls: TlsConfig | None) -> str:
    try:
        context = _context(tls)
    except ssl.SSLError:
        return hint_of("Failed to create security handshaker", has_tls=True)
    except OSError:  # the channel has read these files when it was made
        return ""
    try:
        host, port = split_address("address", address)
        name = host if tls is None or tls.server_name is None else tls.server_name
        with (
            socket.create_connection((host, port), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False) as wrapped,
        ):
            return _WANTS_TLS if tls is None else _after_handshake(wrapped)
    except ssl.SSLCertVerificationError as error:
        is_other = error.verify_code in _OTHER_NAME
        return hint_of("Hostname Verification" if is_other else str(error), has_tls=True)
    except ssl.SSLError as error:
        return "" if tls is None else hint_of(str(error), has_tls=True)
    except (OSError, ConfigError):
        return ""
    except (ValueError, TypeError):  # a name that no host can have
        return "" if tls is None else hint_of("Hostname Verification", has_tls=True)


def _context(tls: TlsConfig | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls is None:
        context.check_hostname = False  # nothing is told to the server: it matters that it answers
        context.verify_mode = ssl.CERT_NONE
        return context
    if tls.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(tls.ca)
    if tls.cert is not None and tls.key is not None:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")  # else it asks for one
    return context


def _after_handshake(wrapped: ssl.SSLSocket) -> str:
    """A server that lets the client in speaks first. One that does not says so, or, as gRPC does,
    ends the connection without a word; a proxy that has no server behind it takes its leave."""
    try:
        wrapped.recv(1)
    except TimeoutError:
        return ""
    except ssl.SSLError:
        return _WANTS_CERTIFICATE
    return ""
