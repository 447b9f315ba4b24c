"""Dynamic-key peers: TorchRec's managed-collision modules map 64-bit keys to rows of an FBGEMM table.

Above it: sparse_step_bench.py. Below it: fbgemm.py, torchrec (optional).
"""

from typing import Any

import torch

from benchmarks.sparse_step.contender import Workload
from benchmarks.sparse_step.fbgemm import make_table

EVICTION_INTERVAL = 10
HASH_ROOM = 1.3


def _jagged(keys: torch.Tensor) -> dict[str, Any]:
    from torchrec.sparse.jagged_tensor import JaggedTensor

    offsets = torch.arange(len(keys) + 1)
    return {"ids": JaggedTensor(keys, torch.ones(len(keys), dtype=torch.int64), offsets=offsets)}


class _Managed:
    """A mapping module over a TBE table with row-wise Adagrad."""

    def __init__(self, work: Workload, mapping: torch.nn.Module, table_rows: int) -> None:
        self._work = work
        self._mapping = mapping
        self._table = make_table(table_rows, work.dim, "rowwise_adagrad")
        self._features = [_jagged(self._keys_of(keys)) for keys in work.keys]
        self._offsets = torch.arange(work.length + 1)

    def _keys_of(self, keys: torch.Tensor) -> torch.Tensor:
        return keys

    def step(self, idx: int) -> None:
        ids = self._mapping(self._features[idx])["ids"].values()
        self._table(ids, self._offsets).backward(self._work.grads)

    def rows_of(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            self._mapping.eval()
            ids = self._mapping(self._features[idx])["ids"].values()
            self._mapping.train()
            return self._table(ids, self._offsets)

    def check(self) -> None:
        """No key fell out of the mapping: distinct keys still have distinct rows."""
        keys = self._work.keys[0]
        self._mapping.eval()
        ids = self._mapping(_jagged(self._keys_of(keys)))["ids"].values()
        self._mapping.train()
        assert len(torch.unique(ids)) == len(torch.unique(keys)), "keys collided in the mapping"


class SortedManaged(_Managed):
    """MCHManagedCollisionModule with LFU: binary search in sorted keys, re-sorted every tenth step.

    It reserves the largest int64, so the keys lose their top bit, as its documentation has it.
    """

    def __init__(self, work: Workload, all_keys: torch.Tensor) -> None:
        from torchrec.modules.mc_modules import LFU_EvictionPolicy, MCHManagedCollisionModule

        mapping = MCHManagedCollisionModule(
            zch_size=work.rows + 1,
            device=torch.device("cpu"),
            eviction_policy=LFU_EvictionPolicy(),
            eviction_interval=EVICTION_INTERVAL,
        )
        in_order = torch.sort(self._keys_of(all_keys)).values
        assert bool((in_order[1:] != in_order[:-1]).all()), "keys collide without their top bit"
        mapping._mch_sorted_raw_ids[: work.rows] = in_order
        super().__init__(work, mapping.train(), work.rows + 1)

    def _keys_of(self, keys: torch.Tensor) -> torch.Tensor:
        return keys & (2**63 - 1)


class HashManaged(_Managed):
    """HashZchManagedCollisionModule: linear probing, at most 128 places, 1.3 places a row."""

    def __init__(self, work: Workload, all_keys: torch.Tensor) -> None:
        from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule

        places = int(work.rows * HASH_ROOM)
        mapping = HashZchManagedCollisionModule(
            zch_size=places, device=torch.device("cpu"), total_num_buckets=1
        )
        mapping.train()
        for piece in all_keys.split(1 << 20):
            mapping(_jagged(piece))
        super().__init__(work, mapping, places)
