"""Files of a chain of versions that were dropped, cut, changed or mixed up: each is found by name.

Above it: pytest. Below it: hps/publish.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.publish.destination import open_destination
from hps.publish.version import load_version
from tests.publish.publish_lab import a_server, keys_of, push, served

Harm = Callable[[Path], None]


def drop(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_the_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two histories, each of a base and two deltas."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("pub", "other"):
        with a_server(folder / f"store-{name}") as server:
            push(server, np.arange(200, dtype=np.uint64), 1.0)
            model = {"model": {}}
            server.publish(folder / name, model=model)
            for key in (7, 8):
                push(server, keys_of(key, key + 1000), 1.0)
                server.erase("ads", keys_of(key + 50))
                server.publish(folder / name, model=model)
    return folder


def files_of(place: Path) -> list[str]:
    return sorted(
        path.relative_to(place).as_posix()
        for path in place.rglob("*")
        if path.is_file() and not path.name.startswith("model.")
    )


def test_every_file_of_a_chain_is_missed_if_it_is_harmed(published: Path, tmp_path: Path) -> None:
    harms: list[Harm] = [drop, cut, flip_a_bit, flip_the_last_bit]
    names = files_of(published / "pub")
    assert len(names) == 8  # three versions, rows of a base, twice what changed and what went
    for number, name in enumerate(names):
        for harm in harms:
            if harm is drop and name == "version-00000003.json":
                continue  # then version 2 is the newest
            place = tmp_path / f"{number}-{harm.__name__}"
            shutil.copytree(published / "pub", place)
            harm(place / name)
            with pytest.raises((hps.CorruptionError, hps.ConfigError)) as raised:
                served(place, tmp_path / "cache")
            told = name if harm is not drop or "version" not in name else "version"
            assert told in str(raised.value), (name, harm.__name__)


def test_a_version_in_the_place_of_another_is_found(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    shutil.copy(place / "version-00000002.json", place / "version-00000003.json")
    with pytest.raises(hps.CorruptionError, match=r"version-00000003.json: it is the file of v"):
        served(place, tmp_path / "cache")


def test_versions_of_two_histories_are_not_mixed(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    shutil.copy(published / "other" / "version-00000002.json", place)
    with pytest.raises(hps.CorruptionError, match="versions of two histories are mixed"):
        served(place, tmp_path / "cache")


def test_data_of_another_version_is_found(published: Path, tmp_path: Path) -> None:
    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    second, third = sorted((place / "data").glob("0000000[23]-*"))
    shutil.copy(second / "changed-ads-0.arrow", third)
    with pytest.raises(hps.CorruptionError, match=r"changed-ads-0.arrow: it has .* bytes"):
        served(place, tmp_path / "cache")


def test_what_a_publisher_left_that_died_is_never_read_and_goes(
    published: Path, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    before = served(place, tmp_path / "a")
    (newest,) = (place / "data").glob("00000003-*")
    shutil.copytree(newest, place / "data" / "00000004-deadbeef")
    shutil.copytree(newest, place / "data" / "00000002-deadbeef")
    assert served(place, tmp_path / "b") == before
    with a_server(tmp_path / "store") as server:
        push(server, keys_of(1), 1.0)
        server.publish(place)
        push(server, keys_of(1), 1.0)
        server.publish(place)
    assert not list((place / "data").glob("*-deadbeef"))


def test_another_format_version_is_refused_with_the_hps_to_take(
    published: Path, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    path = place / "version-00000003.json"
    path.write_text(path.read_text().replace('"format_version":1', '"format_version":9'))
    with pytest.raises(hps.ConfigError, match="format version is 9, this hps reads 1"):
        served(place, tmp_path / "cache")


def test_names_that_lead_out_of_the_data_are_refused(published: Path, tmp_path: Path) -> None:
    import dataclasses

    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    version = load_version(open_destination(place), 3)
    path = place / "version-00000003.json"
    for folder in ("../victim", "", "/tmp", "data/00000003-deadbeef/..", "data"):
        path.write_bytes(dataclasses.replace(version, folder=folder).to_bytes())
        with pytest.raises(hps.CorruptionError, match="files that are no data of versions"):
            served(place, tmp_path / "cache")
    assert version.model is not None
    file = dataclasses.replace(version.model.about, name="data/00000001-deadbeef/../../x")
    model = dataclasses.replace(version.model, about=file)
    path.write_bytes(dataclasses.replace(version, model=model).to_bytes())
    with pytest.raises(hps.CorruptionError, match="files that are no data of versions"):
        served(place, tmp_path / "cache")


def test_a_version_with_other_fields_is_told_as_damage(published: Path, tmp_path: Path) -> None:
    import hashlib
    import json

    place = tmp_path / "pub"
    shutil.copytree(published / "pub", place)
    path = place / "version-00000003.json"
    value = json.loads(path.read_text())
    del value["checksum"], value["period"]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    value["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
    with pytest.raises(hps.CorruptionError, match="fields are not those of a version"):
        served(place, tmp_path / "cache")
