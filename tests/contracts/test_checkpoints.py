"""checkpoint, restore, reopening and read-only opening, over every kind of tiers."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.train.checkpoints import newest_with_model
from tests.lab import Lab, dump, evictions, keys_of, random_floats, random_keys, table


def ones(count: int, dim: int = 4) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def test_restore_brings_back_rows_model_reader_and_rates(lab: Lab) -> None:
    generator = np.random.default_rng(1)
    keys = random_keys(generator, 400, 300)
    model = {"model": torch.nn.Linear(3, 2).state_dict(), "rng": torch.get_rng_state(), "step": 7}
    with lab.server(table(hps.Adagrad(lr=0.5))) as server:
        server.push("ads", keys, random_floats(generator, 400, 4))
        server.learning_rates["ads"] = 0.25
        info = server.checkpoint("day-1", model=model, reader={"file": "a.txt", "line": 12})
        assert info["tag"] == "day-1" and info["rows_written"] > 0
        assert info["bytes"] > 0 and info["seconds"] > 0
        digest, rows = server.digest("ads"), dump(server)
        server.learning_rates["ads"] = 0.125
        server.push("ads", keys, random_floats(generator, 400, 4))
        server.erase("ads", keys[:50])
        assert server.digest("ads") != digest and evictions(server) > 0
        assert server.checkpoint_state("day-1")[1] == {"file": "a.txt", "line": 12}
        number = server.checkpoints()[-1]["id"]
        found, reader = server.restore(number)
        assert server.digest("ads") == digest and dump(server) == rows
        assert server.num_rows("ads") == len(rows)
        assert server.learning_rates == {"ads": 0.25}
        assert reader == {"file": "a.txt", "line": 12} and found["step"] == 7
        assert torch.equal(found["model"]["weight"], model["model"]["weight"])
        assert torch.equal(found["rng"], model["rng"])


def test_resumed_training_gives_the_bits_of_uninterrupted_training(lab: Lab) -> None:
    digests = []
    for interrupted in (False, True):
        part = Lab(lab.kind, lab.path / str(interrupted))
        generator = np.random.default_rng(2)
        batches = [
            (random_keys(generator, 100, 300), random_floats(generator, 100, 4)) for _ in range(8)
        ]
        with part.server(table(hps.Adam(lr=0.1))) as server:
            for keys, grads in batches[:4]:
                server.push("ads", keys, grads)
            server.checkpoint("half")
            if interrupted:
                for keys, grads in batches[5:]:
                    server.push("ads", keys, -grads)
                server.restore("half")
            for keys, grads in batches[4:]:
                server.push("ads", keys, grads)
            assert evictions(server) > 0
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1]


def test_leaving_normally_saves_last_if_rows_changed(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", keys_of(1), ones(1))
        digest = server.digest("ads")
    with lab.server(table()) as server:
        assert server.digest("ads") == digest and server.num_rows("ads") == 1
        assert [info["tag"] for info in server.checkpoints()] == ["last"]
        server.checkpoint("mine")
        server.pull("ads", keys_of(5))
    with lab.server(table()) as server:  # nothing has changed since "mine"
        assert [info["tag"] for info in server.checkpoints()] == ["last", "mine"]
        assert server.delete_checkpoint("last") == []
        assert [info["tag"] for info in server.checkpoints()] == ["mine"]


def test_leaving_by_an_exception_saves_nothing(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", keys_of(1), ones(1))
        digest = server.digest("ads")
    with pytest.raises(KeyError), lab.server(table()) as server:
        server.push("ads", keys_of(1, 2), ones(2))
        raise KeyError
    with lab.server(table()) as server:
        assert server.digest("ads") == digest and server.num_rows("ads") == 1
    with pytest.raises(hps.StoreError, match="closed"):
        server.pull("ads", keys_of(1))


def test_read_only_shows_a_checkpoint_and_changes_nothing(lab: Lab) -> None:
    adagrad = hps.Adagrad(lr=0.5, eps=1e-6)
    keys = np.arange(300, dtype=np.uint64)
    with lab.server(table(adagrad), seed=9) as server:
        initial = server.pull("ads", keys_of(10**6)).copy()
        server.push("ads", keys, ones(300))
        server.checkpoint("one")
        digest, rows = server.digest("ads"), server.pull("ads", keys).copy()
        server.push("ads", keys, ones(300))
        server.checkpoint()
        newest = server.digest("ads")
        with lab.open(checkpoint="one", dram="1MiB") as reader:
            assert reader.tables["ads"].optimizer == adagrad and reader.config.seed == 9
            assert reader.digest("ads") == digest and reader.num_rows("ads") == 300
            np.testing.assert_array_equal(reader.pull("ads", keys), rows)
            np.testing.assert_array_equal(reader.pull("ads", keys_of(10**6)), initial)
            assert reader.contains("ads", keys).all() and len(dump(reader)) == 300
            assert reader.stats()["tables"]["ads"]["rows"] == 300
            refused = {
                "push": lambda: reader.push("ads", keys, ones(300)),
                "assign": lambda: reader.assign("ads", keys, ones(300)),
                "erase": lambda: reader.erase("ads", keys),
                "create": lambda: reader.pull("ads", keys, create=True),
                "checkpoint": lambda: reader.checkpoint(),
                "restore": lambda: reader.restore("one"),
                "delete_checkpoint": lambda: reader.delete_checkpoint("one"),
            }
            for verb, call in refused.items():
                with pytest.raises(hps.ConfigError, match=rf"{verb}.*read-only"):
                    call()
        with lab.open() as reader:
            assert reader.digest("ads") == newest
    with lab.open(read_only=False) as server:
        assert server.tables["ads"].optimizer == adagrad
        server.push("ads", keys, ones(300))
    with pytest.raises(hps.ConfigError, match="read_only=True"):
        lab.open(read_only=False, checkpoint="one")


def test_compact_changes_no_row_and_keeps_the_checkpoints_model(lab: Lab) -> None:
    generator = np.random.default_rng(9)
    keys = random_keys(generator, 3000, 2000)
    with lab.server(table()) as server:
        server.push("ads", keys, random_floats(generator, 3000, 4))
        server.checkpoint("old", model={"step": 1})
        server.push("ads", keys[::2], random_floats(generator, 1500, 4))
        assert evictions(server) > 0
        digest, rows = server.digest("ads"), dump(server)
        figures = server.compact("ads")  # while rows are dirty in DRAM
        assert server.digest("ads") == digest and dump(server) == rows
        assert set(figures) == {"bytes_before", "bytes_after"}
        server.checkpoint("new", model={"step": 2})
        server.compact()
        assert server.digest("ads") == digest
        assert server.checkpoint_state("new")[0] == {"step": 2}
        with pytest.raises(hps.ConfigError, match="nope"):
            server.compact("nope")
        server.restore("old")
        server.restore("new")
        assert server.digest("ads") == digest
    with lab.open() as reader, pytest.raises(hps.ConfigError, match=r"compact.*read-only"):
        reader.compact()


def test_restore_waits_for_batches_in_flight(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.push("ads", keys_of(1), ones(1))
        server.checkpoint("one")
        with (
            server.pin("ads", keys_of(1, 2)),
            pytest.raises(hps.ConfigError, match="2 pins"),
        ):
            server.restore("one")
        server.restore("one")


def test_a_tag_used_again_replaces_the_old_checkpoint(lab: Lab) -> None:
    with lab.server(table()) as server:
        for turn in range(3):
            server.push("ads", keys_of(turn), ones(1))
            server.checkpoint("same")
        assert [info["tag"] for info in server.checkpoints()].count("same") == 1
        server.push("ads", keys_of(99), ones(1))
        assert server.restore("same") == (None, None)
        assert server.num_rows("ads") == 3


def test_models_and_positions_that_could_not_be_read_back_are_refused(lab: Lab) -> None:
    with lab.server(table()) as server:
        with pytest.raises(hps.ConfigError, match="weights_only"):
            server.checkpoint("a", model={"code": Lab})
        with pytest.raises(
            hps.ConfigError, match=r"mapping such as \{'model': model.state_dict\(\)\}$"
        ):
            server.checkpoint("a", model=[1])  # type: ignore[arg-type]
        with pytest.raises(hps.ConfigError, match="JSON"):
            server.checkpoint("a", reader={"position": {1, 2}})
        with pytest.raises(hps.ConfigError, match="reader is a list; pass a mapping"):
            server.checkpoint("a", reader=[1])  # type: ignore[arg-type]
        for tag in ("", "a/b", "x" * 65):
            with pytest.raises(hps.ConfigError, match="tag="):
                server.checkpoint(tag)
        with pytest.raises(hps.ConfigError, match="day-9"):
            server.restore("day-9")
        assert server.checkpoints() == []


def test_a_reopened_store_keeps_what_is_fixed_and_takes_what_is_free(lab: Lab) -> None:
    keys = np.arange(200, dtype=np.uint64)
    with lab.server(table(), seed=3) as server:
        server.push("ads", keys, ones(200))
        digest = server.digest("ads")
    wrong = {
        "dim": lambda: lab.server(table(dim=5), seed=3),
        "optimizer": lambda: lab.server(table(hps.Adam()), seed=3),
        "initializer": lambda: lab.server(
            hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(), initializer=hps.Constant(1.0)),
            seed=3,
        ),
        "seed": lambda: lab.server(table(), seed=4),
    }
    for call in wrong.values():
        with pytest.raises(hps.ConfigError):
            call()
    more = [table(hps.SGD(lr=0.5)), table(name="users", dim=3)]
    with lab.server(*more, scale=3.0, seed=3) as server:
        assert server.digest("ads") == digest and server.num_rows("users") == 0
        server.push("users", keys, ones(200, 3))
    with lab.open() as reader:
        assert reader.num_rows("users") == 200 and set(reader.tables) == {"ads", "users"}


def test_tables_that_a_session_does_not_name_keep_their_numbers(lab: Lab) -> None:
    users = table(hps.Adam(lr=0.5, eps=0.25), name="users")
    with lab.server(table(), users) as server:
        server.push("ads", keys_of(1), ones(1))
        server.push("users", keys_of(1), ones(1))
        server.learning_rates["users"] = 0.125
        server.checkpoint("both")
    for _ in range(2):
        with lab.server(table()) as server:
            server.push("ads", keys_of(2), ones(1))
            server.checkpoint("one")
            server.restore("one")
            server.checkpoint("two")
    with lab.open() as reader:
        assert reader.tables["users"].optimizer == users.optimizer
    with lab.server(table(), users) as server:
        server.restore("two")
        assert server.learning_rates["users"] == 0.125


def test_open_knows_the_tables_of_a_checkpoint_whose_tag_was_deleted(tmp_path: Path) -> None:
    lab = Lab("native", tmp_path)
    ads = table(hps.Adam(lr=0.5, eps=0.25))
    with lab.server(ads) as server:
        server.push("ads", keys_of(1), ones(1))
        server.checkpoint("only")
        server.delete_checkpoint("only")
        assert server.checkpoints() == []
    with lab.open() as reader:
        assert reader.tables["ads"].optimizer == ads.optimizer
        assert reader.num_rows("ads") == 1


def test_a_run_goes_on_from_the_current_checkpoint_first(tmp_path: Path) -> None:
    with Lab("native", tmp_path).server(table()) as server:
        for number in (1, 2):
            server.push("ads", keys_of(number), ones(1))
            server.checkpoint(f"day-{number}", model={"day": number}, reader={"line": number})
        server.restore("day-1")
        found = newest_with_model(server)
        assert found is not None and found.model == {"day": 1} and found.name == "day-1"
        server.delete_checkpoint("day-1")
        found = newest_with_model(server)
        assert found is not None and found.model == {"day": 1} and found.name is None
        server.push("ads", keys_of(1), ones(1))
        server.checkpoint("rows-only")
        with pytest.raises(hps.ConfigError, match=r"'rows-only'.* holds no model, and 'day-2'"):
            newest_with_model(server)
        found = newest_with_model(server, passes_over=True)
        assert found is not None and found.model == {"day": 2}


def test_delete_checkpoint_needs_a_name(lab: Lab) -> None:
    with lab.server(table()) as server:
        server.checkpoint("one")
        with pytest.raises(hps.ConfigError, match="tag or id"):
            server.delete_checkpoint(None)  # type: ignore[arg-type]
        assert len(server.checkpoints()) == 1
