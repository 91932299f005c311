"""Pieces of specifications of AXI masters."""

from amaranth.lib import data

from sim.checks.formal.specs import Internals


class Skid:
    """Beats inside a skid buffer: whether there is a first and a second, and their payloads."""

    def __init__(self, internals: Internals, path: str, channel):
        self.layout = channel.payload.shape()
        self.full = ~internals.signal(f"{path}.ready")
        self.valid = channel.valid
        self.first = channel.payload
        self.second = data.View(self.layout, internals.signal(f"{path}.skid"))
        self.count = self.valid + self.full

    def each(self):
        return ((self.valid, self.first), (self.full, self.second))
