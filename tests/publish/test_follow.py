"""A model that follows what is published: each call is scored by one version, whole.

Above it: pytest. Below it: hps.Model, follower.py, `hps publish`, `hps predict --model`.
"""

import json
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.checkpoint.blobs import table_to_json
from hps.cli.main import main
from hps.publish.destination import open_destination
from hps.publish.version import PublishedTable, chain_of
from hps.train import TrainOptions, published_rows, train
from hps.train.published_rows import PublishedRows, local_table
from tests.publish.publish_lab import (
    SMALL,
    copy_up_to,
    publish_days,
    scores_of,
    show,
    wait_for,
)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    publish_days(folder)
    return folder


@pytest.fixture
def batch(days: Path) -> hps.Batch:
    with hps.Model.load(days / "store") as model:
        return next(iter(model.open_reader([days / "day-3.libsvm"], batch_size=200)))


def test_each_version_scores_as_its_checkpoint_does(days: Path, batch: hps.Batch) -> None:
    expected = scores_of(days, batch)
    assert not torch.equal(expected["1"], expected["3"])
    for number in (1, 2, 3):
        with hps.Model.load(days / "pub", version=number) as model:
            scores, version = model.predict_with_version(batch)
            assert version == model.version == str(number)
            assert torch.equal(scores, expected[version])
    with hps.Model.load(days / "pub") as model:
        assert model.version == "3" and "version 3" in repr(model)


def test_calls_beside_new_versions_are_each_of_one(
    days: Path, batch: hps.Batch, tmp_path: Path
) -> None:
    expected = scores_of(days, batch)
    copy_up_to(days, tmp_path / "pub", 1)
    seen: set[str] = set()
    wrong: list[str] = []
    over = threading.Event()
    with hps.Model.load(tmp_path / "pub", follow=True, poll_seconds=0.01) as model:

        def ask() -> None:
            while not over.is_set():
                scores, version = model.predict_with_version(batch)
                seen.add(version)
                if not torch.equal(scores, expected[version]):
                    wrong.append(version)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in (2, 3):
                wait_for(lambda number=number: str(number - 1) in seen)  # type: ignore[misc]
                show(days, tmp_path / "pub", number)
                wait_for(lambda number=number: str(number) in seen)  # type: ignore[misc]
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        assert not wrong and seen == {"1", "2", "3"}
        assert model.following()["error"] is None and model.following()["is_following"]


def test_calls_are_of_the_new_version_before_its_rows_lie_in_the_store(
    days: Path, batch: hps.Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None waits for the rows, and one that has begun is of the version before to its end."""
    expected, place = scores_of(days, batch), tmp_path / "pub"
    copy_up_to(days, place, 1)
    may_go_on, is_half = threading.Event(), threading.Event()

    def pause() -> None:
        is_half.set()
        assert may_go_on.wait(60)

    monkeypatch.setattr(published_rows, "_READ_PIECE", 50)
    monkeypatch.setattr(published_rows, "_pause", pause)
    with hps.Model.load(place, follow=True, poll_seconds=0.01) as model:
        (table,) = model.server.tables
        keys = batch.features[table].keys_L
        old = model.lookup(table, keys)
        with model._current.reading() as before:
            show(days, place, 2)
            wait_for(lambda: model.version == "2")
            assert torch.equal(model.predict(batch), expected["2"])
            time.sleep(0.05)
            assert not is_half.is_set() and before.version == "1"
            assert torch.equal(before.rows.pull(table, keys), old)
        assert is_half.wait(60)
        rows = model.lookup(table, keys)
        assert not torch.equal(model.server.pull(table, keys), rows)  # it is half
        scores, version = model.predict_with_version(batch)
        assert version == "2" and torch.equal(scores, expected["2"])
        may_go_on.set()
        wait_for(lambda: not model.loaded.rows.overlays)  # type: ignore[attr-defined]
        assert torch.equal(model.predict(batch), expected["2"])
        assert torch.equal(model.server.pull(table, keys), rows)


def test_a_store_that_takes_no_rows_leaves_the_new_version_whole(
    days: Path, batch: hps.Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, place = scores_of(days, batch), tmp_path / "pub"
    copy_up_to(days, place, 1)
    with hps.Model.load(place, follow=True, poll_seconds=0.01) as model:

        def fail() -> None:
            raise hps.StoreError(28, "the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(published_rows, "_READ_PIECE", 50)
            patched.setattr(published_rows, "_pause", fail)
            patched.setattr(PublishedRows, "_anew", fail)
            first = model.server
            show(days, place, 2)
            wait_for(lambda: is_told(model, "the disk is full"))
            scores, version = model.predict_with_version(batch)
            assert version == "2" and torch.equal(scores, expected["2"])
        wait_for(lambda: model.server is not first)
        assert model.version == "2" and torch.equal(model.predict(batch), expected["2"])
        show(days, place, 3)
        wait_for(lambda: model.version == "3")
        assert torch.equal(model.predict(batch), expected["3"])


def test_a_damaged_version_is_told_and_the_one_before_goes_on(
    days: Path, batch: hps.Batch, tmp_path: Path
) -> None:
    expected, place = scores_of(days, batch), tmp_path / "pub"
    copy_up_to(days, place, 1)
    (changed,) = (place / "data").glob("00000002-*/changed-*-0.arrow")
    whole = changed.read_bytes()
    changed.write_bytes(whole[:-1])
    with hps.Model.load(place, follow=True, poll_seconds=0.01) as model:
        show(days, place, 2)
        wait_for(lambda: model.following()["error"] is not None)
        assert changed.name in model.following()["error"]
        scores, version = model.predict_with_version(batch)
        assert version == "1" and torch.equal(scores, expected["1"])
        changed.write_bytes(whole)
        wait_for(lambda: model.version == "2")
        wait_for(lambda: model.following()["error"] is None)
        assert torch.equal(model.predict(batch), expected["2"])


def is_told(model: hps.Model, text: str) -> bool:
    return text in str(model.following()["error"])


def test_a_version_whose_model_is_of_no_use_is_told_and_the_one_before_goes_on(
    days: Path, batch: hps.Batch, tmp_path: Path
) -> None:
    place, store = tmp_path / "pub", tmp_path / "store"
    hps.ssd_store.clone(days / "store-1", store)
    with hps.open(store, read_only=False) as server:
        model, reader = server.checkpoint_state()
        assert model is not None
        server.publish(place)
        (table,) = server.tables
        with hps.Model.load(place, follow=True, poll_seconds=0.01) as served:
            expected = served.predict(batch)
            other = {**model, "model": {"bias": torch.zeros(())}}
            for wrong, told in (
                ({"model": {}}, "format_version=None"),
                (other, "stored weights are of another class"),
                (None, "holds rows alone"),
            ):
                nothing = np.zeros((1, server.tables[table].dim), np.float32)
                server.push(table, np.array([10**9], np.uint64), nothing)
                server.checkpoint(model=wrong)
                server.publish(place)
                wait_for(partial(is_told, served, told))
                scores, version = served.predict_with_version(batch)
                assert version == "1" and torch.equal(scores, expected)
            server.checkpoint(model=model, reader=reader)
            server.publish(place)
            wait_for(lambda: served.version != "1")
            assert torch.equal(served.predict(batch), expected)


def test_a_model_goes_back_to_a_version_and_forth_again(days: Path, batch: hps.Batch) -> None:
    expected = scores_of(days, batch)
    with hps.Model.load(days / "pub", follow=True, poll_seconds=0.01) as model:
        model.roll_back(1)
        time.sleep(0.1)
        assert model.version == "1" and not model.following()["is_following"]
        assert torch.equal(model.predict(batch), expected["1"])
        with pytest.raises(hps.ConfigError, match="version 9 is not kept; those are 1 to 3"):
            model.roll_back(9)
        assert model.version == "1"
        model.follow()
        wait_for(lambda: model.version == "3")
        assert torch.equal(model.predict(batch), expected["3"])


def test_rows_that_are_left_go_whatever_their_store_says_at_its_end(
    days: Path, batch: hps.Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, close = scores_of(days, batch), hps.ParameterServer.close

    def fail(server: hps.ParameterServer) -> None:
        close(server)
        raise hps.StoreError(5, "the disk is broken")

    with hps.Model.load(days / "pub", cache_dir=tmp_path) as model:
        (before,) = tmp_path.glob("rows-*")
        with monkeypatch.context() as patched:
            patched.setattr(hps.ParameterServer, "close", fail)
            model.roll_back(1)
        assert torch.equal(model.predict(batch), expected["1"])
        (now,) = tmp_path.glob("rows-*")
        assert now != before


def test_another_process_begins_from_the_local_copy(
    days: Path, batch: hps.Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that have no room in memory; of others: test_followed_memory.py."""
    place, cache = tmp_path / "pub", tmp_path / "cache"
    copy_up_to(days, place, 2)
    with hps.Model.load(place, cache_dir=cache, dram=9000):
        pass
    copy_up_to(days, place, 3)

    def refuse(*_: object) -> None:
        raise AssertionError("the base was read again")

    monkeypatch.setattr(PublishedRows, "_anew", refuse)
    with hps.Model.load(place, cache_dir=cache, dram=9000) as model:
        assert torch.equal(model.predict(batch), scores_of(days, batch)["3"])


def test_a_local_copy_that_is_damaged_is_made_anew(
    days: Path, batch: hps.Batch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with hps.Model.load(days / "pub", cache_dir=cache, dram=9000):
        pass
    (store,) = cache.iterdir()
    segments = list(store.glob("segment-*"))
    assert segments
    for segment in segments:
        segment.write_bytes(segment.read_bytes()[:-8])
    with hps.Model.load(days / "pub", cache_dir=cache, dram=9000) as model:
        assert torch.equal(model.predict(batch), scores_of(days, batch)["3"])
    assert len(list(cache.iterdir())) == 1


def test_rows_alone_make_no_model(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "s", tables=[hps.TableConfig(name="ads", dim=2)])
    with hps.ParameterServer(config) as server:
        server.pull("ads", np.array([1], np.uint64), create=True)
        server.publish(tmp_path / "pub")
    with pytest.raises(hps.ConfigError, match="version 1 holds rows alone"):
        hps.Model.load(tmp_path / "pub")


def test_a_module_of_a_users_own_is_published_by_its_weights(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "s", tables=[hps.TableConfig(name="ads", dim=2)])
    module = torch.nn.Linear(2, 1)
    with hps.ParameterServer(config) as server:
        server.pull("ads", np.array([1], np.uint64), create=True)
        server.publish(tmp_path / "pub", model=module)
        with pytest.raises(hps.ConfigError, match="model is a int; give a torch module"):
            server.publish(tmp_path / "pub", model=3)  # type: ignore[arg-type]
    (version,) = chain_of(open_destination(tmp_path / "pub"))
    assert version.model is not None
    assert [one["name"] for one in version.model.tensors] == ["weight", "bias"]
    with pytest.raises(hps.ConfigError, match="stored by a user's own loop"):
        hps.Model.load(tmp_path / "pub")


def test_rows_of_a_version_count_nothing_whatever_their_table_counts() -> None:
    table = hps.TableConfig(name="ads", dim=4, statistics=True, negative_rate=0.5)
    none = dict.fromkeys(("base", "changed", "removed"))
    published = PublishedTable(table=table_to_json(table), dtype="float32", rows=0, **none)
    local = local_table(published)
    assert (local.statistics, local.negative_rate) == (False, 1.0)


def test_what_does_not_go_together_is_named(days: Path) -> None:
    with pytest.raises(hps.ConfigError, match="numbers and no tags"):
        hps.Model.load(days / "pub", "final")
    with pytest.raises(hps.ConfigError, match="no place where one is published"):
        hps.Model.load(days / "store", follow=True)
    with pytest.raises(hps.ConfigError, match="version 7 is not kept"):
        hps.Model.load(days / "pub", version=7)
    with pytest.raises(hps.ConfigError, match="poll_seconds=0 must be above 0"):
        hps.Model.load(days / "pub", follow=True, poll_seconds=0)
    with hps.Model.load(days / "store") as model, pytest.raises(hps.ConfigError, match="no vers"):
        model.roll_back(1)


def test_the_command_publishes_and_predicts(
    days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, published = str(days / "store"), tmp_path / "pub"
    assert main(["publish", store, str(published), "--json", str(tmp_path / "j")]) == 0
    told = capsys.readouterr().out
    assert "version 1 of" in told and "base of checkpoint final" in told
    made = json.loads((tmp_path / "j").read_text())
    assert (made["version"], made["kind"]) == (1, "base") and made["seconds"] > 0
    log = str(days / "day-2.libsvm")
    assert main(["predict", log, "--model", str(published), "--out", str(tmp_path / "a.npy")]) == 0
    assert "deepfm of version 1" in capsys.readouterr().out
    assert main(["predict", log, "--store", store, "--out", str(tmp_path / "b.npy")]) == 0
    a, b = np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")
    assert len(a) == 600 and a.tobytes() == b.tobytes()
    assert main(["publish", store, str(published)]) == 0
    assert "is of checkpoint final already" in capsys.readouterr().out


def test_flags_may_stand_between_the_store_and_the_place(
    days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, place = str(days / "store"), str(tmp_path / "pub")
    assert main(["publish", store, "--kind", "base", place]) == 0
    assert open_destination(place).names() == ["version-00000001.json"]
    assert main(["publish", "--kind", "auto", store, "--keep", "3", place]) == 0
    assert "is of checkpoint final already" in capsys.readouterr().out
    for words, says in (
        ([store, "--kind", "base", place, "more"], "unrecognized arguments: more"),
        (["--kind", "base"], "required: URL"),
    ):
        with pytest.raises(SystemExit):
            main(["publish", *words])
        assert says in capsys.readouterr().err


def test_the_command_goes_on_until_a_signal(days: Path, tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    store, place = tmp_path / "store", tmp_path / "pub"
    hps.ssd_store.clone(days / "store-1", store)
    words = [sys.executable, "-m", "hps", "publish", str(store), str(place), "--every", "0.05"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "version 1" in process.stdout.readline()
        options = {"resume": True, "new_data": True, **SMALL}
        train(TrainOptions(data=[days / "day-2.libsvm"], store=store, **options))
        line = process.stdout.readline()
        assert "version 2" in line and "delta" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    # A run may take more than one checkpoint, and each is a version where it is seen in time.
    assert open_destination(place).names()[:2] == [
        "version-00000001.json",
        "version-00000002.json",
    ]


def test_flags_that_do_not_go_together_are_named(
    days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "x.npy")
    log, place = str(days / "day-1.libsvm"), str(days / "pub")
    store = str(days / "store")
    assert main(["predict", log, "--model", place, "--tag", "final", "--out", out]) == 1
    assert "a published model has numbers" in capsys.readouterr().err
    assert main(["predict", log, "--store", store, "--version", "1", "--out", out]) == 1
    assert "--version is of a published model" in capsys.readouterr().err
    assert main(["publish", store, place, "--every", "1", "--checkpoint", "final"]) == 1
    assert "--every publishes the newest" in capsys.readouterr().err


def test_a_base_that_follows_holds_its_own_description(
    days: Path, batch: hps.Batch, tmp_path: Path
) -> None:
    """The versions before it go, with their files."""
    place, store = tmp_path / "pub", tmp_path / "store"
    hps.ssd_store.clone(days / "store-1", store)
    with hps.open(store, read_only=False) as server:
        (table,) = server.tables
        model, reader = server.checkpoint_state()
        keys = np.arange(200, dtype=np.uint64)
        grads = np.ones((200, server.tables[table].dim), np.float32)
        kinds = []
        for _ in range(6):
            server.push(table, keys, grads)
            server.checkpoint(model=model, reader=reader)
            kinds.append(server.publish(place, keep=1)["kind"])
        assert "base" in kinds[1:] and not (place / "version-00000001.json").exists()
        with hps.Model.load(place) as served, hps.Model.load(store) as stored:
            assert torch.equal(served.predict(batch), stored.predict(batch))
