"""Trains on a generated log whose features hold several keys each, and says how near it came.

Run it: python examples/bags_of_keys.py. A feature such as the ads that a user has clicked before is
a bag of keys: readers give them with offsets, models sum a bag's embeddings. The log comes from a
planted model, so the best possible AUC is known. The same from the command line:

    hps generate log --format slots --bag 3 --examples 40000 --features 4 --dense 4 --keys 100 \
      --test test --test-examples 20000
    hps train log --store store --dim 8 --hidden 32 --lr 0.05 --dense-lr 0.005 --batch-size 128 \
      --test test

Above it: nobody. Below it: `hps.generate`, `hps.reader`, `hps.train`.
"""

import argparse
import tempfile
from pathlib import Path

import hps
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.reader import ReaderConfig, open_reader
from hps.train import TrainOptions, train


def first_bags(log: Path) -> dict[str, list[int]]:
    """The keys of the log's first example by feature: how a batch holds bags."""
    tables = [hps.TableConfig(name="features", dim=1)]
    config = ReaderConfig(format="slots", batch_size=4)
    reader = open_reader(log, tables=tables, config=config)
    batch, names = next(reader), reader.features["features"]
    reader.close()
    ids, size = batch.features["features"], len(batch)
    # Feature by feature: the bag of feature f and example b is number f * size + b.
    bags = [
        ids.keys_L[ids.offsets[f * size] : ids.offsets[f * size + 1]] for f in range(len(names))
    ]
    return {name: bag.tolist() for name, bag in zip(names, bags, strict=True)}


def run(folder: Path, num_examples: int, mean: float) -> tuple[float, float]:
    """Generates, trains; returns the test AUC, and the planted model's own on the same examples."""
    config = GeneratorConfig(
        examples=num_examples,
        test_examples=20_000,
        features=4,
        dense=4,
        keys=100,
        bag=mean,
    )
    log, test = folder / "log", folder / "test"
    writer = LogWriter(config, "slots", num_threads=2)
    figures = writer.write(log)
    best = writer.write_test(test)["best_auc"]
    print(f"{figures['values']:,} keys in bags of {figures['mean_bag']:.2f} on average")
    print(f"the first example: {first_bags(log)}")
    options = TrainOptions(
        data=[log],
        test=[test],
        store=folder / "store",
        dim=8,
        hidden=(32,),
        lr=0.05,
        dense_lr=0.005,
        batch_size=128,
        dram="64MiB",
    )
    return train(options)["test_auc"], best


def main() -> None:
    """Trains in a temporary folder and prints both AUCs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=40_000)
    parser.add_argument("--bag", type=float, default=3.0, help="mean number of keys in a bag")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        auc, best = run(Path(folder), arguments.examples, arguments.bag)
    print(f"test AUC {auc:.4f}; best possible {best:.4f}")


if __name__ == "__main__":
    main()
