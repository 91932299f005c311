"""Testbench of :mod:`hw.stream.skid_buffer`."""

from sim.testbenches.stream.buffers import BufferTestbench

testbench = BufferTestbench()
