"""One of AC's three computation components: a VPU and FP32 accumulators (LAD, Fig. 5)."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.lad.linear import lend, linear_ports
from hw.lad.powers import POWER_BITS, times_power
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.vpu import Mode, Vpu
from hw.layout import FLAG
from hw.ports import Ports, wire_in, wire_out

TAGS = "first", "last", "keep", "subtract", "scaled"
"""What moves along with an operation's vector."""

OPERAND_FLAGS = "dot", "load", "f_product", "s_product"
"""What waits with the operands for their factor."""


class AcLane(Component[LadTileParameters]):
    """acc = acc + f vec, acc_s = acc_s + s, or a dot product with the query.

    ::

        x ─→ × y ─→ f ──→ VPU (S) ─→ FP32 │→ ± ─→ acc
        vec ───────────────↑              │  ↑
        s ─→ ……………………………………………………→ FP32 │→ ± ─→ acc_s

    An operation begins in every cycle with ``go``. The factor f is x, or x y rounded to FP16; the
    scalar addend s likewise. Products are FP16, sums FP32. ``first``: the sum begins with ``base``
    and ``base_s`` instead of the accumulators. ``keep``: the vector goes to ``product`` and is not
    added. ``scaled``: products are multiplied by 2^power before they are added.

    Latency: M + 4 cycles from an operation to the sum in ``acc``, where M is the VPU's
    multiply_stages; in FP32 and with ``base``, addends wait a cycle before the adders, which
    memory and conversion would slow down. ``base`` is accepted in the cycle after ``base_wanted``.
    Throughput: an operation per cycle; nothing stalls.

    The paper accumulates in FP16 and reduces the vectors of three components in each cycle. Caches
    in FP16 drift (docs/results/lad.md), and with an accumulator for each component there is one
    adder in the loop instead of two.
    """

    def ports(self) -> Ports:
        p = self.parameters
        flags = "go", "dot", "load", *TAGS, "f_product", "s_product"
        return {
            **{name: wire_in(1) for name in flags},
            "power": wire_in(POWER_BITS, "Stable from an operation with ``scaled`` to its sum."),
            "x": wire_in(FP16),
            "y": wire_in(FP16),
            "vec": wire_in(p.row_layout),
            "q": wire_in(p.row_layout),
            "base": wire_in(p.wide_row_layout),
            "base_zero": wire_in(1, "``base`` counts as 0."),
            "base_s": wire_in(FP32),
            "set": wire_in(
                1,
                "Accumulators take ``base``, 2 cycles later; no operation may be under way. "
                "(They take base - 0, so that this needs no multiplexer behind the adders.)",
            ),
            "join": wire_in(1, "Accumulators add ``other`` and ``other_s``, likewise."),
            "other": wire_in(p.wide_row_layout, "Vector that `join` adds to ``acc``."),
            "other_s": wire_in(FP32, "Scalar that `join` adds to ``acc_s``."),
            "base_wanted": wire_out(1),
            "acc": wire_out(p.wide_row_layout),
            "acc_s": wire_out(FP32),
            "done": wire_out(1, "``acc`` has the sum of an operation with ``last``."),
            "product_valid": wire_out(1),
            "product": wire_out(p.row_layout),
            "dot_valid": wire_out(1),
            "dot_product": wire_out(FP16),
            **linear_ports(p, "the VPU, while nothing else is under way."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.vpu = vpu = Vpu(p.vpu)
        # The factor of a term is a product by itself (a V[r] of AC.5), rounded to FP16 before the
        # VPU multiplies the vector K by it; both steps round as the removal of the same term will.
        m.submodules.multiply = multiply = FloatMultiply(FloatMultiplyParameters(stages=1))

        # The factor, one cycle; operands wait for it.
        operands = Signal(_operands_layout(p), reset_less=True)
        busy = Signal()
        m.d.comb += [multiply.a.eq(self.x), multiply.b.eq(self.y)]
        m.d.sync += [
            busy.eq(self.go),
            operands.x.eq(self.x),
            operands.vec.eq(self.vec),
            *(getattr(operands, name).eq(getattr(self, name)) for name in OPERAND_FLAGS),
        ]
        # The VPU is never stalled: its results are taken in every cycle.
        operation = vpu.i.payload
        m.d.comb += [
            vpu.i.valid.eq(busy),
            operation.mode.eq(Mux(operands.dot, Mode.DP, Mode.S)),
            operation.load.eq(operands.load),
            operation.vec1.eq(self.q),
            operation.vec2.eq(operands.vec),
            operation.scal.eq(Mux(operands.f_product, multiply.o, operands.x)),
            vpu.o_vec.ready.eq(1),
            vpu.o_scal.ready.eq(1),
            self.dot_valid.eq(vpu.o_scal.valid),
            self.dot_product.eq(vpu.o_scal.payload),
        ]

        if p.weights:
            lend(m, vpu, self.linear)

        tag = self._tags(m, operands, multiply.o)
        self._accumulators(m, vpu, tag)
        return m

    def _tags(self, m: Module, operands, product) -> tuple[Any, Signal]:
        """What to do with a vector moves along with it; returns (tag of the result, add it)."""
        p = self.parameters
        stages: list[Any] = [
            Signal(_tag_layout(), name=f"tag_{number}") for number in range(p.vpu.latency + 2)
        ]
        m.d.sync += [
            stages[0].valid.eq(self.go & ~self.dot),
            *(getattr(stages[0], name).eq(getattr(self, name)) for name in TAGS),
            stages[1].eq(stages[0]),
            stages[1].s.eq(Mux(operands.s_product, product, operands.x)),
            *(after.eq(before) for before, after in zip(stages[1:], stages[2:], strict=False)),
        ]
        # The sum's base is read from a memory in one cycle and registered in the next.
        # `early` requests the base two cycles ahead, so that it has passed memory and register by
        # the time the first product of its column arrives.
        early, result, tag = stages[-3:]
        add = Signal()
        m.d.comb += [
            self.base_wanted.eq(early.valid & early.first & ~early.keep),
            self.product_valid.eq(result.valid & result.keep),
            add.eq(tag.valid & ~tag.keep),
        ]
        m.d.sync += self.done.eq(add & tag.last)
        return result, add

    def _accumulators(self, m: Module, vpu: Vpu, tag) -> None:
        p = self.parameters
        result, add = tag
        m.d.comb += self.product.eq(vpu.o_vec.payload)
        # An adder for each element, whose operands, controls and sum are registers: it fills the
        # cycle.
        # `set` and `join` come while no operation is under way. A number less +0 is the same
        # number, -0 included.
        alone = Signal()
        from_base = Signal()
        subtract = Signal()
        power = Mux(result.scaled, self.power, 0)
        m.d.sync += [
            alone.eq(self.set | self.join),
            from_base.eq((result.first & ~self.join) | self.set),
            subtract.eq((result.subtract & ~self.join) | self.set),
        ]

        def accumulate(name: str, number: Value, base: Value, other: Value, total: Value) -> None:
            addend = Signal(FP32, name=f"addend_{name}", reset_less=True)
            first = Signal(FP32, name=f"base_{name}", reset_less=True)
            m.submodules[f"convert_{name}"] = convert = FloatConvert(
                FloatConvertParameters(source="fp16", format="fp32")
            )
            # FP16 numbers are multiples of 2^-24, so that none of their sums is subnormal.
            m.submodules[f"add_{name}"] = adder = FloatAdd(
                FloatAddParameters(format="fp32", flush_subnormals=True, stages=1)
            )
            m.d.comb += [
                total.eq(adder.o),
                adder.enable.eq(add | alone),
                convert.a.eq(number),
                adder.a.eq(Mux(from_base, first, total)),
                adder.b.eq(addend),
                adder.subtract.eq(subtract),
            ]
            m.d.sync += [
                addend.eq(times_power(m, f"addend_{name}", convert.o, power)),
                first.eq(base),
            ]
            # 0 is subtracted from `base`, or `other` is added to the sum: loading and joining use
            # the adder's operand registers, and the loop from `total` to the adder stays short.
            with m.If(self.set):
                m.d.sync += addend.eq(0)
            with m.If(self.join):
                m.d.sync += addend.eq(other)

        for k in range(p.d):
            base = Mux(self.base_zero, 0, self.base[k])
            accumulate(str(k), vpu.o_vec.payload[k], base, self.other[k], self.acc[k])
        accumulate("s", result.s, self.base_s, self.other_s, self.acc_s)


def _operands_layout(p: LadTileParameters) -> data.StructLayout:
    flags = dict.fromkeys(OPERAND_FLAGS, FLAG)
    return data.StructLayout({"x": FP16, "vec": p.row_layout, **flags})


def _tag_layout() -> data.StructLayout:
    return data.StructLayout({**dict.fromkeys(("valid", *TAGS), FLAG), "s": FP16})
