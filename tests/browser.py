"""A real browser for tests of pages: Chromium, driven through ChromeDriver by the W3C WebDriver protocol.

W3C, "WebDriver" (2018). https://www.w3.org/TR/webdriver/

Every wait is for a condition, with a timeout that only a broken page reaches: how busy the machine is decides how long
a test takes, and not whether it passes.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_NEXT_FRAMES = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"


def find_chromium() -> tuple[str, str] | None:
    """The paths of Chromium and of ChromeDriver, where both are installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    return None if chromium is None or driver is None else (chromium, driver)


@contextmanager
def start_browser(chromium: str, driver: str, profile: Path) -> Iterator["Browser"]:
    """A browser with an empty profile, for as long as the block runs."""
    # The system chooses a free port, and ChromeDriver prints it once it listens there.
    with subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ports = (re.search(r"started successfully on port (\d+)", line) for line in process.stdout)
            found = next(filter(None, ports), None)
            if found is None:
                raise BrowserError(f"{driver} ended without listening, exit status {process.wait()}")
            options = {"binary": chromium, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
            browser = Browser(f"http://127.0.0.1:{found[1]}", options)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()


class BrowserError(Exception):
    """What the browser refused, or did not reach in time."""


class Browser:
    """A window of a browser.

    Example:
        browser.open("http://127.0.0.1:8000")
        browser.wait(lambda: "42" in browser.html)
    """

    def __init__(self, driver_url: str, options: dict[str, Any]) -> None:
        self._opener = build_opener(ProxyHandler({}))
        self._session = f"{driver_url}/session"
        milliseconds = int(1000 * TIMEOUT_SECONDS)
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "timeouts": {"pageLoad": milliseconds, "script": milliseconds},
        }
        created = self._command("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._session += f"/{created['sessionId']}"

    def open(self, url: str, *, width: int = 1000, height: int = 1000) -> None:
        """Loads a page in a window of this size; returns once its `load` event has been handled."""
        self._command("POST", "/window/rect", {"width": width, "height": height})
        self._command("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """Runs the body of a JavaScript function in the page; returns what it returns."""
        return self._command("POST", "/execute/sync", {"script": script, "args": []})

    @property
    def html(self) -> str:
        """The document as it is now."""
        return self.run("return document.documentElement.outerHTML")

    def wait(self, condition: Callable[[], T], what: str = "the condition") -> T:
        """Returns the first value of `condition` that is true."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(_POLL_SECONDS)
        raise BrowserError(f"{what} did not hold within {TIMEOUT_SECONDS:.0f} seconds; the page is: {self.html}")

    def settled_html(self) -> str:
        """The document once two frames have been drawn without changing it."""
        seen = [self.html]

        def is_settled() -> bool:
            self._command("POST", "/execute/async", {"script": _NEXT_FRAMES, "args": []})
            seen.append(self.html)
            return seen[-1] == seen[-2]

        self.wait(is_settled, "a document at rest")
        return seen[-1]

    def close(self) -> None:
        self._command("DELETE", "")

    def _command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = Request(self._session + path, content, {"content-type": "application/json"}, method=method)
        try:
            # A little more than the driver itself waits, so that its message is the one that is read.
            with self._opener.open(request, timeout=TIMEOUT_SECONDS + 10) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            with error:
                raise BrowserError(json.load(error)["value"]["message"]) from None
