"""Which examples of a log are kept: the native rule of a reader's config, and hashes of rows.

Above it: the readers of text and of records. Below it: csrc/reader/sample_rule.h, XXH64. Of text
the native parser hashes each line itself (csrc/reader/kept_lines.h).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.reader.config import WHOLE, ReaderConfig
from hps.reader.schema import encode_name


def sample_rule(config: ReaderConfig) -> _C.SampleRule:
    """The rule of a config; of one without a sample it keeps everything."""
    low, high = config.hash_range or WHOLE
    return _C.SampleRule(low, high, config.negative_rate)


def choose_rows(
    rule: _C.SampleRule, hashes: NDArray[np.uint64], is_negative: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which rows are kept, bool [n].

    Args:
        rule: of the reader.
        hashes: of the rows' contents, uint64 [n].
        is_negative: whether a row's label is 0 or -1; False where there is no telling.
    """
    kept = np.empty(len(hashes), np.bool_)
    rule.choose(hashes, is_negative, kept)
    return kept


def hash_rows(
    names: Sequence[str],
    keys: Sequence[NDArray[np.uint64]],
    offsets: Sequence[NDArray[np.int64]],
    dense: NDArray[np.float32],
) -> NDArray[np.uint64]:
    """Hashes of rows by their values, uint64 [n]: sums of XXH64 of each feature's keys, the name's
    hash being the seed, and of the dense values. The order of the features does not matter.

    Args:
        names: of the features.
        keys: of each feature: uint64 [L].
        offsets: of each feature: int64 [n + 1]; row r has keys [offsets[r], offsets[r + 1]).
        dense: float32 [n, number of dense]; -0 counts as 0, any NaN as one.

    Cost: 8 bytes of hashing a key, 4 a dense value; one array of n hashes a feature.
    """
    plain = np.ascontiguousarray(np.where(np.isnan(dense), np.float32(np.nan), dense + 0.0))
    plain = plain.astype(np.float32, copy=False)
    ends = np.arange(len(plain) + 1, dtype=np.int64) * (4 * plain.shape[1])
    sums = np.empty(len(plain), np.uint64)
    _C.hash_strings(plain.reshape(-1).view(np.uint8), ends, 0, sums)
    hashes = np.empty_like(sums)
    for name, column, places in zip(names, keys, offsets, strict=True):
        seed = int(_C.xxh64(encode_name(name)))
        flat = np.ascontiguousarray(column).view(np.uint8)
        _C.hash_strings(flat, np.ascontiguousarray(places) * 8, seed, hashes)
        sums += hashes
    return sums
