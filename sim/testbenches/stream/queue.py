"""Testbench of :mod:`hw.stream.queue`."""

from sim.testbenches.stream.buffers import BufferTestbench

testbench = BufferTestbench()
