"""The special function unit, for scores of heads and for vectors to be normalised (VEDA, IV-B)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream

from hw.arith.float_format import FP32
from hw.attention.special_function_unit import (
    Operation,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.component import Component
from hw.layout import FLAG, count
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import fork, join, route
from hw.stream.queue import Queue, QueueParameters

TURNS = 4
"""Number of turns that may wait."""


def turn_layout(vectors: int) -> data.StructLayout:
    """The next ``vectors``, softmaxes or if ``norm`` RMS norms, with their ``inverse``, ``eps``."""
    fields = {"norm": FLAG, "vectors": count(range(vectors + 1)), "inverse": FP32, "eps": FP32}
    return data.StructLayout(fields)


class SharedFunctionUnit(Component[SpecialFunctionUnitParameters]):
    """Scores and elements take turns in one special function unit, as `turn` says.

    ::

        scores   i ─┐                        ┌─→ o  probabilities
                    ├→ SpecialFunctionUnit ─→┤
        elements x ─┘                        └─→ y  normalised elements

    Handshake: a turn is accepted when there is room for it. ``i.ready`` and ``x.ready`` are low in
    the other's turn; otherwise as :class:`SpecialFunctionUnit`'s.

    Parameters
    ----------
    parameters : :class:`SpecialFunctionUnitParameters`
    vectors : int
        Number of vectors of a turn, at most.
    """

    def __init__(self, parameters: SpecialFunctionUnitParameters, vectors: int):
        self._vectors = vectors
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "turn": stream_in(turn_layout(self._vectors), "Whose vectors are next."),
            "i": stream_in(p.input_layout, "Scores."),
            "o": stream_out(p.output_layout, "Probabilities."),
            "x": stream_in(p.input_layout, "Elements of vectors to be normalised."),
            "y": stream_out(p.output_layout, "Normalised elements."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = SpecialFunctionUnit(self.parameters)
        size, layout = QueueParameters(depth=TURNS), turn_layout(self._vectors)
        whose = data.StructLayout({"norm": FLAG, "vectors": count(range(self._vectors + 1))})
        # A turn is in both queues, for the vectors that enter and for the ones that leave: several
        # are inside at a time, and the unit's results do not say whose they are.
        m.submodules.entering = entering = Queue(size, shape=layout)
        m.submodules.leaving = leaving = Queue(size, shape=whose)
        turn = stream.Signature(layout).create()
        m.d.comb += turn.payload.eq(self.turn.payload)
        join(m, [self.turn], [turn])
        fork(m, "turn", turn, [entering.i, leaving.i])
        # Without a turn nothing enters, so that vectors enter in the order of jobs.
        norm = entering.o.payload.norm
        m.d.comb += [
            unit.command.valid.eq(entering.o.valid),
            unit.command.payload.op.eq(Mux(norm, Operation.RMS_NORM, Operation.SOFTMAX)),
            unit.command.payload.inverse.eq(entering.o.payload.inverse),
            unit.command.payload.eps.eq(entering.o.payload.eps),
            unit.i.valid.eq(entering.o.valid & Mux(norm, self.x.valid, self.i.valid)),
            unit.i.payload.eq(Mux(norm, self.x.payload, self.i.payload)),
            self.i.ready.eq(unit.i.ready & ~norm),
            self.x.ready.eq(unit.i.ready & norm),
        ]
        self._count(m, "entered", entering.o, unit.command.valid & unit.command.ready)
        result = stream.Signature(self.parameters.output_layout).create()
        route(m, result, leaving.o.payload.norm, [self.o, self.y])
        m.d.comb += [
            result.valid.eq(unit.o.valid & leaving.o.valid),
            result.payload.eq(unit.o.payload),
            unit.o.ready.eq(result.ready & leaving.o.valid),
        ]
        last = result.valid & result.ready & result.payload.last
        self._count(m, "left", leaving.o, last)
        return m

    def _count(self, m: Module, name: str, turn, passes) -> None:
        """Accept the turn with its last vector."""
        # Vectors and not elements are counted, so a turn needs no lengths.
        number = Signal(range(1, self._vectors + 1), init=1, name=name)
        last = number == turn.payload.vectors
        m.d.comb += turn.ready.eq(passes & last)
        with m.If(passes):
            m.d.sync += number.eq(Mux(last, 1, number + 1))
