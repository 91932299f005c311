"""Element-wise operations of two vectors: residual sums and gated products (KLLM, III-C1)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits.order_key import is_nan
from hw.arith.float_format import FP16
from hw.attention.delay import delay
from hw.attention.pair_function import PairFunction, PairFunctionParameters, PairOperation
from hw.component import Component
from hw.layout import FLAG, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class VectorUnitParameters(Parameters):
    """
    lanes
        Pairs in a beat, 1 to 64.
    stages
        Pipeline stages of a lane, 1 to 8.
    """

    lanes: int = 4
    stages: int = 8

    def __post_init__(self):
        require(1 <= self.lanes <= 64, "lanes must be between 1 and 64", self.lanes)
        require(1 <= self.stages <= 8, "stages must be between 1 and 8", self.stages)

    @classmethod
    def presets(cls) -> dict[str, "VectorUnitParameters"]:
        return {"small": cls(2, 1), "default": cls(), "wide": cls(16)}

    @cached_property
    def pair_function(self) -> PairFunctionParameters:
        return PairFunctionParameters(stages=self.stages)

    @property
    def latency(self) -> int:
        """Cycles from a beat of pairs to its results."""
        return self.stages

    def cycles(self, lengths: list[int]) -> int:
        """Cycles from the first pairs offered to the last result accepted, when nothing stalls.

        lengths
            Elements of each vector.
        """
        return sum(-(-length // self.lanes) for length in lengths) + self.stages

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """Operation ``op`` of a vector."""
        return data.StructLayout({"op": PairOperation})

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """Pairs ``a``, ``b``; ``keep``: lanes with an element; ``last`` beat of the vector."""
        operands = dict.fromkeys(("a", "b"), data.ArrayLayout(FP16, self.lanes))
        return data.StructLayout(operands | {"keep": mask(self.lanes), "last": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """Results ``y``; ``keep`` and ``last`` as offered; ``invalid``: lanes whose result is NaN.

        ``y`` and ``invalid`` are 0 in lanes without an element.
        """
        return data.StructLayout(
            {
                "y": data.ArrayLayout(FP16, self.lanes),
                "keep": mask(self.lanes),
                "invalid": mask(self.lanes),
                "last": FLAG,
            }
        )


class VectorUnit(Component[VectorUnitParameters]):
    """y = a + b, a b, SiLU(a) b or GELU(a) b, element by element, as a vector's command says.

    ::

        command ─→ op ──┐
        i ─→ a, b ──────┴→ PairFunction, one a lane ─→ o
             keep, last ─→ registers ────────────────↗

    A decoder layer needs two residual sums and one gated product; K-Means indices hold neither
    operand, as :class:`hw.attention.pair_function.PairFunction` says, which states accuracy and
    special operands too.

    Latency: `stages` cycles. Throughput: `lanes` elements a cycle, vectors without gaps.

    Handshake: a beat is accepted only while its vector's command is valid, and the command is
    accepted with the vector's last beat. ``i.ready`` depends combinationally on ``o.ready`` and
    ``command.valid``, ``command.ready`` on ``i.valid`` too. ``o`` depends on registers only. All
    stages advance together, in every cycle in which the last is empty or is read. Overflow: none.

    Examples
    --------
    >>> from hw.attention.vector_unit import VectorUnitParameters
    >>> parameters = VectorUnitParameters(lanes=4, stages=8)
    >>> parameters.cycles([576, 1536])  # a residual sum and a gated product of SmolLM2-135M
    536
    """

    summary = "Sums and gated products of two vectors, element by element"
    source = "KLLM, section III-C1"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "Operation, a beat for each vector."),
            "i": stream_in(p.input_layout, "Pairs of elements."),
            "o": stream_out(p.output_layout, "Their results."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o = self.parameters, self.i, self.o
        valid = Signal(p.stages)
        enable = Signal()
        accepted = Signal()
        m.d.comb += [
            enable.eq(~valid[-1] | o.ready),
            i.ready.eq(enable & self.command.valid),
            accepted.eq(i.valid & i.ready),
            self.command.ready.eq(accepted & i.payload.last),
            o.valid.eq(valid[-1]),
        ]
        # What a beat says of its lanes passes as many registers as its elements.
        flags = delay(
            m,
            "flags",
            Cat(i.payload.keep, i.payload.last),
            p.stages,
            enable=enable,
            reset=False,
        )
        # One enable for the whole pipeline: a stage that waits holds all stages before it.
        with m.If(enable):
            m.d.sync += valid.eq(valid << 1 | accepted)

        m.d.comb += Cat(o.payload.keep, o.payload.last).eq(flags)
        for lane in range(p.lanes):
            unit = PairFunction(p.pair_function)
            m.submodules[f"lane_{lane}"] = unit
            # A lane without an element computes on whatever is there, so its result is cleared.
            kept = o.payload.keep[lane]
            m.d.comb += [
                unit.enable.eq(enable),
                unit.a.eq(i.payload.a[lane]),
                unit.b.eq(i.payload.b[lane]),
                unit.op.eq(self.command.payload.op),
                o.payload.y[lane].eq(Mux(kept, unit.o, 0)),
                o.payload.invalid[lane].eq(kept & is_nan(unit.o)),
            ]
        return m
