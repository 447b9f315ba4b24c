"""`python -m benchmarks.run NAME [--smoke] [--json OUT] [options of NAME]`: runs and reports.

Above it: `hps bench`, `make bench`, the tests. Below it: NAME/NAME_bench.py anywhere under
benchmarks/, one a folder, with `run(smoke, **options) -> dict` (axes, rows) and maybe
`add_arguments(parser)`.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.common.machine import commit, machine, versions
from benchmarks.common.report import check_result, table

ROOT = Path(__file__).parent


def modules() -> dict[str, str]:
    """Of every benchmark there is its module, by the name of its folder, in alphabetical order."""
    found = sorted(ROOT.rglob("*_bench.py"), key=lambda path: path.stem)
    return {
        path.parent.name: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in found
        if path.stem == f"{path.parent.name}_bench"
    }


def names() -> list[str]:
    """Every benchmark there is."""
    return list(modules())


def load(name: str) -> ModuleType:
    """The module of a benchmark.

    Raises:
        SystemExit: there is none of that name; lists those there are.
    """
    found = modules()
    if name not in found:
        raise SystemExit(f"no benchmark {name!r}; there are: {', '.join([*found, 'all'])}")
    return importlib.import_module(found[name])


def run_one(name: str, smoke: bool, options: Sequence[str] = ()) -> dict[str, Any]:
    """Runs one benchmark in this process; the result in the shape of benchmarks/README.md.

    Args:
        name: one of `names()`.
        smoke: the smallest sizes, in seconds; its figures mean nothing.
        options: the benchmark's own, as on the command line.
    """
    module = load(name)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.run {name}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    arguments = vars(parser.parse_args(list(options)))
    head = {
        "name": name,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "smoke": smoke,
    }
    result = head | module.run(smoke, **arguments)
    check_result(result)
    return result


def run_all(smoke: bool) -> dict[str, Any]:
    """Runs every benchmark, each in a process of its own so that none inherits another's memory."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            out = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "benchmarks.run", name, "--json", str(out)]
            subprocess.run([*command, *(["--smoke"] if smoke else [])], check=True, cwd=ROOT.parent)
            results.append(json.loads(out.read_text()))
    shared = {key: results[0][key] for key in ("commit", "machine", "versions", "smoke")}
    axes = {"benchmark": [result["name"] for result in results]}
    rows = [{"benchmark": result["name"]} | row for result in results for row in result["rows"]]
    return {"name": "all", **shared, "axes": axes, "rows": rows, "results": results}


def show(result: dict[str, Any]) -> None:
    """Prints a result: the machine, a table, and what was absent."""
    print(f"\n{result['name']} at {result['commit']}{' (smoke)' if result['smoke'] else ''}")
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    if result["machine"]["load_average"] > result["machine"]["cores"] / 2:
        print("other processes were busy when it began: measure again on a quiet machine")
    print(table(result["rows"]))
    for text in result.get("tables", []):
        print(f"\n{text}")
    for peer, reason in result.get("absent", {}).items():
        print(f"absent: {peer} ({reason})")
    print(flush=True)


def write(result: dict[str, Any], out: Path) -> None:
    """Writes a result to a file, or one file a benchmark into a folder that exists."""
    if not out.is_dir():
        out.write_text(json.dumps(result, indent=1) + "\n")
        return
    for part in result.get("results", [result]):
        (out / f"{part['name']}.json").write_text(json.dumps(part, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join([*names(), 'all'])}")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, seconds; for tests")
    parser.add_argument("--json", type=Path, metavar="OUT", help="file, or folder that exists")
    known, options = parser.parse_known_args(arguments)
    if known.name == "all":
        if options:
            parser.error(f"'all' takes no options of its own: {options}")
        result = run_all(known.smoke)
    else:
        result = run_one(known.name, known.smoke, options)
        show(result)
    if known.json is not None:
        write(result, known.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
