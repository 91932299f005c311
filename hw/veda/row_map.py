"""Where the rows of a cache lie whose slots change places (VEDA, section V)."""

import dataclasses

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class RowMapParameters(Parameters):
    """
    capacity
        Slots, a power of two from 2.
    region_bits
        Bits of an address above those of the slot, which pass unchanged.
    tag_bits
        Bits that go with an address, unchanged too.
    """

    capacity: int = 256
    region_bits: int = 3
    tag_bits: int = 5

    def __post_init__(self):
        power = self.capacity >= 2 and self.capacity & (self.capacity - 1) == 0
        require(power, "capacity must be a power of two from 2", self.capacity)
        require(self.region_bits >= 1, "region_bits must be at least 1", self.region_bits)
        require(self.tag_bits >= 1, "tag_bits must be at least 1", self.tag_bits)

    @classmethod
    def presets(cls) -> dict[str, "RowMapParameters"]:
        return {
            "small": cls(capacity=8, region_bits=1, tag_bits=3),
            "default": cls(),
            "paper": cls(capacity=4096, region_bits=6, tag_bits=7),
        }

    @property
    def latency(self) -> int:
        """Cycles of a look-up."""
        return 1

    SWAP = 4
    """Cycles from a swap to the next look-up or change."""

    @property
    def slot_bits(self) -> int:
        return self.capacity.bit_length() - 1

    @property
    def address_layout(self) -> data.StructLayout:
        """``tag``, ``slot`` and ``region``: row number and region together are an address."""
        return data.StructLayout(
            {"tag": self.tag_bits, "slot": self.slot_bits, "region": self.region_bits}
        )

    @property
    def change_layout(self) -> data.StructLayout:
        """``swap`` the rows of ``slot`` and ``last``, or begin to use ``slot``."""
        return data.StructLayout({"swap": 1, "slot": self.slot_bits, "last": self.slot_bits})


class RowMap(Component):
    """A memory's row for each slot of a cache.

    Live slots are 0 to l - 1. A new token begins to use slot l; where slot e leaves, it swaps rows
    with slot l - 1, so that the rest are again 0 to l - 2, and the row that is free is that of slot
    l - 1. Nothing is moved in the memory. The same slot has the same row in all regions.

    A sequence begins with slot 0. A slot that is used for the first time in a sequence has the row
    of its own number, so nothing needs to be set up, and rows used are as few as slots.

    Latency: 1 cycle of a look-up. Throughput: a look-up a cycle; a swap takes 4.

    Handshake: ``change.ready`` depends on registers only and is low while a look-up waits at `o`;
    a change goes before a look-up: ``i.ready`` depends combinationally on ``change.valid`` and
    ``o.ready``. Overflow: none; a new slot is at most one above those used before.

    Members
    -------
    change : :py:`In(stream.Signature(parameters.change_layout))`
        Changes of the map; in `i`, earlier look-ups are not concerned.
    i : :py:`In(stream.Signature(parameters.address_layout))`
        Addresses by slot.
    o : :py:`Out(stream.Signature(parameters.address_layout))`
        The same by row: ``slot`` is the row.
    """

    def __init__(self, parameters: RowMapParameters):
        self._parameters = parameters
        layout = parameters.address_layout
        super().__init__(
            {
                "change": In(stream.Signature(parameters.change_layout)),
                "i": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)),
            }
        )

    @property
    def parameters(self) -> RowMapParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        change, i, o = self.change, self.i, self.o
        m.submodules.rows = rows = memory.Memory(
            shape=unsigned(p.slot_bits), depth=p.capacity, init=[]
        )
        get, put = rows.read_port(), rows.write_port()

        used = Signal(range(p.capacity + 1))  # slots that have a row in this sequence
        swapped = Signal(p.change_layout, reset_less=True)
        row = Signal(p.slot_bits, reset_less=True)  # of the slot that leaves
        region = Signal(p.region_bits, reset_less=True)
        tag = Signal(p.tag_bits, reset_less=True)
        first = Signal()
        m.d.comb += [
            first.eq((change.payload.slot == 0) | (change.payload.slot == used)),
            get.addr.eq(i.payload.slot),
            o.payload.eq(Cat(tag, get.data, region)),
        ]
        with m.FSM(name="phase"):
            with m.State("LOOK UP"):
                m.d.comb += [
                    change.ready.eq(~o.valid),
                    i.ready.eq(~change.valid & (~o.valid | o.ready)),
                    get.en.eq(i.ready),
                    put.addr.eq(change.payload.slot),
                    put.data.eq(change.payload.slot),
                ]
                with m.If(change.valid & change.ready):
                    m.d.sync += swapped.eq(change.payload)
                    m.d.comb += get.en.eq(1)
                    with m.If(change.payload.swap):
                        m.d.comb += get.addr.eq(change.payload.slot)
                        m.next = "FIRST"
                    with m.Elif(first):
                        m.d.comb += put.en.eq(1)
                        m.d.sync += used.eq(change.payload.slot + 1)
            with m.State("FIRST"):
                m.d.comb += [get.en.eq(1), get.addr.eq(swapped.last)]
                m.d.sync += row.eq(get.data)
                m.next = "SECOND"
            with m.State("SECOND"):
                m.d.comb += [put.en.eq(1), put.addr.eq(swapped.slot), put.data.eq(get.data)]
                m.next = "THIRD"
            with m.State("THIRD"):
                m.d.comb += [put.en.eq(1), put.addr.eq(swapped.last), put.data.eq(row)]
                m.next = "LOOK UP"
        with m.If(i.ready):
            m.d.sync += [
                o.valid.eq(i.valid),
                tag.eq(i.payload.tag),
                region.eq(i.payload.region),
            ]
        with m.Elif(o.ready):
            m.d.sync += o.valid.eq(0)
        return m
