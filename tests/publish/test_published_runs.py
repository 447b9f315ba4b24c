"""Training runs that publish as they go, in one process and over ranks.

Above it: pytest. Below it: `hps train --publish`, `hps publish` of a folder of ranks.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.publish.destination import open_destination
from hps.publish.publisher import Publisher
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import listed_versions
from hps.train import TrainOptions, train
from tests.cluster.rank_nursery import Job, Nursery
from tests.publish.onnx_lab import graph_of
from tests.publish.publish_lab import SMALL, rows_of, write_log
from tests.service.client.client_lab import service

KEYS = np.arange(5, dtype=np.uint64)


def test_a_run_publishes_as_it_goes_and_its_end(tmp_path: Path) -> None:
    log, place = write_log(tmp_path / "a.libsvm", 1, 2000), tmp_path / "pub"
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--json", str(tmp_path / "j")]
    words += ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--dram", "16MiB"]
    words += ["--publish", str(place), "--publish-every", "5"]
    assert main(words) == 0
    figures = json.loads((tmp_path / "j").read_text())
    published = figures["published"]
    assert figures["publish_error"] is None
    assert published[0]["kind"] == "base" and published[-1]["examples"] == 2000
    assert published[-1]["checkpoint"] == "final"
    numbers = listed_versions(open_destination(place))
    assert [one["version"] for one in published] == numbers
    with hps.Model.load(place) as model, hps.Model.load(tmp_path / "store") as stored:
        batch = next(iter(model.open_reader([log])))
        assert model.predict(batch).equal(stored.predict(batch))


def test_publishing_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.libsvm", 1, 1500)
    found = []
    for name, more in (("a", {}), ("b", {"publish": str(tmp_path / "pub"), "publish_every": 2})):
        figures = train(TrainOptions(data=[log], store=tmp_path / name, **SMALL, **more))
        found.append((figures["digests"], figures["loss_digest"]))
    assert found[0] == found[1]


def test_a_run_whose_place_is_refused_is_trained_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "a.libsvm", 1)
    (tmp_path / "pub").write_text("a file")
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--dim", "4", "--hidden", "8"]
    assert main([*words, "--dram", "16MiB", "--publish", str(tmp_path / "pub")]) == 1
    told = capsys.readouterr().err
    assert "trained and saved, but its newest checkpoint is not published" in told
    assert "pub is not a folder" in told
    with hps.Model.load(tmp_path / "store") as model:
        assert model.checkpoint == "final"


def test_flags_of_publishing_that_do_not_go_together_are_named() -> None:
    with pytest.raises(hps.ConfigError, match=r"give publish \(--publish URL\), too"):
        TrainOptions(data=["a"], store="s", publish_every=3)


def test_a_run_against_servers_publishes_as_it_goes(tmp_path: Path) -> None:
    log, place = write_log(tmp_path / "a.libsvm", 1, 2000), tmp_path / "pub"
    words = ["train", str(log), "--json", str(tmp_path / "j"), "--dim", "4", "--hidden", "8"]
    words += ["--batch-size", "100", "--publish", str(place), "--publish-every", "5"]
    with service(tmp_path, 2, tables=(), publish_to=(str(tmp_path),)) as made:
        words += ["--server", ",".join(made.addresses)]
        assert main([*words, "--publish-onnx"]) == 0
        figures = json.loads((tmp_path / "j").read_text())
        published = figures["published"]
        assert figures["publish_error"] is None
        assert published[0]["kind"] == "base" and published[-1]["examples"] == 2000
        assert published[-1]["checkpoint"] == "final"
        assert [one["version"] for one in published] == listed_versions(open_destination(place))
        with made.client() as client, hps.Model.load(place) as model:
            (table,) = client.tables
            assert rows_of(model.server, table) == rows_of(client, table)
            first = next(iter(model.open_reader([log])))
            before = model.predict(first)
            assert graph_of(place, 1)[1].features == {"features": ["index"]}
            # By the command: nothing is new, then rows that are as they are now.
            command = ["publish", str(place), "--server", ",".join(made.addresses)]
            command += ["--json", str(tmp_path / "p"), "--onnx"]
            assert main(command) == 0 and json.loads((tmp_path / "p").read_text())["kind"] is None
            client.push(table, KEYS, np.ones((len(KEYS), client.tables[table].dim), np.float32))
            assert main(command) == 0 and json.loads((tmp_path / "p").read_text())["kind"] is None
            assert main([*command[:-1], "--now"]) == 0
            told = json.loads((tmp_path / "p").read_text())
            assert told["rows"] == client.num_rows(table) and told["kind"] == "base"
            assert "other options" in told["why_base"]
        assert len(before) > 0


def test_a_run_against_servers_that_publish_nowhere_ends_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "a.libsvm", 1)
    words = ["train", str(log), "--dim", "4", "--hidden", "8", "--publish", str(tmp_path / "pub")]
    with service(tmp_path, 1, tables=()) as made:
        assert main([*words, "--server", made.addresses[0]]) == 1
        assert "start it with 'hps serve --publish-to URL'" in capsys.readouterr().err
        assert made.shards[0].checkpoints()[-1]["tag"] != "final"


def test_words_of_the_command_that_do_not_go_together_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in (
        (["publish", "pub"], "give DIR or --server, and URL"),
        (["publish", "store", "pub", "--server", "h:1"], "give DIR or --server, and URL"),
        (["publish", "store", "pub", "--now"], "--now takes a checkpoint of servers"),
        (["publish", "store", "pub", "--token", "t"], "--token needs --server"),
        (["publish", "pub", "--server", "h:1", "--every", "1", "--checkpoint", "a"], "--every"),
    ):
        assert main(words) == 1
        assert told in capsys.readouterr().err


def test_the_folder_of_ranks_is_published_by_what_changed(ranks: Nursery, tmp_path: Path) -> None:
    store, place = tmp_path / "ranks", tmp_path / "pub"
    logs = [write_log(tmp_path / f"{day}.libsvm", day, 800) for day in (1, 2)]
    flags = ["--store", str(store), "--dim", "4", "--hidden", "8", "--batch-size", "100"]
    flags += ["--dram", "16MiB", "--threads", "1"]
    with Publisher(StoreOrigin(store), place) as publisher:
        for log, more in zip(logs, ([], ["--resume", "--new-data"]), strict=True):
            ranks.figures(Job(["train", str(log), *flags, *more], 2))
            made = publisher.publish()
            assert made["kind"] == ("delta" if more else "base")
            with hps.Model.load(place) as model, hps.Model.load(store) as stored:
                batch = next(iter(model.open_reader([logs[1]])))
                assert model.predict(batch).equal(stored.predict(batch))
                (table,) = stored.server.tables
                rows = rows_of(stored.server, table)
                assert rows_of(model.server, table) == rows and made["rows"] == len(rows)


def test_ranks_publish_as_they_train(ranks: Nursery, tmp_path: Path) -> None:
    log, store = write_log(tmp_path / "a.libsvm", 1, 800), tmp_path / "ranks"
    words = ["train", str(log), "--store", str(store), "--dim", "4", "--hidden", "8"]
    words += ["--batch-size", "50", "--dram", "16MiB", "--threads", "1"]
    words += ["--publish", str(tmp_path / "pub"), "--publish-every", "3", "--publish-onnx"]
    figures = ranks.figures(Job(words, 2))
    assert figures["published"][-1]["checkpoint"] == "final" and figures["publish_error"] is None
    assert graph_of(tmp_path / "pub", 1)[1].features == {"features": ["index"]}
    with hps.Model.load(tmp_path / "pub") as model, hps.Model.load(store) as stored:
        (table,) = stored.server.tables
        assert rows_of(model.server, table) == rows_of(stored.server, table)
