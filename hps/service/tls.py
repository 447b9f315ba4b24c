"""TLS of the server, and the rule that no one listens to the world without it.

Above it: server.py. Below it: the certificate files; they are read again on reload(), so that a
renewed certificate serves new connections without a restart.
"""

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from hps.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of a server.

    Args:
        cert: its certificate, with those between it and the root.
        key: its private key.
        client_ca: roots of the clients' certificates; given, every client must show one.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class TlsCredentials:
    """The server's credentials; thread-safe.

    Raises:
        ConfigError: a file cannot be read or is no PEM, or the key is not the certificate's.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current = _read(files)

    def reload(self) -> None:
        """Takes the files as they are now, for connections from now on.

        Raises:
            ConfigError: see the class; the old ones stay.
        """
        self._current = _read(self._files)

    def credentials(self) -> grpc.ServerCredentials:
        """What grpc.Server.add_secure_port takes."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            lambda: self._current,
            require_client_authentication=self._files.client_ca is not None,
        )


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    texts = []
    for flag, path, word in (
        ("--tls-key", files.key, b"PRIVATE KEY"),
        ("--tls-cert", files.cert, b"CERTIFICATE"),
        ("--tls-client-ca", files.client_ca, b"CERTIFICATE"),
    ):
        if path is None:
            continue
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{flag} {path}: {error.strerror}") from error
        if b"-----BEGIN" not in text or word not in text:
            raise ConfigError(f"{flag} {path}: it holds no PEM of a {word.decode().lower()}")
        texts.append(text)
    try:
        pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair.load_cert_chain(files.cert, files.key, password=lambda: b"")  # else it asks for one
    except OSError as error:
        raise ConfigError(f"--tls-cert {files.cert}, --tls-key {files.key}: {error}") from error
    key, cert, *roots = texts
    return grpc.ssl_server_certificate_configuration(
        [(key, cert)], root_certificates=roots[0] if roots else None
    )


def split_address(flag: str, address: str) -> tuple[str, int]:
    """(host, port) of "127.0.0.1:50051" or "[::1]:50051".

    Raises:
        ConfigError: anything else.

    >>> split_address("--listen", "[::1]:0")
    ('::1', 0)
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{flag} {address!r}: write HOST:PORT, such as 127.0.0.1:50051")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True if a host's every address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, False, True)
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(
        ipaddress.ip_address(address.split("%")[0]).is_loopback for address in found
    )


def check_exposure(flag: str, host: str, has_tls: bool, allow_insecure: bool) -> None:
    """Refuses to listen beyond this machine without TLS.

    Raises:
        ConfigError: neither TLS nor permission to do without.
    """
    if not has_tls and not allow_insecure and not is_loopback(host):
        raise ConfigError(
            f"{flag} {host}: others can reach it, and without TLS they read rows and tokens on the "
            f"way; give --tls-cert and --tls-key, or --allow-insecure if the network is trusted"
        )
