"""Training against shards has the bits of training in one process.

Above it: pytest. Below it: `hps.train`, `hps.RemoteParameterServer` over real shards.
"""

import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

import hps
from hps.errors import ConfigError, NonFiniteError, RemoteError
from hps.service.client.errors import Failure
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_remote, evaluate_store, train
from tests.logs import write_criteo
from tests.service.client.client_lab import ADS, Service, service
from tests.service.client.fake_service import Answered

SEED = 5


def options(log: Path, where: Any, **changes: Any) -> TrainOptions:
    values: dict[str, Any] = {
        "data": [log],
        "dim": 4,
        "batch_size": 100,
        "hidden": (16,),
        "dropout": 0.2,
        "optimizer": "adam",
        "scheduler": "cosine",
        "scheduler_steps": 20,
        "dram": "4MiB",
        "seed": SEED,
    }
    if isinstance(where, Service):
        values["remote"] = ClientConfig(addresses=where.addresses, client_id="trainer")
    else:
        values["store"] = where
    return TrainOptions(**{**values, **changes})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_criteo(tmp_path / "log.tsv", 1200)


@pytest.mark.parametrize(("count", "depth", "accumulate"), [(1, 0, 1), (2, 2, 1), (3, 4, 2)])
def test_training_against_shards_has_the_bits_of_a_local_store(
    tmp_path: Path, log: Path, count: int, depth: int, accumulate: int
) -> None:
    how = {"depth": depth, "accumulate": accumulate}
    local = train(options(log, tmp_path / "local", **how))
    with service(tmp_path, count, tables=(), seed=SEED) as servers:
        remote = train(options(log, servers, **how))
        rows = [shard.num_rows("features") for shard in servers.shards]
    assert remote["digests"] == local["digests"]
    assert remote["loss_digest"] == local["loss_digest"]
    assert remote["rows"] == local["rows"] == sum(rows) and min(rows) > 0.8 * max(rows)


def test_resumed_training_has_the_bits_of_training_without_a_break(
    tmp_path: Path, log: Path
) -> None:
    whole = train(options(log, tmp_path / "local", epochs=2))
    with service(tmp_path, 2, tables=(), seed=SEED) as servers:
        train(options(log, servers, epochs=2, limit=700, checkpoint_every=3))
        # What comes after the last checkpoint is not part of it, on no shard.
        with servers.client("stranger") as client:
            client.push("features", np.arange(50), np.ones((50, 5), np.float32))
        resumed = train(options(log, servers, epochs=2, resume=True, dropout=0.2))
        test = evaluate_remote([log], options(log, servers).remote)
    assert resumed["resumed_from"] is not None
    assert resumed["digests"] == whole["digests"]
    assert resumed["loss_digest"] == whole["loss_digest"]
    stored = evaluate_store([log], tmp_path / "local")
    assert test["auc"] == stored["auc"] and test["logloss"] == stored["logloss"]


def test_new_run_refuses_servers_that_hold_a_model_or_another_table(
    tmp_path: Path, log: Path
) -> None:
    with service(tmp_path, 1, tables=(), seed=SEED) as servers:
        train(options(log, servers, limit=300))
        with pytest.raises(ConfigError, match=r"holds a trained model .* or name other servers"):
            train(options(log, servers))
        with pytest.raises(ConfigError, match=r"made with other flags: its dim is 5, not 9"):
            train(options(log, servers, dim=8))


def test_tables_that_servers_have_begin_rows_as_they_were_made(tmp_path: Path, log: Path) -> None:
    """The rule for new tables leaves them alone; who asks for another number is told."""
    adagrad = {"optimizer": "adagrad", "scheduler": "constant", "limit": 300}
    made = hps.TableConfig(
        name="features", dim=5, optimizer=hps.Adagrad(lr=0.5, initial_accumulator_value=0.25)
    )
    with service(tmp_path, 2, tables=(made,), seed=SEED) as servers:
        with pytest.raises(ConfigError, match=r"initial_accumulator_value=0\.25"):
            train(options(log, servers, initial_accumulator=1.0, **adagrad))
        train(options(log, servers, **adagrad))
        with pytest.raises(ConfigError, match=r"initial_accumulator_value=0\.25"):
            train(options(log, servers, resume=True, initial_accumulator=1.0, **adagrad))
        more = {**adagrad, "limit": 0}
        train(options(log, servers, resume=True, **more))
        with servers.client("reader") as client:
            assert client.tables["features"].optimizer == made.optimizer
            states = [state for _, _, state in client.items("features", state=True)]
    assert min(float(state.min()) for state in states) >= 0.25
    assert 0.25 < max(float(state.max()) for state in states) < 1.0


def steps(server: Any, batches: int = 4) -> list[float]:
    """A few steps of a small model of the caller's own, in a pipeline of depth 2."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    log = []
    for _ in range(batches):
        keys = torch.from_numpy(random.integers(0, 60, 80))
        ids = hps.Ids(keys_L=keys, offsets=torch.arange(0, 81, 2))
        labels = torch.from_numpy(random.integers(0, 2, 40)).float()
        log.append(hps.Batch(features={"ads": ids}, dense=torch.zeros(40, 0), labels=labels))
    embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    losses = []
    with hps.Pipeline(log, server, depth=2) as batches_in:
        for batch in batches_in:
            loss = (embedding(batch).sum(dim=1) - batch.labels).square().mean()
            loss.backward()
            optimizer.param_groups[0]["lr"] *= 0.5  # each push has a rate of its own
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def test_own_loop_is_the_same_text_and_the_same_bits(tmp_path: Path) -> None:
    with hps.ParameterServer(hps.Config(path=tmp_path / "local", tables=[ADS])) as local:
        expected = steps(local), local.digest("ads")
    with service(tmp_path, 2) as servers, servers.client() as client:
        assert (steps(client), client.digest("ads")) == expected


def test_step_that_is_not_finite_changes_no_row_on_any_shard(tmp_path: Path) -> None:
    tables = [ADS, hps.TableConfig(name="users", dim=2, features=["U"])]
    with service(tmp_path, 2, tables=tables) as servers, servers.client() as client:
        optimizer = hps.RowOptimizer(client)
        ads, users = hps.SparseEmbedding(client, "ads"), hps.SparseEmbedding(client, "users")
        keys, offsets = torch.arange(100), torch.arange(101)
        (ads(keys, offsets).sum() + users(keys, offsets).log().sum() * np.nan).backward()
        with pytest.raises(NonFiniteError, match="table 'users'"):
            optimizer.step()
        assert client.num_rows("ads") == client.num_rows("users") == 0
        optimizer.zero_grad()
        ads(keys, offsets).sum().backward()
        optimizer.step()
        assert client.num_rows("ads") == 100


def test_step_to_a_shard_that_is_down_is_kept_and_not_pending(tmp_path: Path) -> None:
    """Its gradients must not be applied twice when the loop steps again."""
    with service(tmp_path, 2) as servers, servers.client() as client:
        optimizer, embedding = hps.RowOptimizer(client), hps.SparseEmbedding(client, "ads")
        keys, offsets = torch.arange(100), torch.arange(101)
        embedding(keys, offsets).sum().backward()
        optimizer.step()
        embedding(keys, offsets).sum().backward()
        session = client._connections.sessions[1]
        real, session.transport = session.transport, Dead(session.transport.address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client._connections, "until", lambda: time.monotonic() + 1)
            with pytest.raises(RemoteError, match=r"done: 0 .*open: 1 "):
                optimizer.step()
        optimizer.step()  # nothing is pending: does nothing
        session.transport = real
        after = client.digest("ads")
    with hps.ParameterServer(hps.Config(path=tmp_path / "local", tables=[ADS])) as local:
        for _ in range(2):
            local.push("ads", np.arange(100), np.ones((100, 8), np.float32))
        assert after == local.digest("ads")


class Dead:
    """A transport to nowhere."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        raise Failure(grpc.StatusCode.UNAVAILABLE, None, "connection refused")

    def start(self, method: str, request: bytes, timeout: float) -> Any:
        return Answered(Failure(grpc.StatusCode.UNAVAILABLE, None, "connection refused"))
