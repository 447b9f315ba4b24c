"""Every model of hps as an ONNX graph: what it gives over bases and deltas is what torch gives.

Above it: pytest. Below it: `ClickModel.export_dense`, `server.publish(onnx=True)`, GraphModel.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.models import MODELS, ClickModel, first_order_table
from tests.publish.onnx_lab import NUM_DENSE, a_batch, assert_close, graph_of, learn, scores
from tests.publish.publish_lab import a_server, a_table

# Of each kind the dims of its tables, how many features each has, and which are means.
CASES: dict[str, tuple[dict[str, int], dict[str, list[bool]]]] = {
    "lr": ({"ads": 1}, {"ads": [False] * 3}),
    "fm": ({"ads": 5, "users": 5}, {"ads": [False] * 2, "users": [False]}),
    "deepfm": (
        {"ads": 4, first_order_table("ads"): 1},  # of two levels
        {"ads": [False, True, False]},
    ),
    "dlrm": ({"ads": 4}, {"ads": [False] * 3}),
    "wide_deep": ({"ads": 5, "users": 3}, {"ads": [False] * 2, "users": [True]}),
    "dcn_v2": ({"ads": 4, "users": 2}, {"ads": [True, False], "users": [False, True]}),
    "autoint": ({"ads": 4}, {"ads": [False] * 3}),
    "din": ({"ads": 4, "users": 2}, {"ads": [False] * 2, "users": [True, False]}),
}


def make(kind: str, server: hps.ParameterServer) -> tuple[ClickModel, dict[str, int]]:
    """The smallest model of a kind, and the features of its batches."""
    torch.manual_seed(0)
    counts = {table: len(found) for table, found in CASES[kind][1].items()}
    more: dict[str, Any] = {"hidden": (3,)} if MODELS[kind].has_deep_part else {}
    if MODELS[kind].takes_sequences:
        more["sequences"] = {1: 0}
    model = MODELS[kind](server, counts, NUM_DENSE, **more)
    model.use_means(server, CASES[kind][1])
    model.negative_rate = 0.25
    return model, counts


@pytest.mark.parametrize("kind", MODELS)
def test_a_graph_scores_as_torch_does(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "pub"
    tables = [a_table(name, dim) for name, dim in CASES[kind][0].items()]
    with a_server(tmp_path / "store", *tables) as server:
        model, counts = make(kind, server)
        batches = [a_batch(seed, counts, size) for seed, size in ((1, 5), (2, 1), (3, 9))]
        batches.append(a_batch(4, counts, 3, most=0))  # no key but the first feature's
        batches[0].dense[1, 0] = float("nan")
        expected = []
        for seed in (1, 2):
            learn(server, model, seed)
            made = server.publish(place, model=model, onnx=True)
            assert made["kind"] == ("base" if seed == 1 else "delta")
            expected.append([scores(model, batch) for batch in batches])
    assert not torch.equal(expected[0][0], expected[1][0])
    first, second = graph_of(place, 1), graph_of(place, 2)
    assert first[1] == second[1] and first[1].file.name.startswith(first[0].folder)
    with hps.Model.load(place, version=1, dram="16MiB") as loaded:
        assert loaded.kind == "onnx" and not loaded.has_recipe
        for found, batch in zip(expected[0], batches, strict=True):
            assert_close(loaded.predict(batch), found)
        follower = loaded._follower
        assert follower is not None and follower.look() and loaded.version == "2"
        for found, batch in zip(expected[1], batches, strict=True):
            assert_close(loaded.predict(batch), found)
