"""Simulated boards whose memory is SDRAM, through the cable."""

import dataclasses

import pytest

from hw.catalogue import find
from sim.drivers.board import desk
from sim.drivers.board.link import BoardError
from sim.drivers.board.run import BoardChoice, run_on_board
from sim.drivers.board.sdram_device import SdramDevice

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(
    ("name", "vectors"),
    [("stream.sequential_reader", 40), ("veda.veda_core", 8), ("unicaim.unicaim_core", 4)],
)
def test_a_testbench_whose_memory_is_sdram(name, vectors):
    """The device's model at the pins ends the simulation where a rule of its timing is broken."""
    block = find(name)
    parameters = block.parameters_class.preset("first")
    choice = BoardChoice(memory="sdram", period=40_000)
    result = run_on_board(block, "first", parameters, choice, vectors=vectors)
    assert result.passed, (result.first_mismatch, result.failures)
    assert result.transactions == 2 * vectors


def test_a_broken_rule_of_the_sdram_ends_the_simulation(monkeypatch):
    """Its controller believes in a clock of 25 MHz, and the device has one of 40."""
    fast = dataclasses.replace
    monkeypatch.setattr(desk, "SdramDevice", lambda p: SdramDevice(fast(p, period=25_000)))
    block = find("stream.sequential_reader")
    parameters = block.parameters_class.preset("first")
    choice = BoardChoice(memory="sdram", period=40_000)
    with pytest.raises(BoardError):
        run_on_board(block, "first", parameters, choice, vectors=4)
