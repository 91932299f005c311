"""Scores to probabilities to the next product's vectors, in the core (KLLM, section IV-A)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.kllm.core.command_dispatch import command_layouts
from hw.kllm.core.core_parameters import BEAT, CoreParameters
from hw.kllm.softmax import Softmax
from hw.ports import Ports, stream_in, stream_out, wire_in


class ScorePath(Component[CoreParameters]):
    """Softmax of a product's results, times a vector `x`: the vector of a later product.

    ::

        results ─→ buffer, by vector ─→ Softmax ─→ beats of 16 ─→ × ─→ o
        x ────────────────────────────────────────────────────────┴──→ o

    Results come set by set, and within a set for all vectors of a batch in turn. They are stored by
    vector, and each vector's are a row of the softmax. The buffer has two halves, so that the next
    product's results are stored while the results of the one before are read: the softmax of a head
    is computed while another head multiplies.

    A vector whose command says ``weighted`` is multiplied, element by element and rounded to FP16,
    by the next row's probabilities; a row may belong to several vectors one after another, all but
    the last of full beats. Other vectors pass.

    Latency: 0 cycles for vectors that pass. A row of n beats is offered by the softmax n + 18
    cycles after it is read first. Handshake: ``x.ready`` follows ``o.ready`` combinationally;
    ``o.valid`` follows ``x.valid`` for vectors that pass. Overflow: a row has at most `scores`
    results.
    """

    def ports(self) -> Ports:
        p = self.parameters
        layouts = command_layouts(p)
        vectors = p.outlier_split.input_layout
        return {
            "results": stream_in(p.output_layout, "Of products whose results are scores."),
            "vectors": wire_in(
                range(p.vectors + 1), "With `results`: the vectors of the product's batch."
            ),
            "x": stream_in(vectors, "Vectors."),
            "command": stream_in(
                layouts["score_use"], "For each vector, whether it is weighted by probabilities."
            ),
            "o": stream_out(vectors, "Vectors."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.softmax = softmax = Softmax(self.parameters.softmax)
        self._store(m, softmax.i)
        present, values, keep, used = self._gather(m, softmax.o)
        self._weigh(m, present, values, keep, used)
        return m

    def _store(self, m: Module, rows) -> None:
        """Store results by vector, and offer each vector's to the softmax."""
        p, results = self.parameters, self.results
        sets = p.softmax.beats
        width = p.lanes * (FP16.width + 1)
        places = len(Signal(range(max(2, sets))))
        others = len(Signal(range(max(2, p.vectors))))
        buffer = memory.Memory(shape=unsigned(width), depth=2 << places + others, init=[])
        m.submodules.buffer = buffer
        put, get = buffer.write_port(), buffer.read_port()
        # Two halves by turns: results of one head are stored while the softmax reads those of the
        # head before.
        full = Signal(2)
        ends = [Signal(range(sets), name=f"end_{half}", reset_less=True) for half in (0, 1)]
        batches = [Signal(others, name=f"batch_{half}", reset_less=True) for half in (0, 1)]

        # Write side: vector by vector within a set.
        write_half = Signal()
        index = Signal(places)
        vector = Signal(others)
        fire = Signal()
        batch_end = Signal()
        final = Signal()
        m.d.comb += [
            results.ready.eq(~Mux(write_half, full[1], full[0])),
            fire.eq(results.valid & results.ready),
            # Lanes output a set of columns for each vector in turn; the address turns this into
            # rows.
            batch_end.eq(vector == self.vectors - 1),
            final.eq(fire & results.payload.last),
            put.en.eq(fire),
            put.addr.eq(Cat(index, vector, write_half)),
            put.data.eq(Cat(Value.cast(results.payload.y), results.payload.keep)),
        ]
        with m.If(fire):
            m.d.sync += vector.eq(Mux(batch_end, 0, vector + 1))
            with m.If(batch_end):
                m.d.sync += index.eq(Mux(final, 0, index + 1))
        with m.If(final):
            m.d.sync += write_half.eq(~write_half)

        # Read side: into the output register, row after row.
        read_half = Signal()
        read_place = Signal(places)
        read_vector = Signal(others)
        read = Signal()
        row_end = Signal()
        emptied = Signal()
        m.d.comb += [
            read.eq(Mux(read_half, full[1], full[0]) & (~rows.valid | rows.ready)),
            # Sizes are kept for each half, as two products in flight may differ.
            row_end.eq(read_place == Mux(read_half, ends[1], ends[0])),
            emptied.eq(read & row_end & (read_vector == Mux(read_half, batches[1], batches[0]))),
            get.en.eq(read),
            get.addr.eq(Cat(read_place, read_vector, read_half)),
            Cat(Value.cast(rows.payload.scores), rows.payload.keep).eq(get.data),
        ]
        with m.If(~rows.valid | rows.ready):
            m.d.sync += rows.valid.eq(read)
        with m.If(read):
            m.d.sync += [
                rows.payload.last.eq(row_end),
                read_place.eq(Mux(row_end, 0, read_place + 1)),
            ]
            with m.If(row_end):
                m.d.sync += read_vector.eq(Mux(emptied, 0, read_vector + 1))
        with m.If(emptied):
            m.d.sync += read_half.eq(~read_half)
        for half in (0, 1):
            with m.If(final & (write_half == half)):
                m.d.sync += [
                    full[half].eq(1),
                    ends[half].eq(index),
                    batches[half].eq(self.vectors - 1),
                ]
            with m.Elif(emptied & (read_half == half)):
                m.d.sync += full[half].eq(0)

    def _gather(self, m: Module, probabilities):
        """Beats of 16 probabilities; returns whether there is one, its values and mask, and the
        signal that it is used."""
        p, payload = self.parameters, probabilities.payload
        # Beats of lanes become beats of 16: the matrix product's inputs are wider than its outputs.
        parts = BEAT // p.lanes
        values = Signal(data.ArrayLayout(FP16, BEAT), name="gathered", reset_less=True)
        keep = Signal(BEAT, name="gathered_keep", reset_less=True)
        present, used, fire, complete = (
            Signal(name=name) for name in ("gathered_valid", "gathered_used", "taken_part", "whole")
        )
        part = Signal(range(max(2, parts)))
        m.d.comb += [
            probabilities.ready.eq(~present | used),
            fire.eq(probabilities.valid & probabilities.ready),
            complete.eq((part == parts - 1) | payload.last),
        ]
        with m.If(fire):
            m.d.sync += [present.eq(complete), part.eq(Mux(complete, 0, part + 1))]
        with m.Elif(used):
            m.d.sync += present.eq(0)
        for n in range(parts):
            slot = Value.cast(values).word_select(n, FP16.width * p.lanes)
            with m.If(fire & (part == n)):
                m.d.sync += [
                    slot.eq(Value.cast(payload.probabilities)),
                    keep.word_select(n, p.lanes).eq(payload.keep),
                ]
            with m.Elif(fire & (part == 0)):  # of a row's last beat, which may be short
                m.d.sync += keep.word_select(n, p.lanes).eq(0)
        return present, values, keep, used

    def _weigh(self, m: Module, present, values, keep, used) -> None:
        """Multiply vectors by probabilities, or let them pass."""
        p, x, o = self.parameters, self.x, self.o
        weighted = Signal()
        passing = Signal()
        beat = Signal(range(p.outlier_split.beats))
        done = Signal()
        moved = Signal()  # a beat of x is accepted
        full = Signal()  # the register has a weighted beat
        product = Signal(x.payload.shape(), name="product", reset_less=True)
        last = x.payload.last | (beat == p.outlier_split.beats - 1)
        m.d.comb += [
            weighted.eq(self.command.valid & self.command.payload.weighted),
            passing.eq(self.command.valid & ~self.command.payload.weighted & ~full),
            # A weighted beat goes through a register, as its product would lengthen the path; one
            # that passes does not wait behind it, because `passing` needs the register empty and
            # keeps the order.
            used.eq(x.valid & weighted & present & (~full | o.ready)),
            o.valid.eq(full | (x.valid & passing)),
            x.ready.eq(Mux(weighted, used, passing & o.ready)),
            moved.eq(x.valid & x.ready),
            done.eq(moved & last),
            self.command.ready.eq(done),
            Value.cast(o.payload).eq(Mux(full, Value.cast(product), Value.cast(x.payload))),
        ]
        with m.If(moved):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        with m.If(used):
            m.d.sync += [
                full.eq(1),
                product.keep.eq(x.payload.keep & keep),
                product.last.eq(x.payload.last),
            ]
        with m.Elif(o.ready):
            m.d.sync += full.eq(0)
        multiply = FloatMultiplyParameters(format="fp16")
        for n, (element, probability) in enumerate(zip(x.payload.values, values, strict=True)):
            m.submodules[f"multiply_{n}"] = unit = FloatMultiply(multiply)
            m.d.comb += [unit.a.eq(element), unit.b.eq(probability)]
            with m.If(used):
                m.d.sync += product.values[n].eq(unit.o)
