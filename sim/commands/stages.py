"""Progress of a build whose stages are programs that run for minutes, on standard error."""

import contextlib
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text


class Stages:
    """What a build does. Call it as each stage begins; use it in a ``with`` statement.

    On a terminal it is one line: the stage, its time, and the last line of the program's log. It
    disappears at the end. Elsewhere each stage is a line, unless `quiet`.
    """

    def __init__(self, *, quiet: bool = False):
        self._quiet = quiet
        self._text, self._since = "", time.monotonic()
        self._log: Path | None = None
        console = Console(stderr=True)
        self._width = console.width
        self._live = None
        if console.is_terminal:
            self._spinner = Spinner("line")
            self._live = Live(
                console=console, get_renderable=self._line, refresh_per_second=4, transient=True
            )

    def __enter__(self) -> "Stages":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, text: str, log: Path | None = None) -> None:
        """A stage begins, which writes to `log`."""
        self._text, self._log, self._since = text, log, time.monotonic()
        if not self._live and not self._quiet:
            print(f"{text} …", file=sys.stderr, flush=True)

    def print(self, line: str) -> None:
        """Print a line that is not overwritten."""
        if self._live:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _line(self) -> Spinner:
        seconds = int(time.monotonic() - self._since)
        words = f"{self._text} {seconds // 60}:{seconds % 60:02} {last_line(self._log)}"
        # Beside the spinner; a second line would not be overwritten.
        self._spinner.update(text=Text(words[: self._width - 3]))
        return self._spinner


def last_line(log: Path | None) -> str:
    """The last line of a file that is being written, "" without a file or a line."""
    if log is None:
        return ""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last.removeprefix("Info:").lstrip()
    return ""
