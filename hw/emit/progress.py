"""Progress on a terminal."""

import sys
import threading

from tqdm import tqdm


class Progress:
    """A progress bar over designs on standard error, with the current step and a running clock.

    Nothing is shown if standard error is not a terminal, or if `quiet`. Use it in a ``with``
    statement, which removes the bar.
    """

    def __init__(self, total: int, *, quiet: bool = False):
        self._bar = tqdm(
            total=total, unit="design", disable=quiet or None, file=sys.stderr, leave=False
        )
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Progress":
        if not self._bar.disable:
            self._clock.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        if not self._bar.disable:
            self._clock.join()
        self._bar.close()

    def step(self, text: str) -> None:
        """Show the name of the step that begins."""
        self._bar.set_description(text)

    def done(self) -> None:
        """Count a design as finished."""
        self._bar.update()

    def print(self, line: str) -> None:
        """Print a line of results above the bar."""
        self._bar.clear()
        print(line, flush=True)
        self._bar.refresh()

    def _tick(self) -> None:
        while not self._ended.wait(1):
            self._bar.refresh()
