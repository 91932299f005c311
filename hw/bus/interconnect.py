"""Several masters on one AXI4 bus, told apart by a prefix of their IDs."""

import dataclasses

from amaranth.hdl import Cat, Module, Shape, unsigned
from amaranth.lib.wiring import Out

from hw.bus.axi import AXI4, AxiSizes
from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Port, Ports
from hw.stream.arbiter import Arbiter, ArbiterParameters
from hw.stream.combine import collect, copy, fork
from hw.stream.queue import Queue, QueueParameters


@dataclasses.dataclass(frozen=True)
class InterconnectParameters(Parameters):
    """
    readers, writers
        Masters that read, and masters that write; 1 to 64 each.
    data, bus_address
        Bits of the bus's data and address.
    id
        Bits of each master's IDs.
    bursts
        Write bursts whose data is not complete, at most.
    """

    readers: int = 2
    writers: int = 2
    data: int = 64
    bus_address: int = 32
    id: int = 4
    bursts: int = 4

    def __post_init__(self):
        for name in ("readers", "writers"):
            value = getattr(self, name)
            require(1 <= value <= 64, f"{name} must be from 1 to 64", value)

    @property
    def inner(self) -> AxiSizes:
        """Widths of each master."""
        return AxiSizes(self.data, self.bus_address, self.id)

    @property
    def outer(self) -> AxiSizes:
        """Widths of the bus: an ID is a master's own, and its number above."""
        prefix = Shape.cast(range(max(2, self.readers, self.writers))).width
        return AxiSizes(self.data, self.bus_address, self.id + prefix)


class Interconnect(Component[InterconnectParameters]):
    """Addresses in turn, data of writes in the order of their addresses, responses by prefix.

    A master must have its data by the time it offers an address, and must always accept
    responses: then no master waits for another one's block.

    Latency: 1 cycle for an address, none for data and responses. Throughput: one transfer in each
    cycle on each channel.
    """

    def ports(self) -> Ports:
        p = self.parameters
        inner = AXI4(p.inner).flip().members
        numbers = {"ar": p.readers, "r": p.readers}
        channels = {
            name: Port(inner[name]).array(numbers.get(name, p.writers))
            for name in ("ar", "r", "aw", "w", "b")
        }
        return channels | {"bus": Port(Out(AXI4(p.outer)), "To the memory.")}

    def elaborate(self, platform):
        m = Module()
        p, bus = self.parameters, self.bus
        layout = self.ar[0].payload.shape()
        reading = Arbiter(ArbiterParameters(inputs=p.readers), shape=layout)
        writing = Arbiter(ArbiterParameters(inputs=p.writers), shape=layout)
        m.submodules.reading, m.submodules.writing = reading, writing
        for arbiter, masters, command in (
            (reading, self.ar, bus.ar.payload),
            (writing, self.aw, bus.aw.payload),
        ):
            for of, to in zip(masters, arbiter.i, strict=True):
                m.d.comb += [
                    to.valid.eq(of.valid),
                    to.payload.eq(of.payload),
                    of.ready.eq(to.ready),
                ]
            asked = arbiter.o.payload
            m.d.comb += [
                *copy(command, asked.data),
                # The master's number is the upper part of the ID, so responses find their way back
                # without a table.
                command.id.eq(Cat(asked.data.id, asked.source)),
            ]
        m.d.comb += [bus.ar.valid.eq(reading.o.valid), reading.o.ready.eq(bus.ar.ready)]

        # Write addresses and their data go in the same order.
        source = unsigned(len(writing.o.payload.source))
        m.submodules.order = order = Queue(QueueParameters(depth=p.bursts), shape=source)
        # AXI4 has no ID on write data: they must come in the order of their addresses. So each
        # address also enters a queue, which says whose data is next; a fork, as the bus may take
        # the address first.
        fork(m, "address", writing.o, [bus.aw, order.i])
        m.d.comb += order.i.payload.eq(writing.o.payload.source)
        number = order.o.payload
        collect(m, list(self.w), number, bus.w)
        last = bus.w.valid & bus.w.ready & bus.w.payload.last
        # A master keeps the data channel for a whole burst, since bursts may not be interleaved.
        m.d.comb += order.o.ready.eq(last)
        for master in self.w:
            with m.If(~order.o.valid):
                m.d.comb += master.ready.eq(0)
        with m.If(~order.o.valid):
            m.d.comb += bus.w.valid.eq(0)

        for channel, masters in ((bus.r, self.r), (bus.b, self.b)):
            # Masters take every response at once: they have reserved its place before they asked.
            m.d.comb += channel.ready.eq(1)
            for n, master in enumerate(masters):
                mine = channel.payload.id[p.id :] == n
                m.d.comb += [
                    master.valid.eq(channel.valid & mine),
                    *copy(master.payload, channel.payload),
                ]
        return m
