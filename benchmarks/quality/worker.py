"""Runs jobs of one contender in a process of its own; prints a line of JSON for each.

Above it: runs.py, which starts it. Below it: contenders.py, data_sets.py. Jobs come as JSON on the
command line. A job that fails ends the process; what was printed before counts.
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.quality.contenders import run_contender
from benchmarks.quality.data_sets import load
from benchmarks.quality.settings import Job, Scores, Settings


def job_from(values: dict[str, Any]) -> Job:
    """What `asdict` made of a job, as a job."""
    settings = dict(values["settings"])
    if settings["hidden"] is not None:
        settings["hidden"] = tuple(settings["hidden"])
    return Job(**{**values, "settings": Settings(**settings)})


def run_job(job: Job) -> Scores:
    """Part -> figures."""
    log = load(job.log, job.examples, job.criteo)
    scores = run_contender(job.contender, log, job.settings, job.seed)
    return {**scores, "best_auc": log.best, "examples": len(log.table)}


def main() -> int:
    """Reads the jobs, runs them, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", help="a JSON list of jobs")
    for values in json.loads(parser.parse_args().jobs):
        job = job_from(values)
        print(json.dumps({"job": asdict(job), "scores": run_job(job)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
