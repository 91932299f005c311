"""Bench of :mod:`hw.stream.skid_buffer`."""

from sim.benches.stream.buffers import BufferBench

bench = BufferBench("Skid buffer", depth=lambda parameters: 2)
