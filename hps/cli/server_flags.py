"""The flags that say where servers are and who asks: `--server`, `--token`, `--tls-ca` and others.

Above it: `hps train`, `hps evaluate`, `hps client`. Below it: hps.service.client.options.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hps.cli import flags
from hps.common.wire_format import WIRES
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.service.client.options import ClientConfig


def add_server_flags(parser: flags.Flags, required: bool = False) -> None:
    """Adds the flags of servers of rows to a parser or a group of one."""
    add = parser.add_argument
    add(
        "--server",
        required=required,
        type=flags.word,
        metavar="HOST:PORT,...",
        help="the servers that hold the rows, in the order of their shards",
    )
    add(
        "--client-id",
        type=flags.word,
        metavar="NAME",
        help="name of this client: 1 to 64 letters, digits, '_', '.', '-'; a second client of the "
        "same name ends the session of the first; if not given, a new unique name",
    )
    add_credential_flags(parser)
    add("--wire", choices=WIRES, default="float32", help="format of rows; see docs/clients.md")
    add("--push-wire", choices=WIRES, help="format of gradients; if not given, that of --wire")


def add_model_server_flags(parser: flags.Flags) -> None:
    """Adds those of `hps serve-model` to a group of a parser; `client_config` takes them, too."""
    text = "gRPC address of a running 'hps serve-model'"
    parser.add_argument("--server", type=flags.word, metavar="HOST:PORT", help=text)
    add_credential_flags(parser)


def add_credential_flags(parser: flags.Flags) -> None:
    """Adds the flags that say who asks, and how long an answer may take."""
    add = parser.add_argument
    add("--token", type=flags.path, metavar="FILE", help="file that holds a bearer token")
    add("--tls", action="store_true", help="use TLS; trust the system's authorities")
    add("--tls-ca", type=flags.path, metavar="FILE", help="use TLS; trust this authority (PEM)")
    add(
        "--tls-cert",
        type=flags.path,
        metavar="FILE",
        help="use TLS; this client's certificate (PEM), with --tls-key",
    )
    add("--tls-key", type=flags.path, metavar="FILE", help="key of --tls-cert (PEM)")
    add(
        "--tls-name",
        type=flags.word,
        metavar="NAME",
        help="use TLS; the name in the servers' certificates, if it is not HOST",
    )
    add(
        "--allow-insecure",
        action="store_true",
        help="send the token to other machines without TLS; for trusted networks only",
    )
    add(
        "--deadline",
        type=flags.number(above=0),
        default=60.0,
        metavar="SECONDS",
        help="deadline of a call, retries included; above 0",
    )


def client_config(options: argparse.Namespace) -> "ClientConfig | None":
    """What the flags describe; None without `--server`.

    Raises:
        ConfigError: flags of a server without one, a bad address, an empty token.
    """
    known = ("client_id", "token", "tls_ca", "tls_cert", "tls_key", "tls_name", "push_wire")
    names = [name for name in known if hasattr(options, name)]
    if options.server is None:
        given = [name for name in names if getattr(options, name) is not None]
        given += [name for name in ("tls", "allow_insecure") if getattr(options, name)]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} needs --server")
        return None
    from hps.service.client.options import ClientConfig, TlsConfig, parse_addresses

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
    of_rows = ("client_id", "wire", "push_wire")
    return ClientConfig(
        addresses=parse_addresses(options.server),
        token=None if options.token is None else read_token(options.token),
        tls=tls,
        deadline=options.deadline,
        allow_insecure=options.allow_insecure,
        **{name: getattr(options, name) for name in of_rows if hasattr(options, name)},
    )


def read_token(path: Path, flag: str = "--token") -> str:
    """The token that a file holds.

    Raises:
        ConfigError: it cannot be read, or holds none; names the flag.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"{flag} {path}: {reason}; name a file that holds the token, not the token itself"
        ) from error
    if not token:
        raise ConfigError(f"{flag} {path}: the file holds no token")
    return token
