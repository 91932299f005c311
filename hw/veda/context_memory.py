"""A word of state for each context (VEDA, section V)."""

from amaranth.hdl import Module, Mux, Shape, Signal, Value
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out


def context_index(contexts: int):
    """Shape of a field that names a context. One bit at least, so that every layout has it."""
    return index(max(1, (contexts - 1).bit_length()))


def by_context(layout: data.StructLayout, contexts: int) -> data.StructLayout:
    """The `layout` with a ``context`` out of `contexts`."""
    fields = {name: field.shape for name, field in layout}
    return data.StructLayout(fields | {"context": context_index(contexts)})


class ContextMemory(Component[None]):
    """A word for each context, 0 after a reset; any number beyond the last context reads 0, too.

    The word is read asynchronously, and written at the end of the cycle.

    Parameters
    ----------
    contexts : int
        Number of contexts, from 1.
    shape : shape-like
        Shape of a word.
    """

    def __init__(self, contexts: int, shape):
        self._contexts, self._shape = contexts, shape
        super().__init__()

    def ports(self) -> Ports:
        number = context_index(self._contexts)
        write = data.StructLayout({"valid": 1, "context": number, "word": self._shape})
        return {
            "context": wire_in(number, "Context to read."),
            "word": wire_out(self._shape, "Its word, in the same cycle."),
            "write": wire_in(write, "Word to write if ``valid``; the context exists."),
        }

    def elaborate(self, platform):
        m = Module()
        write = self.write
        # A memory is not cleared by a reset, so a bit for each context says that its word is new.
        written = Signal(1 << len(self.context))  # for any number that a context may have
        found = Signal(Shape.cast(self._shape).width, reset_less=True)  # of the context to read
        m.d.comb += Value.cast(self.word).eq(
            Mux((written >> self.context)[0], found, 0),
        )
        with m.If(write.valid):
            m.d.sync += written.bit_select(write.context, 1).eq(1)
        # A memory of one word has no address; registers take its place.
        if self._contexts == 1:
            with m.If(write.valid):
                m.d.sync += found.eq(write.word)
            return m
        m.submodules.words = words = memory.Memory(shape=len(found), depth=self._contexts, init=[])
        read_port, write_port = words.read_port(domain="comb"), words.write_port()
        m.d.comb += [
            read_port.addr.eq(self.context),
            found.eq(read_port.data),
            write_port.en.eq(write.valid),
            write_port.addr.eq(write.context),
            write_port.data.eq(write.word),
        ]
        return m
