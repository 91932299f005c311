"""Memories whose places are filled and emptied beside the work of others (VEDA, section V)."""

from types import SimpleNamespace

from amaranth.hdl import Array, Module, Shape, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out
from hw.veda.context_memory import context_index


def access_layout(places: int, slots: int) -> data.StructLayout:
    """``read`` or ``write`` the `slot` of a `place`, or ``load`` the place's word."""
    fields = {"place": context_index(places), "slot": index(range(slots))}
    return data.StructLayout(fields | {"read": 1, "write": 1, "load": 1})


class PlaceWords(Component[None]):
    """A word for each place, in registers, 0 after a reset; as :class:`ContextMemory`.

    Parameters
    ----------
    places, slots : int
        Number of places, and of slots of each, for `access` alone.
    shape : shape-like
        Shape of a word.
    """

    def __init__(self, places: int, slots: int, shape):
        self._places, self._slots, self._shape = places, slots, shape
        super().__init__()

    def ports(self) -> Ports:
        number = context_index(self._places)
        write = data.StructLayout({"valid": 1, "context": number, "word": self._shape})
        return {
            "context": wire_in(number, "Place to read."),
            "word": wire_out(self._shape, "Its word, in the same cycle."),
            "write": wire_in(write, "Word to write if ``valid``."),
            "access": wire_in(access_layout(self._places, self._slots), "The mover's."),
            "given": wire_in(self._shape, "The word that `access` loads."),
            "kept": wire_out(self._shape, "The word of the place of `access`, in the same cycle."),
        }

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self._shape).width
        # Registers, as a memory's would need two asynchronous reads; there are few places.
        words = [Signal(width, name=f"word_{n}") for n in range(self._places)]
        write, access = self.write, self.access
        # A load comes last: a place that is moved has no step that would write it.
        for n, word in enumerate(words):
            with m.If(write.valid & (write.context == n)):
                m.d.sync += word.eq(write.word)
            with m.If(access.load & (access.place == n)):
                m.d.sync += word.eq(self.given)
        m.d.comb += [
            Value.cast(self.word).eq(Array(words)[self.context]),
            Value.cast(self.kept).eq(Array(words)[access.place]),
        ]
        return m


class PlaceMemory(Component[None]):
    """A memory of `slots` words for each place, of which two are accessed at once.

    `read` and `write` are the ports of one memory of all places: an address is | place | slot |,
    and the word found remains until the next read. The mover's `access` is to a place that they
    do not use meanwhile, so each place's memory has one port to read and one to write. Both words
    are found in the next cycle.

    Parameters
    ----------
    places, slots : int
        Number of places, and of slots of each, a power of two.
    shape : shape-like
        Shape of a slot's word.
    """

    def __init__(self, places: int, slots: int, shape):
        self._places, self._slots, self._shape = places, slots, shape
        super().__init__()

    def ports(self) -> Ports:
        slot_bits, place_bits = (n.bit_length() for n in (self._slots - 1, self._places - 1))
        fields = {"en": 1, "addr": slot_bits + place_bits}
        return {
            "read": wire_in(data.StructLayout(fields), "Word to read."),
            "found": wire_out(self._shape, "The word that was read last."),
            "write": wire_in(data.StructLayout(fields | {"data": self._shape}), "Word to write."),
            "access": wire_in(access_layout(self._places, self._slots), "The mover's."),
            "given": wire_in(self._shape, "The word that `access` writes."),
            "kept": wire_out(self._shape, "The word that `access` has read."),
        }

    def read_port(self):
        """The port to read, with the names that :class:`amaranth.lib.memory.Memory`'s has."""
        return SimpleNamespace(en=self.read.en, addr=self.read.addr, data=self.found)

    def write_port(self):
        """The port to write, likewise."""
        return self.write

    def elaborate(self, platform):
        m = Module()
        read, write, access = self.read, self.write, self.access
        width, bits = Shape.cast(self._shape).width, (self._slots - 1).bit_length()
        found = []
        for n in range(self._places):
            m.submodules[f"place_{n}"] = words = memory.Memory(
                shape=unsigned(width), depth=self._slots, init=[]
            )
            reads, writes = words.read_port(), words.write_port()
            # The step never uses the place that is moved, so one address serves whichever asks.
            mine = access.place == n
            m.d.comb += [
                reads.en.eq(read.en & (read.addr[bits:] == n)),
                reads.addr.eq(read.addr[:bits]),
                writes.en.eq(write.en & (write.addr[bits:] == n)),
                writes.addr.eq(write.addr[:bits]),
                writes.data.eq(write.data),
            ]
            with m.If(access.read & mine):
                m.d.comb += [reads.en.eq(1), reads.addr.eq(access.slot)]
            with m.If(access.write & mine):
                m.d.comb += [
                    writes.en.eq(1),
                    writes.addr.eq(access.slot),
                    writes.data.eq(self.given),
                ]
            found.append(reads.data)
        # Which place was read: its memory holds the word, the others' may change.
        place = Signal(range(self._places), reset_less=True)
        with m.If(read.en):
            m.d.sync += place.eq(read.addr[bits:])
        m.d.comb += [
            Value.cast(self.found).eq(Array(found)[place]),
            Value.cast(self.kept).eq(Array(found)[access.place]),
        ]
        return m
