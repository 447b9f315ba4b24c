"""TLS of the server: its certificate files, as gRPC takes them and as Python does.

Above it: front.py, metrics_http.py. Below it: the files; they are read again on reload(), so that
a renewed certificate serves new connections without a restart.
"""

import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from hps.errors import ConfigError

# Longer than gRPC takes from asking for a renewed certificate to having its handshake, or to having
# put that certificate in place.
_SETTLE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of a server.

    Args:
        cert: its certificate, with those between it and the root.
        key: its private key.
        client_ca: roots of the clients' certificates; given, every client must show one.
        flags: how the flags begin that name the files, for errors.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    flags: str = "--tls"


class TlsCredentials:
    """The credentials of a server's port; thread-safe.

    Raises:
        ConfigError: a file cannot be read or is no PEM, or the key is not the certificate's.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._first = _read(files)
        self._renewed: grpc.ServerCertificateConfiguration | None = None
        self._turn = threading.Lock()
        self._settled_at = 0.0

    def reload(self) -> None:
        """Takes the files as they are now, for connections from now on.

        Raises:
            ConfigError: see the class; the old ones stay.
        """
        renewed = _read(self._files)
        with self._turn:
            self._renewed = renewed

    def credentials(self) -> grpc.ServerCredentials:
        """What grpc.Server.add_secure_port takes."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._fetch,  # type: ignore[arg-type]  # the stubs lack None, for no change
            require_client_authentication=self._files.client_ca is not None,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks for before each handshake: a renewed certificate, once; else None.

        gRPC replaces a certificate without a lock, and frees the old one while other threads take
        it for their handshakes (grpcio 1.78 to 1.85): connections that came and went at the same
        time ended the server. So the renewed one is given while nobody else is on the way from this
        question to his handshake: who has asked before has had the time, and who asks now waits.
        """
        with self._turn:
            time.sleep(max(self._settled_at - time.monotonic(), 0.0))
            renewed, self._renewed = self._renewed, None
            if renewed is not None:
                time.sleep(_SETTLE_SECONDS)
                self._settled_at = time.monotonic() + _SETTLE_SECONDS
            return renewed


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    texts = []
    for flag, path, word in (
        (f"{files.flags}-key", files.key, b"PRIVATE KEY"),
        (f"{files.flags}-cert", files.cert, b"CERTIFICATE"),
        (f"{files.flags}-client-ca", files.client_ca, b"CERTIFICATE"),
    ):
        if path is None:
            continue
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{flag} {path}: {error.strerror}") from error
        if b"-----BEGIN" not in text or word not in text:
            raise ConfigError(f"{flag} {path}: it contains no PEM {word.decode().lower()}")
        texts.append(text)
    server_context(files)  # which looks whether they belong together
    key, cert, *roots = texts
    return grpc.ssl_server_certificate_configuration(
        [(key, cert)], root_certificates=roots[0] if roots else None
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For Python's own sockets, with the same rules.

    Raises:
        ConfigError: a file cannot be used, or the key is not the certificate's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: b"")  # else it asks for one
    except OSError as error:
        named = f"{files.flags}-cert {files.cert}, {files.flags}-key {files.key}"
        raise ConfigError(f"{named}: {error}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise ConfigError(f"{files.flags}-client-ca {files.client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
