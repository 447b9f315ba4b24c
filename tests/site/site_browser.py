"""The built site in a browser: each page in a frame of a given width, in either colours, with axe.

Above it: test_built_site.py. Below it: build/site/ (`make docs`), build/axe/ (tools/site/axe.sh),
tests/report/browser.py.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.report.browser import show

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# Shows each page in turn, and leaves what was found as text: a frame has its own width, and colours
# that its body is told, as the site's own switch tells it.
_FRAME = """<!doctype html><title>frame</title><iframe id="frame" height="900"></iframe>
<pre id="found"></pre><script>
const jobs = JOBS, found = [], frame = document.getElementById("frame");
const rest = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function look(job) {
  frame.style.width = job.width + "px";
  await new Promise(done => { frame.onload = done; frame.src = "/" + job.page; });
  const inner = frame.contentWindow, page = frame.contentDocument;
  page.body.setAttribute("data-md-color-scheme", job.scheme);
  await rest(job.axe ? 1500 : 200);
  const one = { ...job, shown: inner.innerWidth, wide: page.documentElement.scrollWidth };
  if (job.finds) {  // by a worker, whose time is not the page's: a request that waits lets it pass
    const results = () => [...page.querySelectorAll("a.md-search-result__link")];
    for (let turn = 0; turn < 100 && !results().length; turn++) await fetch("/wait");
    one.found = results().map(link => link.getAttribute("href"));
  }
  if (job.axe) {
    const script = page.createElement("script");
    script.src = "/axe.min.js";
    await new Promise(done => { script.onload = done; page.head.append(script); });
    const rules = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] };
    const told = await inner.axe.run(page, rules);
    one.violations = told.violations.map(rule => ({
      rule: rule.id,
      nodes: rule.nodes.map(node => [node.target, node.html.slice(0, 160),
        node.any.concat(node.all).map(check => check.message).join("; ").slice(0, 240)].join(" ")),
    }));
    one.passes = told.passes.length;
  }
  found.push(one);
}
(async () => {
  for (const job of jobs) {
    try { await look(job); } catch (error) { found.push({ ...job, error: String(error) }); }
  }
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


class _Handler(SimpleHTTPRequestHandler):
    """The site's files, axe, and the page of the frame."""

    frame = b""

    def do_GET(self) -> None:
        if self.path == "/wait":
            time.sleep(0.1)
        own = {"/wait": (b"", "text/plain"), "/frame.html": (self.frame, "text/html")}
        if AXE.exists():
            own["/axe.min.js"] = (AXE.read_bytes(), "text/javascript")
        if self.path not in own:
            super().do_GET()
            return
        body, kind = own[self.path]
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is told of a request."""


@contextmanager
def served(jobs: list[dict[str, Any]]) -> Iterator[str]:
    """The address of the site on this machine, with a frame for some jobs."""
    handler = type("Handler", (_Handler,), {"frame": _FRAME.replace("JOBS", json.dumps(jobs))})
    handler.frame = handler.frame.encode()  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(SITE)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def looked_at(browser: str, jobs: list[dict[str, Any]], scratch: Path) -> list[dict[str, Any]]:
    """What the browser found of each job, in their order.

    Args:
        browser: as find_browser has it.
        jobs: of each `page`, `scheme` ("default" or "slate"), `width` in pixels; `axe`: whether to
            run it; `finds`: whether to wait for what a search finds.
        scratch: an empty folder.
    """
    with served(jobs) as address:
        shown = show(browser, f"{address}/frame.html", scratch)
    elsewhere = [url for url in shown.asked if not url.startswith((address, "data:"))]
    assert not elsewhere, f"the site asks for {elsewhere}"
    (text,) = shown.page.all("pre")
    found: list[dict[str, Any]] = json.loads(text.text)
    assert len(found) == len(jobs) and not any("error" in one for one in found), found
    return found
