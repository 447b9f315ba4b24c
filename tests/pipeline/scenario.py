"""A small training run made from a seed: batches, tiers, a loop with odd turns, delays anywhere.

Above it: the parity, invariant and shutdown tests, and the C2 recipe of tests/torture. Below it:
the public names of hps. What a run does follows from its seed alone; the depth, the budget and the
delays only decide when it happens.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from hps.parameter_server.opening import Tiers
from hps.ssd_store import open_store
from tests.lab import Lab, table

TABLES = ("users", "ads")
OPTIMIZERS = {"adagrad": hps.Adagrad(lr=0.1), "adam": hps.Adam(lr=0.05)}
LONGEST_DELAY = 0.002


@dataclass(frozen=True)
class Scenario:
    """What is trained on what.

    Args:
        seed: of batches and turns.
        optimizer: of both tables.
        num_batches: of the log.
        batch_keys: distinct keys of a batch in table ads at most, in users a third.
        num_keys: distinct keys of a table.
        accumulate: batches a step.
        has_turns: batches are sometimes skipped or dropped, rows read and checkpoints taken in
            between.
        lookahead: batches that are read before they are fetched; no part of what is trained.
        gives_back: the loop sometimes takes the rows of batches ahead; no part of what is trained.
        is_joint: both tables are looked up in one call; no part of what is trained.
        loop_seconds: slept in the loop at each batch, so that others get ahead of it.
    """

    seed: int
    optimizer: str = "adagrad"
    num_batches: int = 24
    batch_keys: int = 100
    num_keys: int = 900
    accumulate: int = 1
    has_turns: bool = True
    loop_seconds: float = 0.0
    lookahead: int = 0
    gives_back: bool = False
    is_joint: bool = False

    def tables(self) -> list[hps.TableConfig]:
        """Two tables of one kind."""
        optimizer = OPTIMIZERS[self.optimizer]
        return [table(optimizer, name=name, dim=4) for name in TABLES]

    def batches(self) -> Iterator[hps.Batch]:
        """The log; made anew, in the same bits, at each call."""
        generator = np.random.default_rng(self.seed)
        for number in range(self.num_batches):
            features = {}
            num_examples = int(generator.integers(1, 2 * self.batch_keys))
            for name in TABLES:
                # Fewer users, so that one table may have room when the other has not.
                size = self.batch_keys if name == "ads" else 1 + self.batch_keys // 3
                pool = generator.choice(self.num_keys, size=size, replace=False)
                keys = pool[(generator.random(num_examples) ** 2 * len(pool)).astype(np.int64)]
                keys = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                offsets = torch.arange(num_examples + 1)
                features[name] = hps.Ids(torch.from_numpy(keys.view(np.int64)), offsets)
            labels = torch.from_numpy(generator.random(num_examples).astype(np.float32).round())
            dense = torch.zeros(num_examples, 0)
            yield hps.Batch(features, dense, labels, {"batch": number + 1})


@dataclass
class Outcome:
    """What a run came to; equal for every depth but for the counters."""

    digests: dict[str, str]
    losses: str
    rows: dict[str, int]
    positions: list[Any]
    evictions: int = field(compare=False)
    refusals: int = field(compare=False)
    given_back: int = field(compare=False)


class Delays:
    """Sleeps of random length in every stage, and in the tiers below."""

    def __init__(self, seed: int | None) -> None:
        self._chance = None if seed is None else random.Random(seed)

    def sleep(self) -> None:
        """Nothing, half of the time."""
        if self._chance is not None and (length := self._chance.random() * 2 - 1) > 0:
            time.sleep(length * LONGEST_DELAY)

    def over(self, batches: Iterator[hps.Batch]) -> Iterator[hps.Batch]:
        """The same batches, each after a while."""
        for batch in batches:
            self.sleep()
            yield batch

    def into(self, server: Any) -> None:
        """Makes the server's pins take a while, before or after."""
        for verb in ("pin", "warm"):
            setattr(server, verb, self._slowed(getattr(server, verb)))
        if server.joint is not None:
            server.joint.pin = self._slowed(server.joint.pin)

    def _slowed(self, verb: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def slow(first: Any, second: Any) -> Any:
            self.sleep()
            rows = verb(first, second)
            self.sleep()
            return rows

        return slow


@dataclass(frozen=True)
class Parts:
    """What a run is made of; a planted fault takes the place of one."""

    pipeline: type[hps.Pipeline] = hps.Pipeline
    optimizer: type[hps.RowOptimizer] = hps.RowOptimizer
    around_store: Callable[[Any], Any] | None = None


class Run:
    """A scenario over an open server."""

    def __init__(self, scenario: Scenario, server: Any, parts: Parts, delays: Delays) -> None:
        self._scenario = scenario
        self._server = server
        self._delays = delays
        self._turns = random.Random(scenario.seed)
        self._gives_back = random.Random(scenario.seed)
        self.num_given_back = 0
        torch.manual_seed(scenario.seed)
        self._embeddings = [hps.SparseEmbedding(server, name) for name in TABLES]
        self._all = hps.SparseEmbeddings(server)
        self._weights = torch.randn(4 * len(TABLES), requires_grad=True)
        self._pipeline = parts.pipeline
        self._rows = parts.optimizer(server)
        self._dense = torch.optim.SGD([self._weights], lr=0.1)
        self._losses = hashlib.sha256()
        self.positions: list[Any] = []

    def train(self, depth: int) -> None:
        """The training loop."""
        scenario = self._scenario
        log = self._delays.over(scenario.batches())
        self._delays.into(self._server)
        num_gathered = 0
        lookahead = scenario.lookahead if depth else 0
        with self._pipeline(
            log, self._server, depth, scenario.accumulate, lookahead=lookahead
        ) as batches:
            for batch in batches:
                time.sleep(scenario.loop_seconds)
                self._give_back(batches)
                turn = self._turns.random() if scenario.has_turns else 1.0
                loss = self._loss(batch)
                self._losses.update(loss.detach().numpy().tobytes())
                if turn < 0.1:
                    continue  # no backward: nothing is updated
                loss.backward()
                self._give_back(batches)
                self._delays.sleep()
                num_gathered += 1
                if turn < 0.2:
                    self._rows.zero_grad()
                    self._dense.zero_grad()
                    num_gathered = 0
                elif num_gathered == scenario.accumulate:
                    self._step()
                    num_gathered = 0
                    self._after_step(batches, turn)
            if num_gathered:
                self._step()
        self.positions.append(batches.state_dict())

    def _give_back(self, batches: hps.Pipeline) -> None:
        if self._scenario.gives_back and self._gives_back.random() < 0.3:
            self.num_given_back += batches.give_back_ahead()

    def _after_step(self, batches: hps.Pipeline, turn: float) -> None:
        self.positions.append(batches.state_dict())
        if 0.2 <= turn < 0.25:
            self._server.checkpoint(model={"weights": self._weights.detach()}, reader={})
        elif 0.25 <= turn < 0.35:
            keys = np.arange(20, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self._losses.update(self._server.pull("ads", keys).tobytes())

    def _loss(self, batch: hps.Batch) -> torch.Tensor:
        if self._scenario.is_joint:
            rows = self._all(batch)
        else:
            rows = torch.cat([embedding(batch) for embedding in self._embeddings], dim=1)
        logits = (rows * self._weights).sum(dim=1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)

    def _step(self) -> None:
        self._rows.step()
        self._dense.step()
        self._dense.zero_grad()

    def outcome(self) -> Outcome:
        """What the run came to; nothing may be pinned any more."""
        server = self._server
        assert server.pins == 0 and server.num_open_pipelines == 0
        top = "dram_cache" if server.config.gpu is None else "gpu_cache"
        return Outcome(
            digests={name: server.digest(name) for name in TABLES},
            losses=self._losses.hexdigest(),
            rows={name: server.num_rows(name) for name in TABLES},
            positions=self.positions,
            evictions=int(server.stats()[top]["evictions"]),
            refusals=int(server.stats()[top]["refusals"]),
            given_back=self.num_given_back,
        )


SOUND = Parts()


def run(
    scenario: Scenario,
    folder: Path,
    depth: int,
    *,
    scale: float = 1.0,
    delays: int | None = None,
    parts: Parts = SOUND,
    kind: str = "native",
) -> Outcome:
    """Trains a scenario over native tiers whose budgets are `scale` times the smallest there are.

    Args:
        kind: of tiers, as tests.lab.Lab takes it; "gpu" has the host build of the gpu_cache on top.
        delays: seed of random sleeps; None for none.
        parts: what to run, for planted faults.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lab = Lab(kind, folder)
    if parts.around_store is not None:
        around = parts.around_store
        lab.tiers = Tiers(lambda *args, **options: around(open_store(*args, **options)))
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        server = stack.enter_context(lab.server(*scenario.tables(), scale=scale))
        training = Run(scenario, server, parts, Delays(delays))
        training.train(depth)
        return training.outcome()


@dataclass(frozen=True)
class Case:
    """A scenario under the timing and budget that one seed draws."""

    scenario: Scenario
    depth: int
    scale: float
    delays: int
    kind: str


def draw_case(seed: int, num_batches: int = 10) -> Case:
    """A case from a seed, its budget between barely one step and plenty."""
    chance = random.Random(seed)
    scenario = Scenario(
        seed,
        optimizer=chance.choice(sorted(OPTIMIZERS)),
        num_batches=num_batches,
        batch_keys=chance.choice([8, 40, 100]),
        accumulate=chance.choice([1, 1, 2]),
        loop_seconds=chance.choice([0.0, 0.003]),
        lookahead=chance.choice([0, 3, 8]),
        gives_back=chance.choice([False, True]),
        is_joint=chance.choice([False, True]),
    )
    step_keys = scenario.batch_keys * scenario.accumulate
    scales = [3.0] if step_keys > 100 else [1.0, 1.5, 3.0]
    return Case(
        scenario,
        depth=chance.choice([1, 2, 4, 8]),
        scale=chance.choice(scales),
        delays=seed,
        kind=chance.choice(["native", "native", "gpu"]),
    )


def run_case(case: Case, folder: Path, parts: Parts = SOUND) -> Outcome:
    """Trains a case's scenario as the case says."""
    return run(
        case.scenario,
        folder,
        case.depth,
        scale=case.scale,
        delays=case.delays,
        parts=parts,
        kind=case.kind,
    )
