"""Trains on small samples of real click logs, one file of each format, and says what was read.

Run it: python examples/real_samples.py --data DIR. The samples are a few hundred rows: enough to
see each format read, trained on and stored, too few to judge a model by. They are not part of this
project; libraries of click models carry such files for their own tests (SOURCES). Above it: nobody.
Below it: `hps.train`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from hps.train import TrainOptions, train

SAMPLES = {
    "criteo_200.tsv": "criteo",
    "criteo_ffm_200.libffm": "libffm",
    "slots_10.txt": "slots",
    "slots_named_80.txt": "slots",
}

SOURCES = {
    "criteo_200.tsv": "DeepCTR, examples/criteo_sample.txt, without its header, tab separated",
    "criteo_ffm_200.libffm": "xlearn, demo/classification/criteo_ctr/small_train.txt",
    "slots_10.txt": "PaddleRec, models/rank/slot_dnn/data/demo_10",
    "slots_named_80.txt": "PaddleRec, models/rank/dnn/data/sample_data/train/sample_train.txt",
}


def run(sample: Path, log_format: str, store: Path) -> dict[str, Any]:
    """Trains twenty passes over one sample; returns the figures."""
    return train(
        TrainOptions(
            data=[sample],
            test=[sample],
            store=store,
            format=log_format,
            batch_size=20,
            epochs=20,
            dim=8,
            hidden=(16,),
            dram="64MiB",
        )
    )


def main() -> None:
    """Trains on every sample that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help=f"holds {', '.join(SAMPLES)}"
    )
    arguments = parser.parse_args()
    if not any((arguments.data / name).is_file() for name in SAMPLES):
        wanted = "\n".join(f"  {name}: {source}" for name, source in SOURCES.items())
        sys.exit(
            f"{arguments.data} has none of the samples, which are files of these projects:\n"
            f"{wanted}\n'hps generate OUT --format NAME' makes a log of any format without them."
        )
    for name, log_format in SAMPLES.items():
        sample = arguments.data / name
        if not sample.exists():
            print(f"{name}: not in {arguments.data}, left out")
            continue
        with tempfile.TemporaryDirectory() as folder:
            figures = run(sample, log_format, Path(folder) / "store")
        print(
            f"{name}: {figures['examples']} examples, {figures['rows']} rows, learnt by heart to "
            f"AUC {figures['test_auc'] or float('nan'):.3f}"
        )


if __name__ == "__main__":
    main()
