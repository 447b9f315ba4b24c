"""A training that publishes as it learns, and a model that follows and answers beside it.

Run it: python examples/online_loop.py. In one process for once: a thread trains on a generated log
and publishes every few steps; the main thread asks a model that follows for the score of one
example, again and again, and says which version has scored it, and how old that version's rows
are. On machines apart it is the same, with a URL that both see:

    hps train log.tsv --store store --publish s3://bucket/ctr --publish-every 20
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


class Training(threading.Thread):
    """Trains on a log, and publishes every so many batches.

    Attributes: `figures`, what `hps train --json` tells; None until it has ended, or if it failed.
    """

    def __init__(self, log: Path, store: Path, place: Path, every: int) -> None:
        super().__init__(name="training")
        self.figures: dict | None = None
        self._options = TrainOptions(
            data=[log],
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


def run(folder: Path, num_examples: int, every: int) -> dict[str, float]:
    """Trains, publishes, follows.

    Returns:
        Version -> the score that it gave to the first example of the log.
    """
    log, place = folder / "log.tsv", folder / "published"
    LogWriter(GeneratorConfig(examples=num_examples, keys=50_000), "criteo", 1).write(log)
    training = Training(log, folder / "store", place, every)
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
