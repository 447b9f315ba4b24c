"""Every block of code of every page: its commands are ones that hps takes, its Python runs.

Above it: pytest. Below it: blocks.py. RUN_ELSEWHERE names the tests that run the other blocks of
Python; a block that nothing runs has to be in FRAGMENTS, with the reason.
"""

import io
import json
import shutil
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from tests.logs import write_criteo
from tests.ports import HeldPort
from tests.site.blocks import Block, blocks_of, problem_of
from tools.site.pages import ROOT, pages

SOURCES = [page.source for page in pages().values() if page.source]
BLOCKS = [block for one in SOURCES for block in blocks_of(one, (ROOT / one).read_text())]
# Page -> which of its blocks of Python run here, from 0.
RUN_HERE = {
    "docs/explanation/exactness.md": (0,),
    "docs/features.md": (0,),
    "docs/publishing.md": (0,),
    "docs/training.md": (0, 1),
}
# What is another thing on the reader's machine -> on this one.
OURS = {"s3://bucket/ctr": "published", "8GiB": "16MiB", "/ssd/ctr": "cached", "(41)": "(1)"}
# Page -> the test that runs all its blocks of Python.
RUN_ELSEWHERE = {
    "README.md": "tests/test_docs.py",
    "docs/start.md": "tests/site/test_blocks.py",
    "docs/life_cycle.md": "tests/test_docs.py",
    "docs/narrow_rows.md": "tests/test_docs.py",
    "docs/models.md": "tests/test_docs.py",
    "docs/from_torchrec.md": "tests/test_torchrec.py",
    "docs/formats.md": "tests/reader/test_record_batches.py",
    "docs/clients.md": "tests/service/client/test_client_docs.py",
}
# Page -> how many of its blocks of Python are parts of a program that they do not show. They are
# compiled, and every name of hps in them is looked up.
FRAGMENTS = {
    "docs/cluster.md": 1,  # a loop under torchrun
    "docs/publishing.md": 2,  # a client, and a module, of the reader's own
    "docs/serving.md": 1,  # a client of a server; tests/serving/ has it with one
    "docs/training.md": 1,  # of four models, what each is given
}


def python_of(source: str) -> list[Block]:
    return [block for block in BLOCKS if block.source == source and block.kind == "python"]


def test_pages_have_blocks() -> None:
    assert len(BLOCKS) > 80 and {"README.md", "docs/start.md"} <= {one.source for one in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda one: f"{one.source}:{one.line}")
def test_nothing_is_wrong_with_a_block(block: Block) -> None:
    assert problem_of(block) == ""


def test_every_block_of_python_is_run_or_is_a_fragment_that_is_known() -> None:
    counts = {}
    for source in SOURCES:
        is_run = source in RUN_ELSEWHERE or "tutorials/" in source
        rest = len(python_of(source)) - len(RUN_HERE.get(source, ()))
        if rest and not is_run:
            counts[source] = rest
    assert counts == FRAGMENTS
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), (page, test)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store and the log that pages speak of: ctr, test.tsv."""
    folder = tmp_path_factory.mktemp("pages")
    log = write_criteo(folder / "test.tsv", 500)
    small = ["--dim", "4", "--hidden", "8", "--dram", "16MiB", "--quiet"]
    assert main(["train", str(log), "--store", str(folder / "ctr"), *small]) == 0
    return folder


@pytest.mark.parametrize(
    ("source", "number"),
    [(source, number) for source, numbers in RUN_HERE.items() for number in numbers],
)
def test_a_block_runs_and_prints_what_the_page_says(
    source: str, number: int, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    text = python_of(source)[number].text
    if "data=clicks" in text:
        shutil.rmtree("ctr")  # the page makes one
    for theirs, here in OURS.items():
        text = text.replace(theirs, here)
    columns = {f"I{n}": [3.0] for n in range(1, 14)} | {f"C{n}": ["a"] for n in range(1, 27)}
    names = {"__name__": "page", "columns": columns, "hps": hps, "struct": struct, "K": 1000}
    out = io.StringIO()
    with ExitStack() as stack, redirect_stdout(out):
        if "server." in text:
            names["server"] = stack.enter_context(hps.open("ctr", read_only=False))
        exec(compile(text, source, "exec"), names)
        for name in ("model", "reader"):
            if hasattr(names.get(name), "close"):
                names[name].close()
    if "print(" in text:
        page = (ROOT / source).read_text()
        assert f"prints\n\n```text\n{out.getvalue()}```\n" in page
    if "probabilities" in names:
        assert len(names["probabilities"]) == 2
    if "figures" in names:
        assert names["figures"]["examples"] == 540
    if "folded" in names:
        assert 0 <= names["folded"] < 2**64


def answered(request: bytes, port: HeldPort, log: Path) -> dict[str, Any]:
    """What the page's server answers to its request."""
    program = [sys.executable, "-m", "hps", "serve-model", "published", "--http"]
    program += [f"127.0.0.1:{port.number}"]
    with log.open("w") as out, subprocess.Popen(program, stdout=out) as server:
        try:
            deadline = time.monotonic() + 60
            while "listening" not in log.read_text():
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            place = f"http://127.0.0.1:{port.number}/v2/models/published/infer"
            with urllib.request.urlopen(place, data=request, timeout=30) as reply:
                found: dict[str, Any] = json.load(reply)
        finally:
            server.terminate()
    assert server.returncode == 0
    return found


def test_the_five_minutes_end_with_a_server_that_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = {"200000": "4000", "20000": "500"}
    done = []
    for block in BLOCKS:
        if block.source != "docs/start.md":
            continue
        text = block.text
        for large, small in smaller.items():
            text = text.replace(large, small)
        if block.kind == "python":
            exec(compile(text, "start.md", "exec"), {"__name__": "page"})
            assert 0 < float(capsys.readouterr().out.strip().splitlines()[-1]) < 1
        for line in text.splitlines() if block.kind == "sh" else ():
            words = line.split()
            if words[0] == "hps" and words[1] != "serve-model":
                assert main([*words[1:]]) == 0, line
                done.append(words[1])
    assert done == ["generate", "train", "evaluate", "predict", "publish"]
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert len(scores) == 501
    # What jq makes of the first line, as the page's last command has it.
    line = (tmp_path / "test.tsv").read_text().splitlines()[0]
    tensor = {"name": "lines", "datatype": "BYTES", "shape": [1], "data": [line]}
    assert (
        'jq -R \'{inputs: [{name: "lines", datatype: "BYTES", shape: [1], data: [.]}]}\''
        in (ROOT / "docs/start.md").read_text()
    )
    request = json.dumps({"inputs": [tensor]}).encode()
    with HeldPort() as port:
        (output,) = answered(request, port, tmp_path / "said")["outputs"]
    assert output["name"] == "probability"
    assert output["data"] == pytest.approx([float(scores[1])], rel=1e-5)


WRONG = [
    ("sh", "hps train log.tsv --stroe ctr", "refuses"),
    ("sh", "cat a | hps sevre-model x --http 127.0.0.1:1 &", "refuses"),
    ("sh", "torchrun --nproc-per-node 2 -m hps train a --dimension 3", "refuses"),
    ("sh", "until hps doctr; do sleep 1; done", "refuses"),
    ("sh", "hps stats a --jsn b > log 2>&1 &", "refuses"),
    ("sh", "make dcos", "no ['dcos']"),
    ("sh", "pip install '.[train,srve]'", "no extra ['srve']"),
    ("sh", "python examples/no_such.py", "there is no"),
    ("sh", "python -m tools.no_such", "there is no module"),
    ("sh", "frobnicate --now", "no test knows"),
    ("python", "hps.SparseEmbeding()", "SparseEmbeding"),
    ("python", "with x as", "invalid syntax"),
    ("toml", "a = ", "Invalid value"),
    ("json", "{", "property name"),
    ("yaml", "a: [", "expected"),
    ("", "what is this", "no language"),
]


@pytest.mark.parametrize(("kind", "text", "told"), WRONG)
def test_what_is_wrong_is_found(kind: str, text: str, told: str) -> None:
    assert told in problem_of(Block("a.md", 1, kind, f"{text}\n"))


def test_blocks_are_found_with_their_lines() -> None:
    text = "# A\n\n- a\n\n  ```sh\n  hps doctor \\\n    --json -\n  ```\n\n```json\n{}\n```\n"
    first, second = blocks_of("a.md", text)
    assert (first.line, first.kind, first.text) == (5, "sh", "hps doctor \\\n  --json -\n")
    assert (second.line, json.loads(second.text)) == (10, {})
