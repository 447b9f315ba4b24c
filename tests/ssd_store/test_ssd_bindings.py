"""The native store checks what it is handed by itself: a mistake above it ends in an error.

Above it: pytest. Below it: hps._C.SsdStore, without hps.ssd_store.SsdStore between.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import keys_of, make_rows, schema

from hps.errors import ConfigError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(40))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SsdStore]:
    with SsdStore.open(tmp_path, [schema()]) as opened:
        opened.append("ads", make_rows(KEYS, 1))
        yield opened


def rows(count: int, num_bytes: int = 32) -> Any:
    return np.zeros((count, num_bytes), np.uint8)


def flags(count: int) -> Any:
    return np.zeros(count, np.uint8)


# Shapes that do not fit each other, and tables that are not there: memory would be overrun.
UNFIT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "append: width": (lambda s: s.append(0, rows(3, 16)), "'ads': rows have 16 bytes, 32 expected"),
    "append: table": (lambda s: s.append(1, rows(3)), "no table number 1"),
    "fetch: width": (lambda s: s.fetch(0, KEYS, rows(40, 48), flags(40)), "48 bytes, 32 expected"),
    "fetch: rows": (lambda s: s.fetch(0, KEYS, rows(39), flags(40)), "rows has length 39, keys 40"),
    "fetch: found": (lambda s: s.fetch(0, KEYS, rows(40), flags(3)), "found has length 3, keys 40"),
    "fetch: table": (lambda s: s.fetch(7, KEYS, rows(40), flags(40)), "no table number 7"),
    "contains: found": (lambda s: s.contains(0, KEYS, flags(39)), "found has length 39, keys 40"),
    "contains: table": (lambda s: s.contains(1, KEYS, flags(40)), "no table number 1"),
    "erase: found": (lambda s: s.erase(0, KEYS, flags(39)), "found has length 39, keys 40"),
    "erase: table": (lambda s: s.erase(1, KEYS, flags(40)), "no table number 1"),
    "num_rows: table": (lambda s: s.num_rows(1), "no table number 1"),
    "scan: table": (lambda s: s.scan(1), "no table number 1"),
    "table_stats: table": (lambda s: s.table_stats(1), "no table number 1"),
    "compact: end": (lambda s: s.compact(0, 2), "no such tables"),
    "compact: order": (lambda s: s.compact(1, 0), "no such tables"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_touched(
    store: SsdStore, name: str
) -> None:
    call, message = UNFIT[name]
    with pytest.raises(ConfigError, match=message):
        call(store._native)
    assert store.num_rows("ads") == 40 and store.contains("ads", KEYS).all()


@pytest.mark.parametrize(
    "keys", [KEYS.astype(np.int64), KEYS[::2], KEYS.reshape(4, 10), KEYS.astype(">u8")]
)
def test_keys_of_another_type_or_layout_are_refused(store: SsdStore, keys: Any) -> None:
    native: Any = store._native
    with pytest.raises(TypeError):
        native.contains(0, keys, flags(len(keys)))
    with pytest.raises(TypeError):
        native.fetch(0, keys, rows(len(keys)), flags(len(keys)))
    assert native.num_rows(0) == 40


def test_arrays_that_may_not_be_written_are_not_written(store: SsdStore) -> None:
    native: Any = store._native
    fixed, found = rows(40), flags(40)
    fixed.setflags(write=False)
    with pytest.raises(TypeError):
        native.fetch(0, KEYS, fixed, found)
    assert not fixed.any()


def test_a_scan_takes_rows_of_its_own_width_only(store: SsdStore) -> None:
    scan = store._native.scan(0)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="48 bytes, 32 expected"):
        scan.next(rows(40, 48))
    assert scan.next(rows(40)) == 40


# The question is asked while a checkpoint holds the store's lock and is about to take the GIL.
QUESTION_BESIDE = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from ssd_twin import keys_of, make_rows, schema
from hps.ssd_store import SsdStore

def taken():
    asking.start()
    time.sleep(0.2)  # without the GIL

with SsdStore.open({path!r}, [schema()]) as store:
    store.append("ads", make_rows(keys_of(range(40)), 1))
    asking = threading.Thread(target=store.{question}, daemon=True)
    store.checkpoint("first", taken=taken)
    asking.join()
"""


@pytest.mark.parametrize("question", ["space_of_compact", "checkpoints", "stats"])
def test_a_question_beside_a_checkpoint_holds_nobody_up(tmp_path: Path, question: str) -> None:
    script = QUESTION_BESIDE.format(
        tests=str(Path(__file__).parent), path=str(tmp_path), question=question
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
