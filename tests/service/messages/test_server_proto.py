"""The generated code is what proto/ says, and every field of it is documented.

Above it: pytest. Below it: tools/proto.sh.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "proto" / "hps" / "v1" / "parameter_server.proto"


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [ROOT / "tools" / "proto.sh", tmp_path],
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
    )
    if ran.returncode and not (ROOT / "build" / "proto-compiler" / ".wanted").exists():
        pytest.skip("the compiler of proto/ cannot be installed here")
    assert ran.returncode == 0, ran.stderr
    kept = sorted((ROOT / "hps").glob("*/*_pb2.py*"))
    assert len(kept) == 8
    for path in kept:
        new = (tmp_path / path.relative_to(ROOT)).read_text()
        assert new == path.read_text(), "run make proto"


def test_arrays_of_a_message_have_its_highest_numbers() -> None:
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", PROTO.read_text(), re.DOTALL):
        fields = re.findall(r"(\w+) (\w+) = (\d+);", body)
        arrays = [int(number) for kind, _, number in fields if kind == "bytes" and int(number) > 12]
        others = [int(number) for kind, _, number in fields if int(number) not in arrays]
        assert not arrays or min(arrays) > max(others, default=0), name


def test_import_hps_needs_neither_grpc_nor_protobuf() -> None:
    code = "import sys, hps; print([m for m in ('grpc', 'google.protobuf') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout == "[]\n", ran.stderr
