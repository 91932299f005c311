"""Testbench of the converters in turn: that of one converter, whose codes they issue in order."""

from sim.testbenches.unicaim.sar_adc import testbench as testbench
