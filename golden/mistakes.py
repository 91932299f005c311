"""How the command lines answer a mistake: a sentence after ``error:``, and the exit status.

Only the standard library is imported here, as in :mod:`golden.interrupt`.
"""

import argparse
from typing import NoReturn

FAILED, MISTAKEN = 1, 2
"""Exit statuses: of a check or work that failed, and of a mistake in the arguments."""

OF_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of a path that the user has given; others, as a full disk, are of the work."""

Kinds = tuple[type[Exception], ...]


class Parser(argparse.ArgumentParser):
    """Answers a mistake by two lines, the sentence and where to read more, in place of a usage."""

    def parse_known_args(self, args=None, namespace=None):
        """A subcommand names its unknown options itself, and so its help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKEN, f"error: {message}\nsee {self.prog} --help\n")


def status_of(error: Exception, mistakes: Kinds, failures: Kinds = ()) -> int:
    """Exit status for an error: MISTAKEN for one of `mistakes` or of OF_PATHS, else FAILED.

    failures
        Those among `mistakes` that are of the work, as a network that does not answer.
    """
    mistaken = isinstance(error, (*mistakes, *OF_PATHS)) and not isinstance(error, failures)
    return MISTAKEN if mistaken else FAILED
