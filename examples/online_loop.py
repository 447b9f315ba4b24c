"""A training that learns from a growing log and publishes, and a model that follows and answers.

Run it: python examples/online_loop.py. In one process for once: a thread puts files of a log into a
folder, one after the other; a second one trains on the folder as it grows, and publishes every few
steps; the main thread asks a model that follows for the score of one example, again and again, and
says which version has scored it, and how old that version's rows are. On machines apart it is the
same, with URLs that both see:

    hps train --follow s3://bucket/logs --store store --publish s3://bucket/ctr --publish-every 20
    hps.Model.load("s3://bucket/ctr", follow=True, cache_dir="/ssd/ctr")

Above it: nobody. Below it: `hps.generate`, `hps.train`, `hps.Model`.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import hps
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.train import TrainOptions, train

IDLE_SECONDS = 1.0  # without a file, after which the training ends


class Arrivals(threading.Thread):
    """Puts the files of a log into a folder, as a service that logs its requests does.

    Each has another name until it is whole: a training that follows the folder passes over those
    that end with .tmp.
    """

    def __init__(self, log: Path, logs: Path, num_files: int, seconds: float) -> None:
        super().__init__(name="arrivals")
        self._lines = log.read_bytes().splitlines(keepends=True)
        self._logs = logs
        self._num_files = num_files
        self._seconds = seconds

    def run(self) -> None:
        size = -(-len(self._lines) // self._num_files)
        for number in range(self._num_files):
            part = self._logs / f"{number:06}.tsv.tmp"
            part.write_bytes(b"".join(self._lines[number * size : (number + 1) * size]))
            part.rename(part.with_suffix(""))
            time.sleep(self._seconds)


class Training(threading.Thread):
    """Trains on a folder of logs until no more come, and publishes every so many batches.

    Attributes: `figures`, what `hps train --json` tells; None until it has ended, or if it failed.
    """

    def __init__(self, logs: Path, store: Path, place: Path, every: int) -> None:
        super().__init__(name="training")
        self.figures: dict | None = None
        self._options = TrainOptions(
            follow=logs,
            poll=0.05,
            follow_until_idle=IDLE_SECONDS,
            store=store,
            dim=8,
            hidden=(32, 16),
            batch_size=512,
            torch_threads=1,
            publish=str(place),
            publish_every=every,
        )

    def run(self) -> None:
        self.figures = train(self._options)


def newest_of(place: Path) -> str | None:
    """The newest version there is; None for none."""
    numbers = [int(path.stem.removeprefix("version-")) for path in place.glob("version-*.json")]
    return str(max(numbers)) if numbers else None


def wait_for_first(place: Path, training: Training) -> None:
    """Until something is published."""
    while newest_of(place) is None:
        if not training.is_alive() and newest_of(place) is None:
            raise SystemExit("the training has ended, and has published nothing")
        time.sleep(0.02)


def run(
    folder: Path, num_examples: int, every: int, num_files: int = 20, seconds: float = 0.2
) -> dict[str, float]:
    """Trains, publishes, follows.

    Args:
        folder: for all of it.
        num_examples: of the log.
        every: batches between two versions.
        num_files: that the log comes in.
        seconds: between two of them.

    Returns:
        Version -> the score that it gave to the first example of the log.
    """
    log, logs, place = folder / "log.tsv", folder / "logs", folder / "published"
    logs.mkdir()
    LogWriter(GeneratorConfig(examples=num_examples, keys=50_000), "criteo", 1).write(log)
    arrivals = Arrivals(log, logs, num_files, seconds)
    training = Training(logs, folder / "store", place, every)
    arrivals.start()
    training.start()
    wait_for_first(place, training)
    scores: dict[str, float] = {}
    with hps.Model.load(place, follow=True, poll_seconds=0.05) as model:
        batch = next(iter(model.open_reader([log], batch_size=1)))
        while training.is_alive() or model.version != newest_of(place):
            score, version = model.predict_with_version(batch)
            if version not in scores:
                scores[version] = score.item()
                age = time.time() - model.following()["created"]
                print(f"version {version}: {score.item():.4f}, {age:.2f} s after it was made")
            time.sleep(0.02)
    arrivals.join()
    training.join()
    if training.figures is None:
        raise SystemExit("the training failed")
    return scores


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=20, help="batches between two versions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores = run(Path(folder), options.examples, options.every)
    print(f"{len(scores)} versions were seen; the score moved by {spread(scores):.4f}")


def spread(scores: dict[str, float]) -> float:
    """How far apart the scores are."""
    return max(scores.values()) - min(scores.values())


if __name__ == "__main__":
    main()
