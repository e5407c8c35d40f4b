"""A real headless Chromium, driven by WebDriver (W3C) over HTTP: Debian's packages chromium and chromium-driver.

For tests of the page, its benchmark and its pictures. Only what these need; nothing is downloaded.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from experiments.ports import free_port
from weir.errors import WeirError

#: Programs that must be on PATH.
PROGRAMS = ("chromium", "chromedriver")
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"
_POLL_S = 0.05
#: For a start, and for an answer.
_START_S = 120.0
#: An answer's key for an element, of the specification.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = (
    "--headless=new",
    # As root in a container there is no sandbox; the pages are our own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # The browser itself asks its maker for nothing, so that every request is the page's.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


class BrowserError(WeirError):
    """The browser did not do what it was told, or a page did not come to what was awaited."""


def is_there() -> bool:
    """Whether both programs are installed."""
    return all(shutil.which(program) for program in PROGRAMS)


class Browser:
    """Use as a context manager: leaving it ends the browser."""

    def __init__(self, directory: Path, *, width: int = 1280, height: int = 900) -> None:
        """Start a browser with a window of this size in CSS pixels; its profile and log are in the directory.

        Raises:
            BrowserError: it does not start, or is not installed.
        """
        if not is_there():
            raise BrowserError(
                f"{' and '.join(PROGRAMS)} are needed (Debian: apt-get install chromium chromium-driver)"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        with (directory / "chromedriver.log").open("wb") as log:
            self._driver = subprocess.Popen(
                ["chromedriver", f"--port={self._port}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            self._path = ""
            self._await_driver()
            arguments = [
                *_ARGUMENTS,
                f"--window-size={width},{height}",
                f"--user-data-dir={directory / 'profile'}",
            ]
            wanted = {
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
            }
            session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._path = f"/session/{session['sessionId']}"
        except BaseException:
            self._driver.kill()
            self._driver.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ask("DELETE", "", {})
        except BrowserError:
            pass
        finally:
            self._driver.terminate()
            self._driver.wait()

    @property
    def pid(self) -> int:
        """Of the driver, whose children are the browser."""
        return self._driver.pid

    def open(self, url: str) -> None:
        """Load a page and wait for its scripts."""
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of a function returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str, what: str, timeout_s: float = 30.0) -> Any:
        """Ask until the script's answer is true; returns it.

        Raises:
            BrowserError: it did not come in time; names ``what``, and what the page says.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = self.run(script)
            if found:
                return found
            if time.monotonic() > deadline_s:
                shown = self.run("return document.body.innerText.slice(0, 2000)")
                raise BrowserError(f"{what} did not come within {timeout_s:g} s; the page says:\n{shown}")
            time.sleep(_POLL_S)

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def click(self, selector: str) -> None:
        """Click as a mouse does: it fails if something covers the element."""
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._ask("POST", f"/element/{element}/click", {})

    def press(self, keys: str) -> None:
        """Press keys one after the other; special ones are those of the specification, as ``TAB``."""
        steps = [
            step
            for key in keys
            for step in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})
        ]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def resize(self, width: int, height: int) -> None:
        """Give the page this size in CSS pixels, also a smaller one than windows may have."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._command("Emulation.setDeviceMetricsOverride", sizes)

    def prefer(self, scheme: str) -> None:
        """As of a user who prefers ``light`` or ``dark``."""
        self._command(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )

    def screenshot(self, path: Path) -> None:
        """Write the whole page, however high it is, as the suffix says: ``.png`` or ``.webp``, a fifth as large."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        kind = {"format": "webp", "quality": 80} if path.suffix == ".webp" else {"format": "png"}
        wanted = {"captureBeyondViewport": True, "clip": clip, **kind}
        taken = self._command("Page.captureScreenshot", wanted)
        path.write_bytes(base64.b64decode(taken["data"]))

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        found = []
        for entry in self._ask("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def complaints(self) -> list[str]:
        """What the page's scripts and policies complained of since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def _command(self, name: str, parameters: object) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _await_driver(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                if self._ask("GET", "/status", None)["ready"]:
                    return
            except BrowserError as error:
                if time.monotonic() > deadline_s or self._driver.poll() is not None:
                    raise BrowserError(f"chromedriver does not start: {error}") from error
            time.sleep(_POLL_S)

    def _ask(self, method: str, path: str, body: object) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self._port}{self._path}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_START_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            with error:
                value = json.load(error)["value"]
            raise BrowserError(f"{path}: {value['error']}: {value['message'].splitlines()[0]}") from error
        except OSError as error:
            raise BrowserError(f"{path}: the browser does not answer: {error}") from error
