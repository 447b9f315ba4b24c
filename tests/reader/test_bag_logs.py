"""Generated logs of bags come back key for key from every reader that can hold them.

Above it: pytest. Below it: hps.generate, hps.reader.
"""

import json

import numpy as np
import pytest
from reader_twin import MASK, assert_same_batches, examples_of, open_log

pytest.importorskip("numba")

from hps.generate import GeneratorConfig
from hps.generate.config import BAG_FORMATS
from hps.generate.kernels import fill_keys
from hps.generate.log import LogWriter
from hps.generate.planted import draw_block, plant

CONFIG = GeneratorConfig(examples=150, keys=400, features=4, dense=2, bag=3.0, seed=3)
OPTIONS = {"batch_size": 64, "hash_keys": False}


@pytest.fixture(scope="module", params=BAG_FORMATS)
def written(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log"
    LogWriter(CONFIG, request.param, 1).write(path)
    return path, request.param


def drawn(kind):
    """Keys of the log feature by feature, and offsets, as a reader has them."""
    model = plant(CONFIG)
    block = draw_block(model, 0, CONFIG.examples)
    keys, offsets = np.empty(len(block.ids), np.uint64), np.empty(len(block.offsets), np.int64)
    fill_keys(model, block, keys, offsets)
    if kind in ("libsvm", "libffm"):
        bags = [np.split(block.ids, block.offsets[1:-1])[place::4] for place in range(4)]
        bases = CONFIG.dense + model.bases
        keys = np.concatenate([ids + bases[place] for place in range(4) for ids in bags[place]])
    return keys.astype(np.uint64), offsets


def names_of(kind):
    first = {"parquet": ("C", 1), "slots": ("", 1), "libffm": ("", CONFIG.dense)}[kind]
    return [f"{first[0]}{first[1] + feature}" for feature in range(CONFIG.features)]


def test_readers_give_the_bags_feature_by_feature(written):
    path, kind = written
    keys, offsets = drawn(kind)
    reader = open_log(path, kind, **{**OPTIONS, "batch_size": CONFIG.examples})
    batch = next(reader)
    ids = batch.features["t0"]
    if kind == "libsvm":  # one feature, of all the keys of a line
        assert reader.features["t0"] == ("index",) and len(ids.offsets) == CONFIG.examples + 1
        bags = [ids.keys_L[ids.offsets[row] : ids.offsets[row + 1]] for row in range(150)]
        for row, bag in enumerate(bags):
            own = [keys[offsets[b] : offsets[b + 1]] for b in range(row, len(offsets) - 1, 150)]
            assert [key for key in bag.tolist() if key >= CONFIG.dense] == np.hstack(own).tolist()
        return
    names = reader.features["t0"]
    assert [name for name in names if name in names_of(kind)] == names_of(kind)
    assert len(ids.offsets) == len(names) * CONFIG.examples + 1
    first = (len(names) - CONFIG.features) * CONFIG.examples  # libffm has dense columns before
    own = ids.offsets[first:].numpy()
    assert (own - own[0]).tolist() == offsets.tolist()
    assert [key & MASK for key in ids.keys_L[own[0] :].tolist()] == keys.tolist()
    if kind == "libffm":
        assert (ids.weights_L[own[0] :] == 1).all()


def test_reading_goes_on_within_a_log_of_bags_and_parts_join(written):
    path, kind = written
    reader = open_log(path, kind, **OPTIONS)
    batches = list(reader)
    assert [len(batch) for batch in batches] == [64, 64, 22]
    for done in (1, 2):
        other = open_log(path, kind, **OPTIONS, threads=2)
        other.load_state_dict(json.loads(json.dumps(batches[done - 1].position)))
        assert_same_batches(list(other), batches[done:])
    parts = [list(open_log(path, kind, **OPTIONS, part=(rank, 3))) for rank in range(3)]
    joined = [part for step in zip(*parts, strict=True) for part in step]
    assert examples_of(joined, reader.features) == examples_of(batches, reader.features)
