"""The documents name files that exist, and their first example runs as it stands.

Above it: pytest. Below it: README.md, ARCHITECTURE.md, docs/.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "docs/roadmap.md"]
PATH = re.compile(
    r"`((?:hps|csrc|tests|tools|docs|examples|benchmarks)/[\w./]*|\w+\.(?:md|txt|py)|Makefile)`"
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    named = PATH.findall((ROOT / document).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_architecture_names_every_component() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [*(ROOT / "hps").iterdir(), *(ROOT / "csrc").iterdir()]
    has_source = [f for f in folders if list(f.glob("*.py")) or list(f.glob("*.h"))]
    names = [folder.relative_to(ROOT).as_posix() for folder in has_source]
    assert len(names) > 10
    assert [name for name in names if f"{name}/" not in text] == []


def test_first_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "2\n"
