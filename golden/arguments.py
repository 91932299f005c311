"""How ``python -m hw``, ``sim`` and ``golden`` tell a mistake: one sentence, one exit status.

    error: --tokens: it must be a whole number from 1, not 0
    see python -m golden eval --help

The second line stands where the arguments could not be read at all. Only the standard library is
imported here, so that every program can start with it.
"""

import argparse
import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

FAILED = 1
"""Exit status of work that failed: a mismatch, a full disk, no network."""
MISTAKE = 2
"""Exit status of a mistake in the arguments: an unknown name, a bad value, a missing file."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""

_PATHS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP),
}
"""Errors of a path that the user chose."""


class Parser(argparse.ArgumentParser):
    """A parser, and those of its subcommands, whose errors are in the house's form.

    Arguments that a subcommand does not know are its own error, not the whole program's.
    """

    def error(self, message: str) -> NoReturn:
        fail(message.removeprefix("argument "))
        print(f"see {self.prog} --help", file=sys.stderr)
        sys.exit(MISTAKE)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def fail(sentence: str, status: int = FAILED) -> int:
    """Print the sentence on standard error; returns the exit status."""
    print(f"error: {sentence}", file=sys.stderr)
    return status


def fail_on_file(error: OSError) -> int:
    """Print which file could not be used and why; a path that cannot be used is a mistake."""
    reason = error.strerror or str(error)
    known = error.filename is not None and error.errno in _PATHS
    return fail(
        f"{error.filename}: {reason}" if error.filename else reason, MISTAKE if known else FAILED
    )
