"""Ctrl-C, SIGTERM and a closed terminal end ``python -m hw`` and ``python -m golden``.

They arrive as exceptions once the command runs, so that partly written files are removed and the
programs it started are stopped. A signal that the caller has chosen to ignore is still ignored.
Only the standard library is imported here, so that the handlers are set before anything slow.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_at_once(sentence: str) -> None:
    """Until :func:`raise_exceptions` is called: print `sentence` on Ctrl-C, and exit.

    For the time of the imports: nothing is to be cleaned up yet, and an exception inside an import
    prints a long traceback.
    """

    def leave(number, frame):
        if number == signal.SIGINT:
            os.write(2, f"{sentence}\n".encode())
        os._exit(128 + number)

    _handle(leave)


def raise_exceptions() -> None:
    """From now on, raise ``KeyboardInterrupt`` on Ctrl-C and ``SystemExit`` on the others."""

    def leave(number, frame):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    raise_dropped(KeyboardInterrupt | SystemExit)
    _handle(leave)


def raise_dropped(kinds) -> Callable:
    """Raise ``KeyboardInterrupt`` 20 ms after Python drops one of `kinds`; returns the hook before.

    It drops exceptions in ``__del__`` and the like.
    """
    report = sys.unraisablehook

    def again(unraisable):
        if issubclass(unraisable.exc_type, kinds):
            # A signal, which also ends a wait of the main thread.
            main = threading.main_thread().ident
            threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT)).start()
        else:
            report(unraisable)

    sys.unraisablehook = again
    return report


def _handle(handler) -> None:
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
