"""A TorchRec model moved to hps: it learns, and over TorchRec's weights it is the same model.

Above it: pytest. Below it: examples/torchrec_model.py, examples/torchrec_before.py,
docs/from_torchrec.md. What needs torchrec is left out where that is not installed
(benchmarks/requirements-peers.txt).
"""

import difflib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from examples import torchrec_model as after

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ROOT = Path(__file__).resolve().parent.parent
BATCHES = 30


@pytest.fixture(scope="module")
def before() -> Any:
    """The module examples/torchrec_before.py."""
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    why = "torchrec is not installed: benchmarks/requirements-peers.txt"
    pytest.importorskip("torchrec", reason=why, exc_type=ImportError)
    from examples import torchrec_before

    return torchrec_before


@contextmanager
def opened(folder: Path) -> Iterator[tuple[hps.ParameterServer, after.DLRM]]:
    """The store of the example, and its model over it."""
    config = hps.Config(path=folder, tables=after.tables(), dram=hps.DramCacheConfig(bytes="4MiB"))
    with hps.ParameterServer(config) as server:
        torch.manual_seed(0)
        yield server, after.DLRM(after.make_embeddings(server))


def carry_over(model: Any, server: hps.ParameterServer, moved: after.DLRM) -> None:
    """Gives a model over hps the weights of one in TorchRec, by the lines of the page."""
    page = (ROOT / "docs" / "from_torchrec.md").read_text()
    lines = page.split("```python\n")[1].split("```")[0]
    names = {"torch": torch, "model": model, "server": server, "moved": moved}
    exec(compile(lines, "from_torchrec.md", "exec"), names)


def test_the_moved_model_learns(tmp_path: Path) -> None:
    with opened(tmp_path) as (server, model):
        losses = after.train(model, 250)
        assert sum(losses[-20:]) < sum(losses[:20]) - 20 * 0.05
        assert server.num_rows("users") == after.NUM_USERS
        assert server.num_rows("ads") == after.NUM_ADS


def test_over_the_same_weights_both_give_the_same_outputs(before: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = before.DLRM(before.make_embeddings())
    with opened(tmp_path) as (server, moved):
        carry_over(model, server, moved)
        pairs = zip(before.batches(5), after.batches(5), strict=True)
        for (sparse, dense, clicks), batch in pairs:
            expected = model(sparse, dense)
            assert torch.equal(clicks, batch.labels)
            torch.testing.assert_close(moved(batch), expected, rtol=1e-5, atol=1e-6)
            # A KeyedJaggedTensor is taken as it is, too, and a KeyedTensor comes back.
            rows = moved.embeddings.as_keyed_tensor(sparse)
            torch.testing.assert_close(rows.values(), model.embeddings(sparse).values())
            assert rows.keys() == before.FEATURES
        hps.RowOptimizer(server).zero_grad()


def test_from_the_same_weights_both_learn_the_same(before: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = before.DLRM(before.make_embeddings())
    with opened(tmp_path) as (server, moved):
        carry_over(model, server, moved)
        expected, losses = before.train(model, BATCHES), after.train(moved, BATCHES)
        assert losses == pytest.approx(expected, rel=1e-4)
        weights = model.embeddings.state_dict()
        for table in server.tables:
            rows = weights[f"embedding_bags.{table}.weight"]
            found = torch.as_tensor(server.pull(table, torch.arange(len(rows))))
            torch.testing.assert_close(found, rows, rtol=1e-3, atol=1e-4)


def test_the_page_shows_what_differs_between_the_two_line_by_line() -> None:
    texts = [
        (ROOT / "examples" / f"torchrec_{name}.py").read_text() for name in ("before", "model")
    ]
    code = [text.partition('"""\n\n')[2].splitlines() for text in texts]  # without what they say
    hunks: list[list[str]] = []
    for line in list(difflib.unified_diff(*code, n=1))[2:]:
        if line.startswith("@@"):
            hunks.append([])
        else:
            hunks[-1].append(line.rstrip())
    page = (ROOT / "docs" / "from_torchrec.md").read_text()
    blocks = re.findall(r"^```diff\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    shown = [[line.rstrip() for line in block.split("\n")] for block in blocks]
    assert shown == hunks
