"""Which row of a memory holds each slot of a cache, when slots move (VEDA, section V)."""

import dataclasses
from functools import cached_property
from typing import Any

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import FLAG, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.veda.context_memory import ContextMemory, context_index
from hw.veda.place_memory import PlaceMemory, PlaceWords, access_layout


@dataclasses.dataclass(frozen=True)
class RowMapParameters(Parameters):
    """
    capacity
        Slots, a power of two from 2.
    region_bits
        Number of address bits above the slot's, passed unchanged.
    contexts
        Number of caches, each with a separate map; see :class:`RowMap`.
    tag_bits
        Bits that accompany an address, passed unchanged.
    moved
        Whether contexts are places whose maps are moved to a memory and back.
    """

    capacity: int = 256
    region_bits: int = 3
    tag_bits: int = 5
    contexts: int = 1
    moved: bool = False

    def __post_init__(self):
        power = self.capacity >= 2 and self.capacity & (self.capacity - 1) == 0
        require(power, "capacity must be a power of two from 2", self.capacity)
        require(self.contexts >= 1, "contexts must be at least 1", self.contexts)
        rule = f"region_bits must be at least {self.context_bits + 1}"
        require(self.region_bits > self.context_bits, rule, self.region_bits)
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

    SWAP_CYCLES = 4
    """Cycles from a swap to the next look-up or change."""

    @property
    def slot_bits(self) -> int:
        return self.capacity.bit_length() - 1

    @property
    def context_bits(self) -> int:
        """Upper bits of a region, which name its context."""
        return (self.contexts - 1).bit_length()

    @cached_property
    def address_layout(self) -> data.StructLayout:
        """``tag``, ``slot`` and ``region``; an address is | region | slot or row |."""
        return data.StructLayout(
            {"tag": self.tag_bits, "slot": index(self.slot_bits), "region": self.region_bits}
        )

    @cached_property
    def change_layout(self) -> data.StructLayout:
        """In a context, ``swap`` the rows of ``slot`` and ``last``, or begin to use ``slot``."""
        slot = index(self.slot_bits)
        fields = {"swap": FLAG, "slot": slot, "last": slot, "context": context_index(self.contexts)}
        return data.StructLayout(fields)


class RowMap(Component[RowMapParameters]):
    """A memory's row for each slot of a cache.

    Live slots are 0 to l - 1. A new token takes slot l. When slot e is evicted, it swaps rows with
    slot l - 1, so that live slots are again 0 to l - 2, and slot l - 1 has the free row. No
    row is moved in the memory. A slot has the same row in all regions of a context, and each
    context has a map. With l = 4::

        slot  0 1 2 3                    slot  0 1 2 3
        row   0 1 2 3  ─ evict slot 1 ─→ row   0 3 2 1     slot 3 is free, a new token gets row 1

    A sequence begins with slot 0. A slot that is used for the first time in a sequence gets the row
    with the slot's number, so no initialisation is needed, and no more rows than slots are used.

    Latency: 1 cycle of a look-up. Throughput: a look-up a cycle; a swap takes 4 cycles.

    Handshake: ``change.ready`` depends on registers only and is low while a look-up waits at `o`;
    changes have priority: ``i.ready`` depends combinationally on ``change.valid`` and ``o.ready``.
    Overflow: none; a new slot must be at most one above those used before.
    """

    def ports(self) -> Ports:
        p = self.parameters
        layout = p.address_layout
        state = data.StructLayout({"row": p.slot_bits, "used": range(p.capacity + 1)})
        moved = {
            "access": wire_in(access_layout(p.contexts, p.capacity), "The mover's."),
            "given": wire_in(state, "Row of the slot, number of slots used."),
            "kept": wire_out(state, "The same, of the place of `access`."),
            "changing": wire_out(1, "Slots swap rows."),
        }
        return {
            "change": stream_in(
                p.change_layout, "Changes of the map. They do not affect look-ups accepted before."
            ),
            "i": stream_in(layout, "Addresses by slot."),
            "o": stream_out(layout, "The same by row: the field ``slot`` is the row."),
            **(moved if p.moved else {}),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        change, i, o = self.change, self.i, self.o
        rows, used = self._memories()
        m.submodules.rows = rows
        m.submodules.used = used
        read, write = rows.read_port(), rows.write_port()

        # A slot gets the row of its own number when it is used first; later evictions permute rows
        # among slots. Both stay permutations, so no two slots ever share a row.
        swapped = Signal(p.change_layout, reset_less=True)
        row = Signal(p.slot_bits, reset_less=True)  # of the evicted slot
        region = Signal(p.region_bits, reset_less=True)
        tag = Signal(p.tag_bits, reset_less=True)
        first_use = Signal()
        looked_up = i.payload.region[p.region_bits - p.context_bits :]
        changed = change.payload.context[: p.context_bits]
        m.d.comb += [
            # `used` is the number of slots that have a row in the context's sequence.
            used.context.eq(change.payload.context),
            used.write.context.eq(change.payload.context),
            used.write.word.eq(change.payload.slot + 1),
            first_use.eq((change.payload.slot == 0) | (change.payload.slot == used.word)),
            read.addr.eq(Cat(i.payload.slot, looked_up)),
            o.payload.eq(Cat(tag, read.data, region)),
        ]
        # A swap: read both rows, then write both.
        #   cycle         0 LOOK_UP     1 READ_LAST   2 WRITE_SLOT       3 WRITE_LAST
        #   read address  slot          last
        #   read data                   slot's row    last's row
        #   write                                     last's row → slot  slot's row → last
        slot, last = (
            Cat(of, swapped.context[: p.context_bits]) for of in (swapped.slot, swapped.last)
        )
        with m.FSM(name="phase") as phase:
            with m.State("LOOK_UP"):
                m.d.comb += [
                    # A change waits until the last looked-up row has left, since a read for the
                    # swap would replace the memory's output. A lookup never waits for more than one
                    # change.
                    change.ready.eq(~o.valid),
                    i.ready.eq(~change.valid & (~o.valid | o.ready)),
                    read.en.eq(i.ready),
                    write.addr.eq(Cat(change.payload.slot, changed)),
                    write.data.eq(change.payload.slot),
                ]
                with m.If(change.valid & change.ready):
                    m.d.sync += swapped.eq(change.payload)
                    m.d.comb += read.en.eq(1)
                    with m.If(change.payload.swap):
                        m.d.comb += read.addr.eq(Cat(change.payload.slot, changed))
                        m.next = "READ_LAST"
                    with m.Elif(first_use):
                        m.d.comb += [write.en.eq(1), used.write.valid.eq(1)]
            # Two reads before two writes: with writes between them the second read might see the
            # first.
            with m.State("READ_LAST"):
                m.d.comb += [read.en.eq(1), read.addr.eq(last)]
                m.d.sync += row.eq(read.data)
                m.next = "WRITE_SLOT"
            with m.State("WRITE_SLOT"):
                m.d.comb += [write.en.eq(1), write.addr.eq(slot), write.data.eq(read.data)]
                m.next = "WRITE_LAST"
            with m.State("WRITE_LAST"):
                m.d.comb += [write.en.eq(1), write.addr.eq(last), write.data.eq(row)]
                m.next = "LOOK_UP"
        if p.moved:
            self._move(m, rows, used)
            m.d.comb += self.changing.eq(~phase.ongoing("LOOK_UP"))
        with m.If(i.ready):
            m.d.sync += [
                o.valid.eq(i.valid),
                tag.eq(i.payload.tag),
                region.eq(i.payload.region),
            ]
        with m.Elif(o.ready):
            m.d.sync += o.valid.eq(0)
        return m

    def _memories(self) -> tuple[Any, Any]:
        """Rows of all slots, and the number of slots used, of each context or place."""
        p, slots = self.parameters, unsigned(self.parameters.capacity.bit_length())
        row = unsigned(p.slot_bits)
        if p.moved:
            return PlaceMemory(p.contexts, p.capacity, row), PlaceWords(
                p.contexts, p.capacity, slots
            )
        depth = p.capacity << p.context_bits
        return memory.Memory(shape=row, depth=depth, init=[]), ContextMemory(p.contexts, slots)

    def _move(self, m: Module, rows: PlaceMemory, used: PlaceWords) -> None:
        """Access to the state of a place."""
        for part, field in ((rows, "row"), (used, "used")):
            m.d.comb += [
                part.access.eq(self.access),
                part.given.eq(self.given[field]),
                self.kept[field].eq(part.kept),
            ]
