"""The picture of docs/dashboard.md: a training, two servers with a client and a served model, seen
by `hps dashboard` in a headless Chromium.

Above it: `make dashboard-picture`, for the documentation. Below it: the command `hps`,
chromium_page.py. Takes about a minute; all but the picture lies in a folder that goes.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.chromium_page import ChromiumPage, browser_on_path

_WIDTH, _MOST_HEIGHT = 1400, 1960
_SECONDS = 60.0  # until the page shows all that is awaited
_WANTED = ("examples", "rows/ssd_store", "latency/Pull p99", "version_age")


def main(words: Sequence[str] | None = None) -> int:
    """Makes the picture; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.png")
    parser.add_argument("--dark", action="store_true", help="as a system that is dark")
    parser.add_argument("--browser", metavar="FILE", help="Chromium, if it is not on the PATH")
    parser.add_argument("--seconds", type=float, default=20.0, help="of figures in the picture")
    arguments = parser.parse_args(words)
    browser = arguments.browser or browser_on_path()
    if browser is None:
        print("no browser on the PATH: make chromium, or --browser", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        url = _start(Path(folder), running)
        with ChromiumPage(browser) as page:
            page.open(url, _WIDTH, 1000, dark=arguments.dark)
            for figure in _WANTED:
                page.wait(
                    f"document.querySelector('[data-figure=\"{figure}\"]') !== null", _SECONDS
                )
            time.sleep(arguments.seconds)
            height = min(page.ask("document.documentElement.scrollHeight"), _MOST_HEIGHT)
            page.resize(_WIDTH, height)
            time.sleep(3)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            page.picture(arguments.out, whole=False)
    print(arguments.out)
    return 0


def _start(folder: Path, running: ExitStack) -> str:
    """Starts all that is seen, and the dashboard; its address."""
    log, published = folder / "log.tsv", folder / "published"
    sizes = ["--examples", "300000", "--keys", "300000", "--format", "criteo"]
    subprocess.run([*_hps("generate", str(log)), *sizes], check=True, capture_output=True)
    trainer, client, model, *shards = (f"127.0.0.1:{port}" for port in _ports(7))
    figures = shards[2:]
    small = ["--format", "criteo", "--dim", "8", "--batch-size", "1024", "--epochs", "1000"]
    small += ["--threads", "1", "--torch-threads", "1", "--progress-seconds", "1"]
    for idx in range(2):
        store = ["--store", str(folder / f"shard-{idx}"), "--shard", f"{idx}/2"]
        listens = ["--listen", shards[idx], "--metrics", figures[idx], "--log-bytes", "32MiB"]
        running.enter_context(_command("serve", *store, *listens))
    kept = ["--checkpoint-seconds", "5", "--publish", str(published)]
    store = ["--store", str(folder / "ctr"), "--dram", "8MiB", "--depth", "2"]
    running.enter_context(_command("train", str(log), *small, *store, *kept, "--metrics", trainer))
    while not any(published.glob("*")):
        time.sleep(0.2)
    time.sleep(2)
    served = ["--listen", "127.0.0.1:0", "--metrics", model]
    running.enter_context(_command("serve-model", str(published), *served))
    servers = ["--server", ",".join(shards[:2]), "--metrics", client]
    running.enter_context(_command("train", str(log), *small, *servers))
    targets = [trainer, client, *figures, model, str(folder / "ctr")]
    words = ["--watch", ",".join(targets), "--every", "1", "--listen", "127.0.0.1:0"]
    shown = running.enter_context(_command("dashboard", *words))
    assert shown.stdout is not None
    return shown.stdout.readline().split()[2]


def _ports(count: int) -> list[int]:
    """Free ones, for as long as nobody else takes them."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def _hps(*words: str) -> list[str]:
    return [sys.executable, "-m", "hps", *words]


@contextmanager
def _command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of hps until the block is left; what it says of itself is nobody's."""
    process = subprocess.Popen(
        _hps(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    sys.exit(main())
