"""Every benchmark runs at its smallest size and writes a whole result; peers join where installed.

Above it: pytest. Below it: benchmarks/.
"""

import json

import pytest
import torch

from benchmarks import run
from benchmarks.common.report import check_result
from benchmarks.parameter_server.memory.memory_bench import one_bucket_load
from hps.cli.main import main as hps_main

# Module or name of a peer -> a word in the names of its rows.
PEERS = {
    "sparse_step": {"fbgemm_gpu": "fbgemm", "torchrec": "torchrec"},
    "pooled_step": {"fbgemm_gpu": "fbgemm"},
    "many_tables": {"fbgemm_gpu": "fbgemm", "torchrec": "torchrec"},
    "end_to_end": {"fbgemm_gpu": "fbgemm"},
    "quality": {"deepctr_torch": "DeepCTR-Torch", "sklearn": "logistic regression"},
    "ssd_store": {"rocksdict": "RocksDB", "lmdb": "LMDB"},
    "service": {
        "Redis": "Redis",
        "Arrow Flight": "Arrow Flight",
        "torch.distributed.rpc": "torch.distributed.rpc",
    },
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Runs a benchmark's smoke mode once; later calls get the same result."""
    results = {}

    def result_of(name):
        if name not in results:
            out = tmp_path_factory.mktemp(name) / "out.json"
            num_threads = torch.get_num_threads()
            assert run.main([name, "--smoke", "--json", str(out)]) == 0
            torch.set_num_threads(num_threads)  # runs in this process choose their own
            results[name] = json.loads(out.read_text())
        return results[name]

    return result_of


@pytest.mark.parametrize("name", run.names())
def test_smoke_mode_writes_a_whole_result(name, smoke):
    result = smoke(name)
    check_result(result)
    assert result["name"] == name and result["smoke"] and result["rows"]
    assert all(row["value"] > 0 and row["baseline_value"] > 0 for row in result["rows"])


@pytest.mark.parametrize(("name", "peer"), [(n, p) for n, peers in PEERS.items() for p in peers])
def test_peer_takes_part_where_it_is_installed(name, peer, smoke):
    result = smoke(name)
    if peer in result["absent"]:
        pytest.skip(f"peer {peer} is not installed: {result['absent'][peer]}")
    assert any(PEERS[name][peer] in row["baseline"] for row in result["rows"])


def test_hps_bench_is_the_same_command(tmp_path, capsys):
    out = tmp_path / "pull.json"
    assert hps_main(["bench", "pull", "--smoke", "--json", str(out), "--rows", "5000"]) == 0
    assert json.loads(out.read_text())["name"] == "pull"
    assert "prefetched plain gather" in capsys.readouterr().out


def test_a_table_with_one_bucket_a_key_overflows_early():
    assert 0.4 < one_bucket_load(1 << 20, seed=0) < 0.65
