"""Bench of :mod:`hw.stream.queue`."""

from sim.benches.stream.buffers import BufferBench

bench = BufferBench("Queue", depth=lambda parameters: parameters.depth)
