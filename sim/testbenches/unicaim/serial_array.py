"""Testbench of the serial array: that of the digital array, whose results it gives."""

from sim.testbenches.unicaim.digital_array import testbench as testbench
