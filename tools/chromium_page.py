"""ChromiumPage: a page in a headless Chromium that goes on running, asked over DevTools.

Above it: tests/dashboard/, tools/dashboard_picture.py. Below it: Chromium (`make chromium`);
aiohttp's WebSocket.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 30.0
# A browser that asks nobody for anything, in a machine without a screen.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
)
_FLAGS = (
    *QUIET,
    "--headless=new",
    "--hide-scrollbars",
    "--ignore-certificate-errors",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
)


def browser_on_path() -> str | None:
    """The path of a browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class ChromiumPage:
    """One page, until the `with` block is left.

    Args:
        browser: its path.

    Attributes:
        console: what scripts and the browser have said of the page so far.
        asked: URLs that the page has asked for.
    """

    def __init__(self, browser: str) -> None:
        self.console: list[str] = []
        self.asked: list[str] = []
        self._number = 0
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [browser, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.run(self._session.close())
        self.close()

    def close(self) -> None:
        """Ends the browser and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._runner.close()
        self._profile.cleanup()

    async def _open(self) -> None:
        import aiohttp

        assert self._process.stderr is not None
        address = None
        while address is None:
            line = self._process.stderr.readline()
            assert line, "the browser ended before it listened"
            address = re.search(r"ws://127\.0\.0\.1:(\d+)/", line)
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{address[1]}/json/list") as answer:
            (page,) = [one for one in await answer.json() if one["type"] == "page"]
        self._socket = await self._session.ws_connect(
            page["webSocketDebuggerUrl"], max_msg_size=2**28
        )
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> Any:
        """A command of DevTools; its result."""
        return self._runner.run(self._call(method, **arguments))

    async def _call(self, method: str, **arguments: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": arguments})
        while True:
            told = json.loads((await asyncio.wait_for(self._socket.receive(), _SECONDS)).data)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self._note(told)

    def _note(self, told: Any) -> None:
        kind, what = told.get("method"), told.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.asked.append(what["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.console.append(str(details.get("exception", {}).get("description", details)))
        elif kind == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(one.get("value", "")) for one in what["args"]))
        elif kind == "Log.entryAdded":
            self.console.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Goes to a page.

        Args:
            url: of it.
            width, height: of the window, in pixels.
            dark: as a system that is dark.
        """
        self.resize(width, height)
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Of the window, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = _SECONDS) -> Any:
        """The first value of an expression that is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.ask(script)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"not true within {seconds:g} s: {script}; {self.console}")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Writes what is seen, of the whole page or the window, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
