"""The flags that say where servers are and who asks: `--server`, `--token`, `--tls-ca` and others.

Above it: `hps train`, `hps evaluate`, `hps client`. Below it: hps.service.client_options.
"""

import argparse
from pathlib import Path
from typing import Any

from hps.errors import ConfigError
from hps.service.client_options import ClientConfig, TlsConfig, parse_addresses


def add_server_flags(parser: Any, required: bool = False) -> None:
    """Adds the flags to a parser or a group of one."""
    parser.add_argument(
        "--server",
        default=None,
        required=required,
        metavar="HOST:PORT,...",
        help="the servers that hold the rows, in the order of their shards",
    )
    parser.add_argument(
        "--client-id",
        default=None,
        help="names this client; a second one of that name ends the first's session",
    )
    parser.add_argument(
        "--token", type=Path, default=None, metavar="FILE", help="file that holds a bearer token"
    )
    parser.add_argument(
        "--tls", action="store_true", help="talk TLS; certificates the system knows"
    )
    parser.add_argument(
        "--tls-ca", type=Path, default=None, metavar="FILE", help="TLS; who signed the certificates"
    )
    parser.add_argument(
        "--tls-cert", type=Path, default=None, metavar="FILE", help="TLS; this client's certificate"
    )
    parser.add_argument(
        "--tls-key", type=Path, default=None, metavar="FILE", help="TLS; this client's key"
    )
    parser.add_argument(
        "--tls-name", default=None, help="TLS; the servers' name, if not the host's"
    )
    parser.add_argument(
        "--allow-insecure",
        action="store_true",
        help="send the token without TLS beyond this machine, in a network that is trusted",
    )
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds for a call, retries included"
    )
    parser.add_argument(
        "--wire", default="float32", help="of rows: float32, float16, bfloat16 or int8"
    )
    parser.add_argument("--push-wire", default=None, help="of gradients; as --wire if not given")


def client_config(options: argparse.Namespace) -> ClientConfig | None:
    """What the flags describe; None without `--server`.

    Raises:
        ConfigError: flags of a server without one, a bad address, an empty token.
    """
    names = ("client_id", "token", "tls_ca", "tls_cert", "tls_key", "tls_name", "push_wire")
    if options.server is None:
        given = [name for name in names if getattr(options, name) is not None]
        given += [name for name in ("tls", "allow_insecure") if getattr(options, name)]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} goes with --server")
        return None
    has_tls = options.tls or any(
        getattr(options, name) is not None for name in names if name.startswith("tls")
    )
    tls = None
    if has_tls:
        tls = TlsConfig(
            ca=options.tls_ca,
            cert=options.tls_cert,
            key=options.tls_key,
            server_name=options.tls_name,
        )
    return ClientConfig(
        addresses=parse_addresses(options.server),
        client_id=options.client_id,
        token=None if options.token is None else _token(options.token),
        tls=tls,
        deadline=options.deadline,
        wire=options.wire,
        push_wire=options.push_wire,
        allow_insecure=options.allow_insecure,
    )


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            f"--token {path}: {reason}; name a file that holds the token, not the token itself"
        ) from error
    if not token:
        raise ConfigError(f"--token {path}: the file holds no token")
    return token
