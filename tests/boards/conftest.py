"""Simulated boards, and the command line of ``python -m sim``."""

import pytest

from hw.boards.design import BoardParameters, board_design
from hw.catalogue import find
from sim import __main__ as cli
from sim.drivers.board.simulated import DIVISOR, SimulatedBoard


def design_of(name: str, **parameters):
    block = find(name)
    board = BoardParameters(divisor=DIVISOR, **parameters)
    return board_design(block, block.parameters_class.preset("first"), board)


@pytest.fixture(scope="session")
def reader_design():
    """A block with a memory."""
    return design_of("stream.sequential_reader")


@pytest.fixture
def reader(reader_design):
    board = SimulatedBoard(reader_design)
    yield board
    board.close()


@pytest.fixture
def run(call):
    """Runs a command; returns status, stdout and stderr."""
    return lambda command: call(cli.main, command)
