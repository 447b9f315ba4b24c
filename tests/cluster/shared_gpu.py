"""One of two ranks that share a device; rows travel by way of the host, as NCCL wants one a rank.

Above it: test_shared_gpu.py, which has torchrun start it. Below it: ranks.py, gloo. Writes the
digests of the tables to a file of its rank.
"""

import json
import sys
from pathlib import Path

import hps
from hps.cluster.world.torch_world import torch_world
from tests.cluster.ranks import Task, train

TASK = Task(num_batches=8, num_examples=200, num_keys=400)


def main() -> None:
    """Arguments: a folder, the device, the format of rows and gradients."""
    folder, device, wire = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    world = torch_world("gloo")
    config = hps.Config(
        path=folder / "cluster",
        tables=TASK.tables(),
        dram=hps.DramCacheConfig(bytes=2**22),
        gpu=hps.GpuCacheConfig(bytes=2**22, batch_bytes=2**21, device=device),
        threads=1,
    )
    options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)
    with hps.ClusterParameterServer(config, world, options) as server:
        losses = train(server, TASK, 2, world.rank, world.size)
        told = {name: server.digest(name) for name in server.tables}
        (folder / f"rank-{world.rank}.json").write_text(json.dumps([told, losses]))
    world.close()


if __name__ == "__main__":
    main()
