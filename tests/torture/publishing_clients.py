"""Clients of a model's server that is killed: what they are told must be of one version, whole.

Above it: publishing_kills.py. Below it: publishing_workload.py, which knows what each version has;
both protocols of `hps serve-model` over gRPC.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

import hps
from hps.inference import open_inference_pb2 as inference
from hps.service.client.errors import Failure
from hps.service.client.options import ClientConfig
from hps.service.client.transport import MODEL_SERVICE, GrpcTransport
from hps.v1 import model_server_pb2, parameter_server_pb2
from hps.v1.parameter_server_pb2 import ErrorDetail
from tests.torture.publishing_workload import (
    KEYS,
    MARKER,
    NUM_KEYS,
    TABLE,
    States,
    bias_of,
    number_of,
)

_CLIENTS = 2
_ASKED = 50  # keys of a look-up, and examples of a request
_OFF = 1e-5  # of a probability, by the order of sums
_REST_SECONDS = 0.01  # after a request that was cut
_PAUSE_SECONDS = 0.003  # after one that was not


@dataclass
class PublishingReport:
    """What a run met; `violations` must be empty."""

    kills: int = 0
    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: "PublishingReport") -> None:
        """Takes another run's figures in."""
        self.kills += other.kills
        self.tallies.update(other.tallies)
        self.violations += other.violations

    def missing(self, needed: tuple[str, ...]) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        return [name for name in needed if not self.tallies[name]]

    def __str__(self) -> str:
        told = sorted((name, number) for name, number in self.tallies.items() if number)
        return f"{self.kills} kills: " + ", ".join(f"{name} {number:,}" for name, number in told)


class Knowledge:
    """Which batch each version is of, once anything of it was seen; thread-safe.

    Args:
        seed: of the batches.
        report: gets what is wrong.
        may_lack_space: a server may refuse requests while its disk is full.
    """

    def __init__(
        self, seed: int, report: PublishingReport, *, may_lack_space: bool = False
    ) -> None:
        self.report = report
        self.may_lack_space = may_lack_space
        self._lock = threading.Lock()
        self._states = States(seed)
        self._numbers: dict[str, int] = {}

    def number(self, version: str) -> int | None:
        """The batch that a version is of; None: nobody knows yet."""
        with self._lock:
            return self._numbers.get(version)

    def check(self, version: str, keys: np.ndarray, rows: np.ndarray, whence: str) -> int:
        """Compares rows, float32 [keys], of which the last one is the marker's, with the batch that
        it names; returns that."""
        number = number_of(rows[-1])
        with self._lock:
            known = self._numbers.setdefault(version, number)
            expected = self._states.rows(number)[keys.astype(np.int64)] if number >= 0 else rows + 1
        wrong = np.flatnonzero(rows != expected)
        if known != number or len(wrong):
            told = ", ".join(f"{keys[at]}: {rows[at]} not {expected[at]}" for at in wrong[:3])
            self.report.violations.append(
                f"version {version}, by {whence}: of batch {number}, of {known} before; {told}"
            )
        return number

    def check_scores(self, version: str, keys: np.ndarray, scores: np.ndarray) -> bool:
        """Compares probabilities of examples of one key each; False where nobody knows the version
        yet."""
        number = self.number(version)
        if number is None:
            return False
        with self._lock:
            rows = self._states.rows(number)[keys.astype(np.int64)].astype(np.float64)
        expected = 1 / (1 + np.exp(-(rows + bias_of(number))))
        off = float(np.abs(scores - expected).max())
        if not off <= _OFF:
            self.report.violations.append(
                f"version {version}: scores of batch {number} are off by {off:.6f}"
            )
        return True

    def read(self, model: hps.Model) -> tuple[np.ndarray, np.ndarray]:
        """(keys that are stored, rows of all) of a model that was loaded."""
        stored = [keys for keys, _ in model.server.items(TABLE)]
        rows = np.asarray(model.lookup(TABLE, KEYS)).reshape(-1)
        return np.sort(np.concatenate(stored)), rows

    def check_stored(self, version: str, keys: np.ndarray) -> None:
        """Compares which keys are there: what was erased is gone."""
        number = self.number(version)
        with self._lock:
            expected = KEYS[self._states.stored(number or 0)]
        if not np.array_equal(keys, expected):
            self.report.violations.append(
                f"version {version}: {len(keys)} keys are stored, batch {number} has "
                f"{len(expected)}"
            )

    def check_bias(self, version: str, bias: float) -> None:
        """Compares the dense part."""
        number = self.number(version) or 0
        if bias != bias_of(number):
            self.report.violations.append(
                f"version {version}: its bias is {bias}, batch {number} has {bias_of(number)}"
            )


class _Client:
    """One that asks until it is told to end."""

    def __init__(self, config: ClientConfig, knowledge: Knowledge, seed: int) -> None:
        self._knowledge = knowledge
        self._report = knowledge.report
        self._chance = random.Random(seed)
        (address,) = config.addresses
        self._rows = GrpcTransport(address, config, MODEL_SERVICE)
        self._scores = GrpcTransport(address, config, "inference.GRPCInferenceService")

    def ask_until(self, over: threading.Event) -> None:
        while not over.is_set():
            ask = self._look_up if self._chance.random() < 0.5 else self._infer
            try:
                ask()
                time.sleep(_PAUSE_SECONDS)
            except Failure as failure:
                detail = failure.detail
                is_full = detail is not None and detail.kind == ErrorDetail.STORE
                if is_full and self._knowledge.may_lack_space:
                    self._report.tallies["requests without space"] += 1
                    time.sleep(_REST_SECONDS)
                    continue
                if detail is not None:  # the server's own words: it was not killed
                    self._report.violations.append(f"a request failed: {failure.in_words()}")
                    return
                self._report.tallies["requests cut"] += 1
                time.sleep(_REST_SECONDS)

    def close(self) -> None:
        for transport in (self._rows, self._scores):
            transport.close()

    def _keys(self) -> np.ndarray:
        chosen = [self._chance.randrange(NUM_KEYS) for _ in range(_ASKED)]
        return np.array([*chosen, MARKER], np.uint64)

    def _look_up(self) -> None:
        keys = self._keys()
        request = parameter_server_pb2.PullRequest(table=TABLE, keys=keys.tobytes())
        data = self._rows.call("Lookup", request.SerializeToString(), 20.0)
        reply = model_server_pb2.LookupReply.FromString(data)
        rows = np.frombuffer(reply.rows, np.float32)
        self._knowledge.check(reply.version, keys, rows, "a look-up")
        self._report.tallies["look-ups"] += 1

    def _infer(self) -> None:
        keys = self._keys()
        request = inference.ModelInferRequest(model_name="ads")
        request.inputs.add(name=f"{TABLE}.keys", datatype="UINT64", shape=[len(keys), 1])
        request.raw_input_contents.append(keys.tobytes())
        data = self._scores.call("ModelInfer", request.SerializeToString(), 20.0)
        reply = inference.ModelInferResponse.FromString(data)
        scores = np.frombuffer(reply.raw_output_contents[0], np.float32)
        if self._knowledge.check_scores(reply.model_version, keys, scores):
            self._report.tallies["scores"] += 1


@contextmanager
def asking(config: ClientConfig, knowledge: Knowledge) -> Iterator[None]:
    """Clients that ask for rows and scores until the block ends."""
    over = threading.Event()
    clients = [_Client(config, knowledge, seed) for seed in range(_CLIENTS)]
    threads = [threading.Thread(target=one.ask_until, args=(over,)) for one in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
