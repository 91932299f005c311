# amaranth: UnusedElaboratable=no
"""Small components that exist to test the simulators: a reader of memory rows, faulty buffers."""

import dataclasses
from typing import TYPE_CHECKING, Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.catalogue import Block
from hw.parameters import Parameters, require
from sim.core.design import Design, generate


class Dut(wiring.Component):
    """Ports become attributes by the signature, which a type checker cannot read."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def design(component: type, parameters: Parameters) -> Design:
    return generate(Block(component), parameters)


@dataclasses.dataclass(frozen=True)
class RowReaderParameters(Parameters):
    """
    address_bits, row_bits
        Of the memory.
    tag_bits
        The tags are counted through; in order, one reorder slot for each.
    ordered
        Output the rows in the order of their requests, not as they arrive.
    """

    address_bits: int = 6
    row_bits: int = 70
    tag_bits: int = 4
    ordered: bool = False

    @property
    def latency(self) -> int:
        return 2

    def input_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"write": 1, "row": self.address_bits, "data": data.ArrayLayout(1, self.row_bits)}
        )

    def request_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "tag": self.tag_bits,
                "address": self.address_bits,
                "write": 1,
                "data": data.ArrayLayout(1, self.row_bits),
            }
        )

    def row_layout(self) -> data.StructLayout:
        return data.StructLayout({"data": data.ArrayLayout(1, self.row_bits), "tag": self.tag_bits})


class RowReader(Dut):
    """Read and write memory rows by number; each read is answered by its row and its tag."""

    def __init__(self, parameters: RowReaderParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "i": In(stream.Signature(p.input_layout())),
                "request": Out(stream.Signature(p.request_layout())),
                "response": In(stream.Signature(p.row_layout())),
                "o": Out(stream.Signature(p.row_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        tag = Signal(self._parameters.tag_bits)
        room = Signal(init=1)
        m.d.comb += [
            self.request.valid.eq(self.i.valid & (room | self.i.payload.write)),
            self.i.ready.eq(self.request.ready & (room | self.i.payload.write)),
            self.request.payload.tag.eq(tag),
            self.request.payload.address.eq(self.i.payload.row),
            self.request.payload.write.eq(self.i.payload.write),
            self.request.payload.data.eq(self.i.payload.data),
        ]
        with m.If(self.request.valid & self.request.ready & ~self.i.payload.write):
            m.d.sync += tag.eq(tag + 1)
        if self._parameters.ordered:
            self._reorder(m, tag, room)
        else:
            wiring.connect(m, wiring.flipped(self.response), wiring.flipped(self.o))
        return m

    def _reorder(self, m, tag, room):
        """Park each response in its tag's slot; the oldest slot leaves once it is filled."""
        slots = 1 << len(tag)
        m.submodules.rows = rows = memory.Memory(
            shape=unsigned(self._parameters.row_bits), depth=slots, init=[]
        )
        write, read = rows.write_port(), rows.read_port(domain="comb")
        filled, oldest, held = Signal(slots), Signal.like(tag), Signal(len(tag) + 1)
        asked = self.request.valid & self.request.ready & ~self.request.payload.write
        arrived = self.response.valid & self.response.ready
        left = self.o.valid & self.o.ready
        m.d.comb += [
            room.eq(held < slots),
            self.response.ready.eq(1),
            write.en.eq(arrived),
            write.addr.eq(self.response.payload.tag),
            write.data.eq(self.response.payload.data),
            read.addr.eq(oldest),
            self.o.valid.eq(filled.bit_select(oldest, 1)),
            self.o.payload.tag.eq(oldest),
            self.o.payload.data.eq(read.data),
        ]
        m.d.sync += held.eq(held + asked - left)
        for k in range(slots):
            with m.If(left & (oldest == k)):
                m.d.sync += filled[k].eq(0)
            with m.If(arrived & (self.response.payload.tag == k)):
                m.d.sync += filled[k].eq(1)
        with m.If(left):
            m.d.sync += oldest.eq(oldest + 1)


class ReaderPair(Dut):
    """Two readers side by side, each with its own memory."""

    def __init__(self, parameters: RowReaderParameters):
        self._parameters = parameters
        ports = RowReader(parameters).signature.members
        super().__init__({name: member.array(2) for name, member in ports.items()})

    def elaborate(self, platform):
        m = Module()
        for k in range(2):
            m.submodules[f"reader{k}"] = reader = RowReader(self._parameters)
            wiring.connect(m, wiring.flipped(self.i[k]), reader.i)
            wiring.connect(m, reader.request, wiring.flipped(self.request[k]))
            wiring.connect(m, wiring.flipped(self.response[k]), reader.response)
            wiring.connect(m, reader.o, wiring.flipped(self.o[k]))
        return m


class Spinner(Dut):
    """Reads row 0 in every cycle and outputs nothing."""

    def __init__(self, parameters: RowReaderParameters):
        super().__init__(
            {
                "request": Out(stream.Signature(parameters.request_layout())),
                "response": In(stream.Signature(parameters.row_layout())),
                "o": Out(stream.Signature(parameters.row_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.response.ready.eq(1)
        m.d.sync += self.request.valid.eq(1)
        return m


FAULTS = ("none", "withdraw", "change", "lose", "repeat", "extra", "hang", "corrupt", "stale")


@dataclasses.dataclass(frozen=True)
class FaultyBufferParameters(Parameters):
    """
    fault
        What goes wrong.
    at
        Number of the beat with which it does; ``withdraw`` and ``change`` wait for a stall.
    """

    fault: str = "none"
    at: int = 20

    def __post_init__(self):
        require(self.fault in FAULTS, f"fault must be one of {', '.join(FAULTS)}", self.fault)

    @property
    def latency(self) -> int:
        return 1


class FaultyBuffer(Dut):
    """A one-entry buffer at full throughput, with a fault if one is given."""

    LAYOUT = data.StructLayout({"index": 12, "value": 40})

    def __init__(self, parameters: FaultyBufferParameters):
        self._parameters = parameters
        signature = stream.Signature(self.LAYOUT)
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform):
        fault, at = self._parameters.fault, self._parameters.at
        m = Module()
        full, payload = Signal(), Signal(self.LAYOUT)
        seen = Signal(16)  # beats accepted; the one held has number seen - 1
        ready = ~full | self.o.ready
        if fault == "hang":
            ready &= seen != at
        repeated = Signal()
        if fault == "repeat":
            ready &= ~full | (seen != at + 1) | repeated

        m.d.comb += [
            self.i.ready.eq(ready),
            self.o.valid.eq(full),
            self.o.payload.eq(payload),
        ]
        if fault == "stale":
            # As if an input's payload stayed what it was when it is not valid any more.
            with m.If(~self.i.valid):
                m.d.comb += self.o.payload.eq(self.i.payload)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += full.eq(0)
            if fault == "repeat":
                with m.If((seen == at + 1) & ~repeated):
                    m.d.sync += [full.eq(1), repeated.eq(1)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [seen.eq(seen + 1), payload.eq(self.i.payload), full.eq(1)]
            if fault == "lose":
                with m.If(seen == at):
                    m.d.sync += full.eq(0)
            if fault == "corrupt":
                with m.If(seen == at):
                    m.d.sync += payload.value.eq(self.i.payload.value ^ (1 << 39))

        if fault in ("withdraw", "change"):
            with m.If(full & ~self.o.ready & (seen > at)):
                m.d.sync += (
                    full.eq(0) if fault == "withdraw" else payload.index.eq(payload.index + 1)
                )
        if fault == "extra":
            idle = Signal(range(41))
            with m.If(full | self.i.valid):
                m.d.sync += idle.eq(0)
            with m.Elif((seen > at) & (idle < 40)):
                m.d.sync += idle.eq(idle + 1)
                with m.If(idle == 39):
                    m.d.sync += full.eq(1)
        return m


@dataclasses.dataclass(frozen=True)
class SlowParameters(Parameters):
    interval: int = 16

    @property
    def latency(self) -> int:
        return 0


class Slow(Dut):
    """Passes a beat in one of `interval` cycles."""

    def __init__(self, parameters: SlowParameters):
        self._interval = parameters.interval
        signature = stream.Signature(unsigned(8))
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self._interval))
        turn = count == self._interval - 1
        m.d.sync += count.eq(Mux(turn, 0, count + 1))
        m.d.comb += [
            self.o.valid.eq(self.i.valid & turn),
            self.o.payload.eq(self.i.payload),
            self.i.ready.eq(self.o.ready & turn),
        ]
        return m


@dataclasses.dataclass(frozen=True)
class WidthParameters(Parameters):
    width: int = 8

    @property
    def latency(self) -> int:
        return 1


class Crossing(Dut):
    """Two one-entry buffers side by side; each output is the other input inverted."""

    def __init__(self, parameters: WidthParameters):
        signature = stream.Signature(unsigned(parameters.width))
        super().__init__({"i": In(signature).array(2), "o": Out(signature).array(2)})

    def elaborate(self, platform):
        m = Module()
        for i, o in zip(self.i, reversed(self.o), strict=True):
            m.d.comb += i.ready.eq(~o.valid | o.ready)
            with m.If(i.ready):
                m.d.sync += [o.valid.eq(i.valid), o.payload.eq(~i.payload)]
        return m


class Pairing(Dut):
    """A beat of each input makes one output beat; purely combinational."""

    def __init__(self, parameters: WidthParameters):
        signature = stream.Signature(unsigned(parameters.width))
        both = data.StructLayout({"first": parameters.width, "second": parameters.width})
        super().__init__(
            {"first": In(signature), "second": In(signature), "o": Out(stream.Signature(both))}
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.o.valid.eq(self.first.valid & self.second.valid),
            self.first.ready.eq(self.o.valid & self.o.ready),
            self.second.ready.eq(self.o.valid & self.o.ready),
            self.o.payload.as_value().eq(Cat(self.first.payload, self.second.payload)),
        ]
        return m
