"""What a step over a gpu_cache on a device asks of that device, as committed in step_counts.json,
and as counted.

`python -m tests.gpu_cache.step_counts` writes the file anew and prints the tables of
docs/decisions/0041-a-step-on-a-device.md. Above it: test_step_counts.py. Below it:
counted_device.py.

A step is one batch through a server with a gpu_cache over a dram_cache, as a Pipeline has it done:
the fetch stage warms, the copy stage pins, the training loop calls SparseEmbeddings, backward with
a gradient that it keeps, which costs a copy, and RowOptimizer; then the pins go. Three cases: all
rows are in the gpu_cache; none is, and its slots are all taken, by dirty rows; none is, and slots
are free. A batch has 64 keys a table, 48 of them distinct, in 32 bags.
"""

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import hps
from hps import _C
from hps.common.bags import BagPooling, make_bags
from hps.common.row_layout import Keys
from hps.contracts.row_cache import AnyRowCache
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from tests.gpu_cache.counted_device import KINDS, CountedDevice
from tests.twins.ssd_store import TwinDisk

RECORD = Path(__file__).with_name("step_counts.json")
RENEW = "renew it with: python -m tests.gpu_cache.step_counts"
CASES = ("all hits", "misses, full", "misses, filling")
TABLES = (1, 10, 26)
DIM, BAGS, KEYS_A_BAG, DISTINCT = 16, 32, 2, 48
_BUCKETS = 4  # of 64 slots, a table

Counts = dict[str, Any]


class CountedSteps:
    """A server with a gpu_cache over a CountedDevice, and its steps.

    Args:
        path: of its store.
        num_tables: alike.
    """

    def __init__(self, path: Path, num_tables: int) -> None:
        self.device = CountedDevice()
        failures = Failures(self.device)
        names = [f"table{i}" for i in range(num_tables)]
        tables = [
            hps.TableConfig(
                name=name, dim=DIM, optimizer=hps.RowWiseAdagrad(lr=0.1), features=["C1"]
            )
            for name in names
        ]
        row_bytes = _C.row_layout(hps.RowWiseAdagrad().kind, DIM)["row_bytes"]
        share = 16_384 + _BUCKETS * (64 * (row_bytes + 4) + 16)
        config = hps.Config(
            path=path,
            tables=tables,
            dram=hps.DramCacheConfig(bytes=num_tables * 2**18),
            gpu=hps.GpuCacheConfig(bytes=num_tables * share, device="cpu"),
            threads=1,
        )

        def caches(config: hps.Config) -> dict[str, AnyRowCache]:
            return make_gpu_caches(
                config,
                lambda options: cast("Any", DeviceCache(self.device, failures, options)),
            )

        tiers = Tiers(open_store=TwinDisk().open, make_gpu_caches=caches)
        self.server = ParameterServer(config, _tiers=tiers)
        parts = self.server.parts.tables
        self.capacity_rows = parts.stacks[names[0]].cache.capacity_rows
        turns = [turn for stack in parts.stacks.values() for turn in stack.turns()]
        self.device.locks = {
            "updates": cast("Any", parts.updates)._is_owned,
            "turn": lambda: any(turn.is_mine for turn in turns),
            "lock": cast("Any", parts.lock)._is_owned,
        }
        self.names = names
        self.next_key = 0
        self._embeddings = hps.SparseEmbeddings(self.server, dict.fromkeys(names, 1), "mean")
        self._optimizer = hps.RowOptimizer(self.server)
        self._slope = torch.full((BAGS, num_tables * DIM), 0.5)
        offsets = torch.arange(0, BAGS * KEYS_A_BAG + 1, KEYS_A_BAG)
        self.bags = make_bags(offsets, BAGS * KEYS_A_BAG, "bags")
        self.pooling = BagPooling(self.bags, None, is_mean=True)
        # What queued work reads and writes: on a device memory is given out again in its order.
        self._kept: list[torch.Tensor] = []

    def new_keys(self) -> Keys:
        """Keys of a batch that no table has seen."""
        first = self.next_key
        self.next_key += DISTINCT
        return np.arange(BAGS * KEYS_A_BAG, dtype=np.uint64) % DISTINCT + first

    def overfill(self) -> Keys:
        """Steps over more new keys than a table has slots; all keys so far."""
        while self.next_key < 2 * self.capacity_rows:
            self.step(self.new_keys())
        return np.arange(self.next_key, dtype=np.uint64)

    def step(self, keys: Keys) -> None:
        """One batch, the same keys in each table."""
        server, device = self.server, self.device
        there = torch.from_numpy(keys.view(np.int64))  # as the copy stage has them
        queued = server.queued
        assert queued is not None
        with device.counting("fetch"):
            warm = queued.warming(dict.fromkeys(self.names, keys))
        features = {name: hps.Ids(there, self.bags.offsets, None, self.bags) for name in self.names}
        with device.counting("copy"):
            held = queued.pin_joint(features, BAGS)
            assert held is not None
            for rows in warm.values():
                rows.release()
        batch = hps.Batch(features, torch.zeros(BAGS, 0), torch.zeros(BAGS))
        batch.rows = dict(held.of_tables())
        with device.counting("training"):
            output = self._embeddings(batch)
            output.backward(self._slope)
            self._optimizer.step()
            held.release()
        self._kept = [output]

    def counts(self, keys: Keys) -> Counts:
        """Of one step."""
        device = self.device
        device.work_off(device.num_queued)  # what was asked for before is no wait of this step's
        device.verbs, device.kernels, device.waits = {}, Counter(), Counter()
        self.step(keys)
        return counts_of(device)


def counts_of(device: CountedDevice) -> Counts:
    """What was asked of a device since its counts were emptied."""
    return {
        "verbs": {
            f"{stage}: {verb}": {kind: counts[kind] for kind in KINDS if counts[kind]}
            for (stage, verb), counts in device.verbs.items()
        },
        "kernels": dict(sorted(device.kernels.items())),
        "waits": {
            f"{wait.stage}: {wait.place} [{', '.join(wait.holds)}]": count
            for wait, count in device.waits.items()
        },
    }


def count_steps(num_tables: int) -> dict[str, Counts]:
    """The counts of each case."""
    with tempfile.TemporaryDirectory() as folder:
        steps = CountedSteps(Path(folder) / "store", num_tables)
        with steps.server:
            steps.step(steps.new_keys())  # buffers are made at first
            found = {"misses, filling": steps.counts(steps.new_keys())}
            while steps.next_key < 2 * steps.capacity_rows:
                steps.step(steps.new_keys())
            cache = steps.server.parts.tables.stacks[steps.names[0]].cache
            assert cache.num_dirty == cache.capacity_rows, "the table is not full of dirty rows"
            found["misses, full"] = steps.counts(keys := steps.new_keys())
            found["all hits"] = steps.counts(keys)
    return {case: found[case] for case in CASES}


@dataclass
class Sums:
    """Of one step, over its verbs."""

    counts: Counter[str]
    num_locked: int  # waits under the server's lock
    num_training: int  # waits of the training thread

    @staticmethod
    def of(counts: Counts) -> "Sums":
        total: Counter[str] = Counter()
        for verb in counts["verbs"].values():
            total.update(verb)
        waits = counts["waits"].items()
        locked = sum(count for place, count in waits if place.endswith(("[lock]", ", lock]")))
        training = sum(count for place, count in waits if place.startswith("training: "))
        return Sums(total, locked, training)


def read_record() -> dict[str, dict[str, Counts]]:
    """Counts by number of tables and case."""
    record: dict[str, dict[str, Counts]] = json.loads(RECORD.read_text())
    return record


def as_text(record: dict[str, dict[str, Counts]]) -> str:
    """JSON with a line a verb, and one for all kernels."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda leaf: " ".join(leaf[0].split()), text) + "\n"


def table_of_sums(record: dict[str, dict[str, Counts]]) -> list[str]:
    """The table at the head of the page, in Markdown."""
    kinds = ("launches", "others", "copies", "waits")
    names = "launches | other work queued | copies | host waits | under the lock | training thread"
    lines = [f"| tables, case | {names} | pieces of memory |", "| --- |" + " --- |" * 7]
    for tables, cases in record.items():
        for case, counts in cases.items():
            sums = Sums.of(counts)
            numbers = [sums.counts[kind] for kind in kinds]
            pieces = sums.counts["device_pieces"] + sums.counts["pinned_pieces"]
            numbers += [sums.num_locked, sums.num_training, pieces]
            lines.append(f"| {tables}, {case} | {' | '.join(map(str, numbers))} |")
    return lines


def table_of_verbs(cases: dict[str, Counts]) -> list[str]:
    """Launches, other work and waits of one table's verbs, by case, in Markdown."""
    verbs = dict.fromkeys(verb for counts in cases.values() for verb in counts["verbs"])
    lines = [f"| stage: verb | {' | '.join(cases)} |", "| --- |" + " --- |" * len(cases)]
    for verb in verbs:
        cells = []
        for counts in cases.values():
            found = counts["verbs"].get(verb, {})
            kinds = (("launches", ""), ("others", "+"), ("waits", "w"))
            cells.append(
                " ".join(f"{found[kind]}{mark}" for kind, mark in kinds if kind in found) or "-"
            )
        lines.append(f"| {verb} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Writes the record and prints the tables."""
    record = {str(tables): count_steps(tables) for tables in TABLES}
    RECORD.write_text(as_text(record))
    print("\n".join([*table_of_sums(record), "", *table_of_verbs(record["1"]), ""]))
    for case, counts in record["1"].items():
        print(case, json.dumps(counts["waits"], indent=1))


if __name__ == "__main__":
    main()
