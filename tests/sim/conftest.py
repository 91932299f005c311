"""The command line of `python -m sim`, called within the test's process."""

import sys

import pytest

from sim import __main__ as cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command; gives status, stdout and stderr."""

    def run(command):
        monkeypatch.setattr(sys, "argv", ["sim", *command.split()])
        try:
            status = cli.main()
        except SystemExit as exit:
            status = exit.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
