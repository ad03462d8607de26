"""A headless Chromium, driven through the pipe of its debugging protocol; this needs no package."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

KEYS = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, " ": 32}


def find() -> str | None:
    """Return the path of the program, or None."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page in a browser of its own; `messages` collects what its console prints."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        words += [f"--user-data-dir={profile}", "--no-first-run", "--disable-background-networking"]
        # Chromium reads from 3 and writes to 4, which the shell opens for it.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, find() or "chromium", *words],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Wait for an expression to become true."""
        end = time.monotonic() + 20
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"{expression}: not within 20 seconds\n{self.messages}"
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)
        self.wait_until(f"location.href.startsWith({url!r}) && document.readyState == 'complete'")

    def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 * ctrl}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="" if ctrl else text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the page, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        """Write a screenshot of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self._out)
        os.close(self._in)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(line)
        if found.get("method") == "Log.entryAdded":
            self.messages.append(found["params"]["entry"]["text"])
        elif found.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.messages.append(json.dumps(found["params"]))
        elif found.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["params"]["request"]["url"])
        return found
