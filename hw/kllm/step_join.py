"""The lanes' steps, from outliers, indices and weights (KLLM, Fig. 5)."""

from amaranth.hdl import Module, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters

SHARED = ("activation", "mask", "integer", "entries", "advance", "last")
"""What all lanes have in common of a step."""


def step_layout(p: CoreParameters) -> data.StructLayout:
    """A step of all lanes.

    As :class:`PeLane` takes it, with ``weight`` and ``scale`` of each lane, and the ``bank`` of
    the product's tables.
    """
    shared = {name: p.lane.input_layout[name].shape for name in SHARED}
    weight = data.ArrayLayout(p.lane.input_layout["weight"].shape, p.lanes)
    scale = data.ArrayLayout(FP16.width, p.lanes)
    return data.StructLayout(shared | {"weight": weight, "scale": scale, "bank": 1})


class StepJoin(Component):
    """Join a row of outliers with the indices and the weights at its positions.

    Indices and weights stay until the last row at their positions has gone. A product that is
    normalised waits with its first step until its vector's token is made: its factor takes a
    while, in which sums would fill the lanes and wait there.

    Latency: none. Throughput: a step each cycle. Handshake: all inputs' ``ready`` follow
    ``o.ready`` and the inputs' ``valid``, ``o.valid`` these, combinationally.

    Members
    -------
    rows : :py:`In(stream.Signature(parameters.listing.output_layout))`
        Outliers.
    indices : :py:`In(stream.Signature(parameters.gathering.output_layout))`
        Words of indices, with a tag of bank, whether they are integers and whether normalised.
    weights : :py:`In(stream.Signature(parameters.reading.output_layout(word_layout)))`
        Words of weights.
    token : :py:`In(1)`
        A vector's token is being made.
    o : :py:`Out(stream.Signature(step_layout(parameters)))`
        Steps.
    """

    def __init__(self, parameters: CoreParameters):
        p = self._parameters = parameters
        super().__init__(
            {
                "rows": In(stream.Signature(p.listing.output_layout)),
                "indices": In(stream.Signature(p.gathering.output_layout)),
                "weights": In(stream.Signature(p.reading.output_layout(p.word_layout))),
                "token": In(1),
                "o": Out(stream.Signature(step_layout(p))),
            }
        )

    @property
    def parameters(self) -> CoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        rows, indices, weights, o = self.rows, self.indices, self.weights, self.o
        row, word, beat, step = (port.payload for port in (rows, indices, weights, o))
        bank, integer, normalise = word.tag
        # Tokens made, less products whose steps are all taken. A product that is not normalised
        # may be through before its token is made.
        ahead = Signal(signed((IN_FLIGHT + 1).bit_length() + 1))
        taken = Signal()
        passed = Signal()  # the product's last step
        onward = Signal()  # to the next positions
        m.d.comb += [
            o.valid.eq(rows.valid & indices.valid & weights.valid & ((ahead > 0) | ~normalise)),
            taken.eq(o.valid & o.ready),
            onward.eq(taken & row.advance),
            passed.eq(taken & row.last & word.end),
            rows.ready.eq(taken),
            indices.ready.eq(onward),
            weights.ready.eq(onward),
        ]
        with m.If(self.token & ~passed):
            m.d.sync += ahead.eq(ahead + 1)
        with m.Elif(passed & ~self.token):
            m.d.sync += ahead.eq(ahead - 1)
        fields = {
            "activation": word.index,
            "mask": word.keep,
            "integer": integer,
            "entries": row.entries,
            "advance": row.advance,
            "last": row.last,
            "weight": beat.data.weight,
            "scale": beat.data.scale,
            "bank": bank,
        }
        m.d.comb += [Value.cast(step[name]).eq(Value.cast(v)) for name, v in fields.items()]
        return m
