"""What a client is told is checked before it connects.

Above it: pytest. Below it: hps/service/client/options.py.
"""

from pathlib import Path
from typing import Any

import pytest

import hps
from hps.service.client.options import ClientConfig, parse_addresses


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"addresses": []}, "must be a list"),
        ({"addresses": "a:1"}, "must be a list"),
        ({"addresses": ["a"]}, "must be 'host:port'"),
        ({"addresses": ["a:x"]}, "must be 'host:port'"),
        ({"addresses": ["http://a:1"]}, "this is a URL"),
        ({"addresses": ["a:0"]}, "from 1 to 65535"),
        ({"addresses": ["a:65536"]}, "from 1 to 65535"),
        ({"token": "two\nlines"}, "token: .* visible ASCII"),
        ({"token": ""}, "token: .* visible ASCII"),
        ({"token": "w\u00f6rter"}, "token: .* visible ASCII"),
        ({"addresses": ["a:1", "a:1"]}, "names a shard twice"),
        ({"client_id": "no spaces"}, "client_id"),
        ({"client_id": "x" * 65}, "client_id"),
        ({"deadline": 0}, "deadline"),
        ({"wire": "float8"}, "must be one of"),
        ({"push_wire": "int4"}, "must be one of"),
        ({"wire": "float8", "push_wire": "float32"}, "must be one of"),
        ({"allow_insecure": 1}, "allow_insecure"),
        ({"window": 0}, "window"),
        ({"tls": "ca.pem"}, r"hps\.TlsConfig"),
    ],
)
def test_field_outside_its_limits_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(hps.ConfigError, match=words):
        ClientConfig(**{"addresses": ["a:1"], **fields})


def test_clients_without_a_name_get_one_each() -> None:
    names = {ClientConfig(addresses=["a:1"]).client_id for _ in range(10)}
    assert len(names) == 10


def test_files_of_tls_come_in_pairs_and_are_there(tmp_path: Path) -> None:
    with pytest.raises(hps.ConfigError, match="give both"):
        hps.TlsConfig(cert="c.pem")
    with pytest.raises(hps.ConfigError, match="cannot be read"):
        hps.TlsConfig(ca=tmp_path / "none.pem").read()
    (tmp_path / "ca.pem").write_bytes(b"x")
    assert hps.TlsConfig(ca=tmp_path / "ca.pem").read() == (b"x", None, None)


def test_addresses_of_the_command_line() -> None:
    assert parse_addresses("a:1,b:2 ,") == ["a:1", "b:2"]
