"""Python, and the packages that hps takes, with what each is for.

Above it: `hps.doctor.examine`. Below it: versions.py.
"""

import platform

from hps.common.version import __version__
from hps.doctor.finding import NOTE, OK, PROBLEM, Figures, Finding
from hps.doctor.versions import OWN, is_older, version_of, wanted

# What people ask about, and what hps does with it. All else that hps needs comes with these.
_USES = {
    "numpy": "keys and rows are its arrays",
    "grpcio": "hps serve, hps client, hps serve-model",
    "protobuf": "messages of servers, hps serve --table",
    "prometheus-client": "--metrics of servers",
    "torch": "hps train, evaluate, predict, models of one's own",
    "pyarrow": "parquet and csv logs, hps export, import",
    "numba": "hps generate",
    "zstandard": "logs that end with .zst",
    "fsspec": "logs and published versions behind URLs",
    "s3fs": "the same at s3://",
    "aiohttp": "hps serve-model over HTTP",
    "onnx": "versions with an ONNX graph",
    "onnxruntime": "scoring by an ONNX graph",
    "plotly": "--report, hps report",
    "tensorboardX": "--tensorboard",
    "rocksdict": "--engine rocksdb",
    "rich": "live progress and tables on a terminal",
    "shtab": "hps completion",
}


def find_packages() -> list[Finding]:
    """hps, Python and each package; a PROBLEM where hps itself lacks one or has one too old."""
    python = platform.python_version()
    there = version_of(OWN)
    own = Finding(
        "packages", "hps", __version__,
        f"Python {python}" + ("" if there else "; not installed by pip"), OK,
        {"version": __version__, "python": python},
    )  # fmt: skip
    asked = wanted()
    return [own, *(_package(name, *asked.get(name, ("", []))) for name in _USES)]


def _package(name: str, least: str, extras: list[str]) -> Finding:
    version, use = version_of(name), _USES[name]
    figures: Figures = {"version": version, "least": least}
    is_own = "" in extras
    public = [extra for extra in extras if extra not in ("", "dev", "bench")]
    how = f"pip install '{OWN}[{public[0]}]'" if public else f"pip install '{name}>={least}'"
    if version is None:
        state = PROBLEM if is_own else OK
        use = f"not installed; for {use}: {how}"
        return Finding("packages", name, "none", use, state, figures)
    if least and is_older(version, least):
        state = PROBLEM if is_own else NOTE
        use = f"too old: {use} needs {least}; {how}"
        return Finding("packages", name, version, use, state, figures)
    return Finding("packages", name, version, use, OK, figures)
