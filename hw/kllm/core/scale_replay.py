"""Scales of a batch's vectors, again for every set of columns (KLLM, section III-D)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import memory

from hw.component import Component
from hw.kllm.core.command_dispatch import command_layouts
from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.pe_lane import ColumnVector, VectorScale
from hw.ports import Ports, stream_in, stream_out


class ScaleReplay(Component[CoreParameters]):
    """Store the scales of vectors, and output a batch's in turn for every set of columns.

    There is room for the vectors of `IN_FLIGHT` products, and the parent has no more in flight.
    Latency: 1 cycle. Throughput: a beat a cycle. Handshake: ``i.ready`` is always high, ``o.valid``
    depends on registers and on ``command.valid``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        layout = command_layouts(p)["scale_replay"]
        return {
            "i": stream_in(VectorScale, "Scales, one for each vector."),
            "command": stream_in(
                layout, "For each batch, its vectors, the sets, and whether to add the sums kept."
            ),
            "o": stream_out(ColumnVector, "For each set, each vector's scales."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o, command = self.parameters, self.i, self.o, self.command
        depth = IN_FLIGHT * p.vectors
        m.submodules.rows = rows = memory.Memory(shape=VectorScale, depth=depth, init=[])
        put, get = rows.write_port(), rows.read_port(domain="comb")
        # Next row to write, next to read, and first of the batch that is read, with a wrap bit.
        written, reading, first = (
            Signal(range(2 * depth), name=name) for name in ("written", "reading", "first")
        )
        fire = Signal()
        vector = Signal(range(1, p.vectors + 1), init=1)
        number = Signal(range(1, p.sets + 1), init=1)  # of the set
        batch_end = Signal()
        final = Signal()
        m.d.comb += [
            i.ready.eq(1),
            put.en.eq(i.valid),
            put.addr.eq(written[:-1]),
            put.data.eq(i.payload),
            get.addr.eq(reading[:-1]),
            o.valid.eq(command.valid & (reading != written)),
            fire.eq(o.valid & o.ready),
            batch_end.eq(vector == command.payload.vectors),
            final.eq(batch_end & (number == command.payload.sets)),
            command.ready.eq(fire & final),
            o.payload.first.eq((vector == 1) & (number == 1)),
            o.payload.add.eq(command.payload.add),
            *(Value.cast(o.payload[name]).eq(Value.cast(get.data[name])) for name in ("s_a", "r")),
        ]
        with m.If(i.valid):
            m.d.sync += written.eq(written + 1)
        with m.If(fire):
            m.d.sync += [
                vector.eq(Mux(batch_end, 1, vector + 1)),
                reading.eq(Mux(batch_end & ~final, first, reading + 1)),
            ]
            with m.If(batch_end):
                m.d.sync += number.eq(Mux(final, 1, number + 1))
            with m.If(final):
                m.d.sync += first.eq(reading + 1)
        return m
