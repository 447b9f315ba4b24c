"""What a step of two ranks asks of the device of each, as committed in rank_counts.json, and as
counted.

`python -m tests.cluster.rank_counts` writes the file anew and prints the tables of
docs/decisions/0042-ranks-on-devices.md. Above it: test_rank_counts.py. Below it: device_ranks.py.
All rows that a batch wants are in their owners' slots; the batch's rank is the first of two.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.device_ranks import device_server, random_batch
from tests.cluster.ranks import run_ranks, successes
from tests.gpu_cache.step_counts import Counts, as_text, counts_of

RECORD = Path(__file__).with_name("rank_counts.json")
RENEW = "renew it with: python -m tests.cluster.rank_counts"
CASES = {  # how messages travel, the format of rows and gradients
    "queued, float32": ("queued", "float32"),
    "queued, int8": ("queued", "int8"),
    "staged, float32": ("staged", "float32"),
}
TABLES = (1, 3, 26)
STAGES = ("network", "fetch", "copy", "training")


def count_step(num_tables: int, case: str) -> Counts:
    """Of one step of the first of two ranks."""
    where, wire = CASES[case]
    dims = {f"table{number:02}": 4 + 4 * (number % 2) for number in range(num_tables)}
    options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)

    def body(world: LocalWorld) -> Counts:
        batch = random_batch(np.random.default_rng(world.rank), 60, 6, dims=dims)
        folder = Path(place)
        with device_server(world, folder, where, options, dims, num_tables * 2**16) as rank:
            device, locks = rank.device, rank.server.local.parts.tables
            device.locks = {
                "updates": locks.updates._is_owned,
                "lock": locks.lock._is_owned,
            }
            rank.server.ranks.pipeline_opened(rank)
            rank.step(batch)  # rows and buffers are made at first
            device.verbs, device.kernels, device.waits = {}, Counter(), Counter()
            rank.step(batch)
            counts = counts_of(device)
            rank.server.ranks.pipeline_closed(rank)
            return counts

    with tempfile.TemporaryDirectory() as place:
        first: Counts = successes(run_ranks(2, body))[0]
    return first


def waits_by_stage(counts: Counts) -> dict[str, int]:
    """Of one step."""
    found = dict.fromkeys(STAGES, 0)
    for place, count in counts["waits"].items():
        found[place.partition(":")[0]] += count
    return found


def launches_by_stage(counts: Counts) -> dict[str, tuple[int, int]]:
    """Launches and other work that is queued."""
    found = dict.fromkeys(STAGES, (0, 0))
    for verb, of_verb in counts["verbs"].items():
        stage = verb.partition(":")[0]
        launches, others = found[stage]
        found[stage] = (
            launches + of_verb.get("launches", 0),
            others + of_verb.get("others", 0),
        )
    return found


def read_record() -> dict[str, dict[str, Counts]]:
    """Counts by number of tables and case."""
    record: dict[str, dict[str, Counts]] = json.loads(RECORD.read_text())
    return record


def main() -> None:
    """Writes the record and prints the table of the page."""
    record = {str(tables): {case: count_step(tables, case) for case in CASES} for tables in TABLES}
    RECORD.write_text(as_text(record))
    print(f"| tables, case | {' | '.join(STAGES)} |\n| --- |{' --- |' * len(STAGES)}")
    for tables, cases in record.items():
        for case, counts in cases.items():
            waits, queued = waits_by_stage(counts), launches_by_stage(counts)
            cells = [f"{queued[stage][0]} {queued[stage][1]}+ {waits[stage]}w" for stage in STAGES]
            print(f"| {tables}, {case} | {' | '.join(cells)} |")
    print(json.dumps({case: of["waits"] for case, of in record["3"].items()}, indent=1))


if __name__ == "__main__":
    main()
