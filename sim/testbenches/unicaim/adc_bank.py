"""Testbench of the converters in turn: like one converter's, whose codes they issue in order."""

from sim.testbenches.unicaim.sar_adc import testbench as testbench
