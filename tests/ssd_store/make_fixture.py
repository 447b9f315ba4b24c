"""Makes tests/ssd_store/fixtures/: a small store as this version writes it, and what it holds.

Run `python tests/ssd_store/make_fixture.py` only if the format has been changed on purpose: every
later version must open the store that is there (test_ssd_fixture.py).
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent / "fixtures"
STORE, EXPECTED = FIXTURES / "store", FIXTURES / "expected.json"
sys.path[:0] = [str(FIXTURES.parent), str(FIXTURES.parent.parent.parent)]


def main() -> None:
    """Two tables with stale rows and tombstones, two checkpoints with extras, a snapshot."""
    from ssd_twin import dump, keys_of, make_rows, schema

    from hps.ssd_store import SsdStore

    tables = [schema("ads", 4), schema("users", 2, "adam")]
    keys = keys_of([0, 2**63, 2**64 - 1, *range(1, 40)])
    shutil.rmtree(FIXTURES, ignore_errors=True)
    options = {"segment_bytes": 1200, "snapshot_rows": 0, "seed": 11}
    with SsdStore.open(STORE, tables, **options) as store:
        store.append("ads", make_rows(keys, 1))
        store.append("users", make_rows(keys[:9], 2, tables[1].row_bytes))
        store.erase("ads", keys[2:6])
        store.checkpoint("day-1", {"position": b"byte 77", "dense": bytes(range(256)) * 17})
        store.append("ads", make_rows(keys[4:20], 3))
        store.erase("users", np.ascontiguousarray(keys[::2]))
        store.checkpoint("gone")
        store.checkpoint(None, {"position": b"byte 99"})
        store.delete_checkpoint("gone")
        store.restore("day-1")
        store.restore(3)
    expected = []
    for number in (1, 3):
        with SsdStore.open(STORE, [], read_only=True, checkpoint=number) as reader:
            tag = {one["id"]: one["tag"] for one in reader.checkpoints()}[number]
            extras = {name: blob.hex() for name, blob in reader.extras().items()}
            rows = {
                name: {str(key): row.hex() for key, row in sorted(dump(reader, name).items())}
                for name in reader.schemas
            }
        expected.append({"id": number, "tag": tag, "extras": extras, "tables": rows})
    (STORE / "LOCK").unlink()
    (STORE / "pins").rmdir()
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
