"""Ctrl-C, SIGTERM and a closed terminal end a command whenever they come.

As exceptions, once the command runs, so that files half-written are removed and the tools under
way are stopped. A signal that the caller has chosen to ignore stays ignored. `hw` and `golden` each
have this file, as neither imports the other.
"""

import _thread
import os
import signal
import sys
import threading

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_at_once(sentence: str) -> None:
    """Until :func:`raise_exceptions`, for the time of the imports: say so and exit.

    Nothing is under way then, and an exception in the middle of an import is a long traceback.
    """

    def leave(number, frame):
        if number == signal.SIGINT:
            os.write(2, f"{sentence}\n".encode())
        os._exit(128 + number)

    _handle(leave)


def raise_exceptions() -> None:
    """From now on, raise ``KeyboardInterrupt`` for Ctrl-C and ``SystemExit`` for the others."""

    def leave(number, frame):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    report = sys.unraisablehook

    def again(unraisable):
        """Where Python drops exceptions, such as in ``__del__``, raise it a moment later."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt | SystemExit):
            threading.Timer(0.02, _thread.interrupt_main).start()
        else:
            report(unraisable)

    sys.unraisablehook = again
    _handle(leave)


def _handle(handler) -> None:
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
