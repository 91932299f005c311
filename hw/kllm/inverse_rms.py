"""1 / RMS of a vector from the sums of its squares (KLLM, section III-C2, equation 2)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
from hw.arith.inverse_square_root import double_root
from hw.arith.wide_exponent import EXPONENT, INVERSE_ROOT, round_fp16
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

STEPS = 3
"""Multiply-adds, one after another, that make the mean square."""


@dataclasses.dataclass(frozen=True)
class InverseRmsParameters(Parameters):
    """
    stages
        Pipeline stages of the multiply-add, 1 to 4.
    """

    stages: int = 3

    def __post_init__(self):
        require(1 <= self.stages <= 4, "stages must be between 1 and 4", self.stages)

    @classmethod
    def presets(cls) -> dict[str, "InverseRmsParameters"]:
        return {"small": cls(1), "default": cls()}

    @property
    def latency(self) -> int:
        """Cycles from the sums being offered to r being offered."""
        return STEPS * self.stages + 1

    def cycles(self, vectors: int) -> int:
        """Cycles from the first sums offered to the last r accepted, when nothing stalls."""
        return vectors * self.latency + 1

    @property
    def input_layout(self) -> data.StructLayout:
        """Sums ``s`` and ``o``, ``inverse_k`` = 1 / K, ``eps`` and scale ``s_a`` of one vector."""
        wide = dict.fromkeys(("s", "o", "inverse_k", "eps"), FP32)
        return data.StructLayout(wide | {"s_a": FP16})

    @property
    def output_layout(self) -> data.StructLayout:
        """``r``; ``invalid`` if r is NaN; ``saturated`` if r is limited to the largest FP16 number.

        ``mean_square`` is the number of which r is the inverse root.
        """
        return data.StructLayout(
            {"r": FP16, "invalid": FLAG, "saturated": FLAG, "mean_square": FP32}
        )


class InverseRms(Component[InverseRmsParameters]):
    """r = 1 / sqrt((s_a² S + O) / K + eps), for one vector at a time.

    `S` is the sum of counts times squares of centroids and `O` the sum of the squares of outliers,
    of a vector with the scale s_a; 1 / K is an operand.

        m = round32(round32(round32(s_a s_a) S + O) inverse_k + eps),  r = round16(1 / sqrt(m))

    ::

        cycle 0          cycle `stages`     cycle 2 `stages`     cycle 3 `stages`
        s_a s_a + 0  ─→  … S + O        ─→  … inverse_k + eps ─→ table of 1 / sqrt ─→ r

    One FP32 multiply-add computes the three steps, the first of which is exact; FP32 subnormals are
    flushed to zero. A table gives the inverse root of the significand; the exponent is halved.

    Accuracy: r is within 0.767 units in the last place of 1 / sqrt(m), and m has a relative error
    of at most 2^-22 if O and eps are not negative. FP16 data of any size give an m in range.

    Errors: an r beyond the largest FP16 number, as for a vector of zeros with eps = 0, is that
    number, flagged `saturated`, so that zeros times r are zeros. A negative, infinite or NaN m
    makes r the quiet NaN, flagged `invalid`.

    Latency: 3 stages + 1 cycles. Throughput: one result every 3 stages + 1 cycles.

    Handshake: ``o.valid`` and ``o.payload`` are registers. The input is accepted in the last cycle
    of its computation; ``i.ready`` follows ``i.valid`` and ``o.ready`` combinationally.

    Examples
    --------
    >>> from hw.kllm.inverse_rms import InverseRms, InverseRmsParameters
    >>> parameters = InverseRmsParameters(stages=3)
    >>> parameters.latency
    10
    >>> [name for name, _ in InverseRms(parameters).o.payload.shape()]
    ['r', 'invalid', 'saturated', 'mean_square']
    """

    summary = "1 / RMS of a vector from the sums of its squares"
    source = "KLLM, section III-C2"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Sums of a vector."),
            "o": stream_out(p.output_layout, "Its factor."),
        }

    def elaborate(self, platform):
        m = Module()
        i, o = self.i, self.o
        stages = self.parameters.stages
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        m.submodules.multiply_add = unit = FloatMultiplyAdd(
            FloatMultiplyAddParameters(format="fp32", flush_subnormals=True, stages=stages)
        )
        final = STEPS * stages
        cycle = Signal(range(final + 1))
        # One multiply-add unit three times: s_a², times S plus O, times 1 / K plus eps. A vector
        # needs one factor, thousands of cycles apart, so time is cheaper than two more units.
        done = Signal()
        advance = Signal()
        m.d.comb += [
            widen.a.eq(i.payload.s_a),
            done.eq(cycle == final),
            advance.eq(i.valid & (~done | ~o.valid | o.ready)),
            i.ready.eq(done & advance),
            unit.enable.eq(advance),
            # The result of a step is the next step's operand; the unit's own registers hold it.
            unit.a.eq(unit.o),
        ]
        # Operands of the three steps; what a cycle between them selects is not used.
        with m.If(cycle == 0):
            m.d.comb += [unit.a.eq(widen.o), unit.b.eq(widen.o)]
        with m.Elif(cycle == stages):
            m.d.comb += [unit.b.eq(i.payload.s), unit.c.eq(i.payload.o)]
        with m.Else():
            m.d.comb += [unit.b.eq(i.payload.inverse_k), unit.c.eq(i.payload.eps)]
        # The cycle counter stops in the last cycle while the output register is not free.
        with m.If(advance):
            m.d.sync += cycle.eq(Mux(done, 0, cycle + 1))
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(i.valid & done)
            m.d.sync += o.payload.eq(Cat(*self._root(m, unit.o), unit.o))
        return m

    def _root(self, m: Module, mean_square):
        """1 / sqrt of an FP32 number as FP16; returns (r, invalid, saturated)."""
        fraction, exponent = mean_square[: FP32.mantissa], mean_square[FP32.mantissa : -1]
        zero = Signal()
        invalid = Signal()
        saturated = Signal()
        # The table's index: top bits of the fraction, and the parity of the exponent. The bias is
        # odd, so the exponent (the field less 127) is odd where the field is even.
        index = Cat(fraction[-12:], ~exponent[0])
        root = Signal(INVERSE_ROOT.width + INVERSE_ROOT.guard + 1)
        field = Signal(EXPONENT)
        m.d.comb += [
            zero.eq(~exponent.any()),  # subnormals are flushed
            invalid.eq(exponent.all() | mean_square[-1] & ~zero),
            root.eq(sum(INVERSE_ROOT.terms(m, double_root, index), 0)),
            # 14 - floor((exponent - 127) / 2)
            field.eq(14 + 64 - ((exponent + 1) >> 1)),
        ]
        # m is 0 or r too large: the largest number. m negative, infinite or NaN: NaN. Both flagged.
        magnitude, beyond = round_fp16(m, root, field)
        r = Signal(FP16.width)
        m.d.comb += saturated.eq((beyond | zero) & ~invalid)
        with m.If(invalid):
            m.d.comb += r.eq(FP16.quiet_nan)
        with m.Elif(saturated):
            m.d.comb += r.eq(FP16.largest)
        with m.Else():
            m.d.comb += r.eq(Cat(magnitude, Const(0, 1)))
        return r, invalid, saturated
