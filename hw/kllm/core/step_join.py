"""Joins outliers, indices and weights into the lanes' steps (KLLM, Fig. 5)."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.kllm.core.core_parameters import IN_FLIGHT, TAG_FLAGS, CoreParameters
from hw.kllm.core.word_fetch import fetched_layout
from hw.layout import index
from hw.ports import Ports, stream_in, stream_out, wire_in

SHARED = ("activation", "mask", "integer", "entries", "advance", "last", "groups")
"""Fields of a step that are the same for all lanes."""


def step_layout(p: CoreParameters) -> data.StructLayout:
    """A step of all lanes.

    As :class:`PeLane` accepts it, with ``weight`` and ``scale`` of each lane, and the ``bank`` of
    the product's tables.
    """
    shared = {name: p.lane.input_layout[name].shape for name in SHARED}
    lanes = {"weight": p.word_layout, "scale": p.scale_layout}
    return data.StructLayout(shared | lanes | {"bank": index(1)})


class StepJoin(Component[CoreParameters]):
    """Join each row of outliers with the indices and the weights at its positions.

    ::

        rows ─────┬─────────────────→ o
        indices ──┤ kept until the last row at their positions
        weights ──┘

    Indices and weights are held until the last row at their positions is accepted. A product waits
    with its first step until its vectors' scales and factors are computed; its sums would otherwise
    fill the lanes and wait there.

    Latency: 0 cycles. Throughput: a step each cycle. Handshake: all inputs' ``ready`` follow
    ``o.ready`` and the inputs' ``valid`` combinationally, as does ``o.valid``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "rows": stream_in(p.outlier_list.output_layout, "Outliers."),
            "indices": stream_in(
                p.index_buffer.output_layout,
                "Words of indices; the tag is the bank, ``integer``, ``signed`` and ``groups``.",
            ),
            "weights": stream_in(fetched_layout(p), "Words of weights."),
            "scale_done": wire_in(
                1, "The last :class:`VectorScale` of a batch is queued in this cycle."
            ),
            "o": stream_out(step_layout(p), "Steps."),
        }

    def elaborate(self, platform):
        m = Module()
        rows, indices, weights, o = self.rows, self.indices, self.weights, self.o
        row, word, beat, step = (port.payload for port in (rows, indices, weights, o))
        # The command's fields come with the words of indices, as their tag.
        bank, integer, signed = word.tag[:TAG_FLAGS]
        ahead = Signal(range(IN_FLIGHT + 1))  # batches with scales whose steps are not all accepted
        fire = Signal()
        product_end = Signal()
        word_end = Signal()
        m.d.comb += [
            # A row of outliers is a step; the indices and weights at its positions are held for all
            # rows there.
            o.valid.eq(rows.valid & indices.valid & weights.valid & (ahead > 0)),
            fire.eq(o.valid & o.ready),
            word_end.eq(fire & row.advance),
            product_end.eq(fire & row.last & word.end),
            rows.ready.eq(fire),
            indices.ready.eq(word_end),
            weights.ready.eq(word_end),
        ]
        # Scales are computed ahead for some batches, and used up by products.
        # A step must not reach the lanes before its vector's scale is known, as a lane cannot hold
        # a column back; the counter is how the join waits without looking into the scale's path.
        m.d.sync += ahead.eq(ahead + self.scale_done - product_end)
        fields = {
            # Integers in order of their values have the top bit of two's complement inverted.
            "activation": Cat(Cat(index[:-1], index[-1] ^ signed) for index in word.index),
            "mask": word.keep,
            "integer": integer,
            "entries": row.entries,
            "advance": row.advance,
            "last": row.last,
            "groups": word.tag[TAG_FLAGS:],
            "weight": beat.weight,
            "scale": beat.scale,
            "bank": bank,
        }
        m.d.comb += [Value.cast(step[name]).eq(Value.cast(v)) for name, v in fields.items()]
        return m
