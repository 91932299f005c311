"""Testbench of the serial array: the digital array's, whose results it has to give."""

from sim.testbenches.unicaim.digital_array import testbench as testbench
