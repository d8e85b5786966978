"""Headless Chromium, driven over a pipe by its DevTools protocol: no driver and no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1250,900",
)
# Chromium reads commands from descriptor 3 and writes answers to 4. The copies from 10 on keep the
# second from being overwritten by the first.
START = """
import fcntl, os, sys
for number, given in enumerate([fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]], 3):
    os.dup2(given, number)
    os.close(given)
os.execv(sys.argv[3], sys.argv[3:])
"""
ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one tab.

    Args:
        program: Its path.
        profile: An empty folder for what it keeps.
    """

    def __init__(self, program: str, profile: Path) -> None:
        inward, self.out = os.pipe()
        self.inn, outward = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", START, str(inward), str(outward)),
                *(program, *FLAGS, f"--user-data-dir={profile}"),
            ],
            pass_fds=(inward, outward),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inward)
        os.close(outward)
        self.number, self.rest, self.session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; what happens meanwhile goes to ``events``."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def receive(self, seconds: float = 30) -> dict[str, Any]:
        """The next message."""
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.inn], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self.inn, 1 << 20) if ready else b""
            assert chunk, f"no answer from the browser (its exit code: {self.process.poll()})"
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Loads a file from disk, with the network off."""
        self.events.clear()
        off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.send("Network.emulateNetworkConditions", **off)
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Presses and releases a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    def point_at(self, query: str) -> None:
        """Moves the pointer to the middle of an element, which is scrolled into view."""
        left, top = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(query)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]})()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)

    def colours(self, scheme: str) -> None:
        """Prefers light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def errors(self) -> list[str]:
        """What the page complained about since it was opened."""
        self.run("1")  # what was said before this answer has been received
        found = [event for event in self.events if event.get("method") in ERRORS]
        return [
            json.dumps(event["params"])
            for event in found
            if event["params"].get("entry", event["params"]).get("level", "error") == "error"
            and event["params"].get("type", "error") in ("error", "assert")
        ]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        sent = (e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]

    def picture(self, path: Path) -> None:
        """A picture of the whole page, for those who look at it."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Ends the browser."""
        self.session = None
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.inn)
