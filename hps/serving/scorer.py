"""Scorer: requests over one model: which model and version, what inputs, how many, by when.

Above it: the handlers of both protocols, one thread a request. Below it: inputs.py, batcher.py,
`hps.Model`.
"""

import errno
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hps.common.arrays import as_numpy
from hps.common.field_checks import require_whole
from hps.common.row_layout import Floats, Keys
from hps.errors import ConfigError, DataError, StoreError
from hps.service.messages.status import Code, Refusal, not_found, too_large
from hps.service.server.auth import READ, WRITE, Caller
from hps.serving.batcher import Batcher, BatchOptions
from hps.serving.figures import ScoreFigures
from hps.serving.inputs import DENSE, KEYS, LINES, Inputs
from hps.serving.outcomes import OutcomeFigures
from hps.serving.refusals import invalid
from hps.serving.tensors import BYTES, Tensor
from hps.train.model import Model
from hps.types import Batch
from hps.v1.parameter_server_pb2 import ErrorDetail

OUTPUT = "probability"
_NAME = re.compile(r"[\w.\-]{1,64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")  # of a version
_MOST_LISTED = 2048  # columns in a model's metadata
_TRIES = 8  # of what a new version has come into


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """What is scored.

    Args:
        name: of the model, in the paths of both protocols.
        max_rows: examples of a request, at most.
        batch: how requests are put together.

    Raises:
        ConfigError: a field outside its limits.
    """

    name: str
    max_rows: int = 4096
    batch: BatchOptions = field(default_factory=BatchOptions)

    def __post_init__(self) -> None:
        require_whole("ScoringOptions.max_rows", self.max_rows, 1, 2**24)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"--name {self.name[:80]!r}: the name of a model is 1 to 64 letters, digits, '_', "
                "'.', '-'"
            )


@dataclass(frozen=True)
class Scored:
    """Scores float32 [B] of a request, and the version of all of them."""

    scores: Floats
    version: str


@dataclass(frozen=True)
class Described:
    """A tensor of a model's metadata; -1 is any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Scorer:
    """Answers requests; thread-safe.

    Args:
        model: that scores; stays open.
        options: see there.
    """

    def __init__(self, model: Model, options: ScoringOptions) -> None:
        self.model = model
        self.name = options.name
        self.figures = ScoreFigures()
        self.outcomes = OutcomeFigures()
        self._max_rows = options.max_rows
        self._inputs = (model.loaded, Inputs(model, options.max_rows))
        self.batcher = Batcher(self._predict, options.batch, self.figures)

    @property
    def inputs(self) -> Inputs:
        """What makes batches of requests to the model as it is now."""
        loaded, inputs = self._inputs
        if self.model.loaded.features is not loaded.features:  # not only other weights
            loaded = self.model.loaded
            self._inputs = (loaded, inputs := Inputs(self.model, self._max_rows))
        return inputs

    def tables(self) -> list[str]:
        """Names of the tables whose rows it scores with."""
        return list(self.model.server.tables)

    def check_model(self, name: str, version: str = "") -> None:
        """Refuses a model, or a version of it, that is not served; empty is any version."""
        if name != self.name:
            raise not_found(f"there is no model {name[:80]!r} here; it has {self.name!r}")
        self._check_version(version, self.model.version)

    def _check_version(self, asked: str, served: str) -> None:
        if asked and asked != served:
            raise not_found(
                f"model {self.name!r} has no version {asked[:80]!r} here; it has {served!r}"
            )

    def check_caller(self, caller: Caller) -> None:
        """Refuses one that may not read every table of the model; names none of them."""
        if any(caller.right(table) < READ for table in self.tables()):
            raise Refusal(
                Code.PERMISSION_DENIED,
                ErrorDetail.PERMISSION,
                f"{caller.name!r} lacks the right 'read' on some table of the model, and a score "
                "tells of all",
            )

    def check_reporter(self, caller: Caller) -> None:
        """Refuses one that may not tell what became of scores; names no table."""
        if any(caller.right(table) < WRITE for table in self.tables()):
            raise Refusal(
                Code.PERMISSION_DENIED,
                ErrorDetail.PERMISSION,
                f"{caller.name!r} lacks the right 'write' on some table of the model, and outcomes "
                "change the figures of all",
            )

    def add_outcomes(
        self, version: str, scores: Floats, labels: Floats, weights: Floats | None, most: int
    ) -> int:
        """What became of scored examples; see OutcomeFigures.

        Args:
            version: that has scored; of a store the one that is served, of a published model any
                number: it may have been served by another server, or before this one was started.
            most: examples of a call.

        Returns:
            How many were added.

        Raises:
            Refusal: there can be no such version, or these are no outcomes.
        """
        if len(scores) > most:
            raise too_large(f"{len(scores)} examples in one call; {most} at most: send several")
        is_known = version == self.model.version
        if self.model.has_versions:
            is_known = _NUMBER.fullmatch(version) is not None
        if not is_known:
            raise not_found(
                f"model {self.name!r} has no version {version[:80]!r}; give the model_version of "
                "the reply that had the scores"
            )
        return self.outcomes.add(version, scores, labels, weights)

    def infer(
        self,
        inputs: Sequence[Tensor],
        parameters: Mapping[str, Any],
        version: str,
        deadline: float,
    ) -> Scored:
        """Scores of the examples that tensors hold.

        Args:
            inputs, parameters: of a request of the Open Inference Protocol.
            version: that must score; empty: the one that is served.
            deadline: monotonic.

        Raises:
            Refusal: the inputs make no batch, another version is served, or it became late.
            HpsError: the model's.
        """
        deadline = _sooner(deadline, parameters.get("timeout"))
        return self._scored(lambda: self.inputs.batch_of(inputs, parameters), version, deadline)

    def infer_columns(
        self, columns: Mapping[str, Sequence[Any]], version: str, deadline: float
    ) -> Scored:
        """The same of columns of plain values, None where one is missing."""
        return self._scored(lambda: self.inputs.batch_of_values(columns), version, deadline)

    def lookup(self, table: str, keys: Keys) -> tuple[Floats, str]:
        """Rows of keys, float32 [L, dim], and the version that all of them are of.

        Raises:
            Refusal: no such table.
        """
        if table not in self.model.server.tables:
            raise not_found(
                f"the model has no table {table[:80]!r}; its metadata names those that it has, as "
                "TABLE.keys"
            )
        rows, version = self.model.lookup_with_version(table, keys)
        return as_numpy(rows, "rows"), version

    def described_inputs(self) -> list[Described]:
        """Every input that a request may have; a request has those of one kind: see inputs.py."""
        inputs, model = self.inputs, self.model
        has_lines = inputs.lines is not None and inputs.lines.are_read
        found = [Described(LINES, BYTES, (-1,))] if has_lines else []
        found += [Described(name, "FP32", (-1,)) for name in inputs.dense]
        found += [Described(name, BYTES, (-1,)) for name in inputs.features]
        found = found[:_MOST_LISTED]
        for table, names in model.features.items():
            found.append(Described(f"{table}{KEYS}", "INT64", (-1, len(names))))
        if model.num_dense:
            found.append(Described(DENSE, "FP32", (-1, model.num_dense)))
        return found

    @property
    def platform(self) -> str:
        """What the model is, in one word."""
        return f"hps_{PurePosixPath(self.model.kind).stem}".split(":")[0]

    def _scored(self, make: Any, version: str, deadline: float) -> Scored:
        for _ in range(_TRIES):
            features = self.model.loaded.features  # another object in another model
            try:
                scores, scored_by = self._scored_once(make, deadline)
            except Exception:
                if self.model.loaded.features is features:
                    raise
                continue  # made for a model that has gone meanwhile
            if self.model.loaded.features is features:
                break
        else:
            raise StoreError(errno.EAGAIN, f"{_TRIES} models came while one request was scored")
        self._check_version(version, scored_by)
        return Scored(scores, scored_by)

    def _scored_once(self, make: Any, deadline: float) -> tuple[Floats, str]:
        try:
            batch: Batch = make()
        except DataError as error:  # raw values that cannot be read are the client's
            raise invalid(str(error)) from None
        return self.batcher.score(batch, deadline)

    def _predict(self, batch: Batch) -> tuple[Floats, str]:
        scores, version = self.model.predict_with_version(batch)
        return as_numpy(scores, "scores"), version


def _sooner(deadline: float, timeout: object) -> float:
    """The deadline, or that of the protocol's parameter `timeout`, in microseconds."""
    if timeout is None:
        return deadline
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise invalid(f"parameter 'timeout' is {timeout!r}; it is whole microseconds, 0 for none")
    return deadline if not timeout else min(deadline, time.monotonic() + timeout / 1e6)
