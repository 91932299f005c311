"""A page in a headless Chromium, used by keys alone, which the browser is told to press."""

import base64
import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tests.support.browser import browser

KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "ArrowDown": {"key": "ArrowDown", "code": "ArrowDown", "windowsVirtualKeyCode": 40},
}

SAID = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Keyboard:
    """Presses keys in a page, and asks the page what came of it.

    commands, answers
        The browser's debugging pipes.
    console
        What the page has said to the browser's console, and its errors, as JSON.
    """

    def __init__(self, commands: BinaryIO, answers: BinaryIO, width: int):
        self._commands, self._answers = commands, answers
        self._number, self._session = 0, {}
        self.console: list[str] = []
        infos = self._ask("Target.getTargets")["targetInfos"]
        [page] = [info["targetId"] for info in infos if info["type"] == "page"]
        session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Runtime", "Log"):
            self._ask(f"{domain}.enable")
        # A window is not always so narrow.
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def press(self, *keys: str) -> None:
        """One after another, of :data:`KEYS`."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self._ask("Input.dispatchKeyEvent", type=kind, **KEYS[key])

    def value(self, expression: str):
        """Of a JavaScript expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def _ask(self, method: str, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:  # events come in between
            answer = json.loads(self._next())
            if answer.get("method") in SAID:
                self.console.append(json.dumps(answer["params"]))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> bytes:
        letters = bytearray()
        while (letter := self._answers.read(1)) != b"\0":
            assert letter, "the browser has ended"
            letters += letter
        return bytes(letters)


@contextlib.contextmanager
def keyboard(address: str, width: int, profile: Path) -> Iterator[Keyboard]:
    """The keyboard of a browser that shows the page of an address, and has no network."""
    program = browser()
    # The browser's ends get numbers far from 3 and 4, which they are in the browser.
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]
    for end in (theirs_in, theirs_out):
        os.close(end)

    def place() -> None:
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *(f"--user-data-dir={profile}", f"--window-size={width},1000"),
            *("--proxy-server=127.0.0.1:9", address),
        ],
        preexec_fn=place,
        pass_fds=(3, 4),
        stderr=subprocess.DEVNULL,
    )
    for end in ends:
        os.close(end)
    try:
        with os.fdopen(ours_out, "wb") as commands, os.fdopen(ours_in, "rb") as answers:
            yield Keyboard(commands, answers, width)
    finally:
        process.terminate()
        process.wait(30)
