"""Runs jobs and keeps what came out, so that a benchmark that was stopped goes on where it was.

Above it: quality_bench.py, defaults_bench.py. Below it: worker.py in processes of their own.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.machine import commit, versions
from benchmarks.common.modules import run_module
from benchmarks.quality.settings import Job, Scores

PEER_PACKAGES = {"deepctr": "deepctr-torch", "torchrec": "torchrec", "linear": "scikit-learn"}


class Runs:
    """Scores of jobs, from earlier runs where there are any.

    Args:
        cache: a folder for what came out, made if it is not there; None: nothing is kept.
        is_here: in this process, for a smoke test.

    A job of hps is of one commit, that of a peer of its package's version.
    """

    def __init__(self, cache: Path | None, is_here: bool) -> None:
        self._cache = cache
        self._is_here = is_here
        self._found: dict[str, Scores] = {}
        packages = versions()
        self._versions = {
            "hps": f"hps {commit()}",
            **{who: f"{name} {packages[name]}" for who, name in PEER_PACKAGES.items()},
        }
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)

    def scores(self, jobs: Iterable[Job]) -> list[Scores]:
        """Of each job, in order; those that are not known yet are run, those of one contender,
        data set and model in one process."""
        wanted = list(jobs)
        groups: dict[tuple[str, str, str], list[Job]] = {}
        for job in dict.fromkeys(wanted):
            if self._known(job) is None:
                groups.setdefault((job.contender, job.log, job.settings.model), []).append(job)
        for group in groups.values():
            self._run(group)
        return [self._found[self._key(job)] for job in wanted]

    def _key(self, job: Job) -> str:
        return job.key(self._versions[job.contender])

    def _known(self, job: Job) -> Scores | None:
        key = self._key(job)
        file = None if self._cache is None else self._cache / f"{key}.json"
        if key not in self._found and file is not None and file.exists():
            self._found[key] = json.loads(file.read_text())["scores"]
        return self._found.get(key)

    def _run(self, jobs: list[Job]) -> None:
        first = jobs[0]
        what = f"{first.log}, {first.settings.model} of {first.contender}: {len(jobs)} runs"
        print(what, file=sys.stderr, flush=True)
        text = json.dumps([asdict(job) for job in jobs])
        printed = run_module("benchmarks.quality.worker", text, is_here=self._is_here)
        lines = [line for line in printed.splitlines() if line.startswith('{"job"')]
        for job, line in zip(jobs, lines, strict=True):
            key = self._key(job)
            self._found[key] = json.loads(line)["scores"]
            if self._cache is not None:
                (self._cache / f"{key}.json").write_text(line + "\n")
