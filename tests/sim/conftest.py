"""The command line of ``python -m sim``."""

import pytest

from sim import __main__ as cli


@pytest.fixture
def run(call):
    """Runs a command; returns status, stdout and stderr."""
    return lambda command: call(cli.main, command)
