"""A forked child has its parent's client, and none of its connections: one clear error, no hang."""

import os
from pathlib import Path

import numpy as np

import hps
from tests.forking import in_forked_child
from tests.service.client import client_lab

KEYS = np.arange(500, dtype=np.uint64)
GRADS = np.ones((500, 8), np.float32)


def test_a_forked_child_is_refused_the_connections_of_a_client(tmp_path: Path) -> None:
    with client_lab.service(tmp_path, 2) as service:
        client = service.client()
        client.push("ads", KEYS, GRADS)

        def child() -> str:
            verbs = [
                lambda: client.pull("ads", KEYS),
                lambda: client.push("ads", KEYS, GRADS),
                lambda: client.pull_async("ads", KEYS),
                lambda: client.checkpoint("child"),
                lambda: client.flush(),
                lambda: client.close(),
            ]
            told = 0
            for verb in verbs:
                try:
                    verb()
                except hps.RemoteError as error:
                    told += f"process {os.getppid()} has it open" in str(error)
            return f"{told} of {len(verbs)}"

        assert in_forked_child(child) == "6 of 6"
        client.push("ads", KEYS, GRADS)
        assert client.num_rows("ads") == len(KEYS)
        client.close()
