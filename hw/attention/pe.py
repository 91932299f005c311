"""Processing elements (PEs): a multiplier, one adder and a register (VEDA, Fig. 5(a))."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Module, Signal
from amaranth.lib import enum

from hw.arith.float_format import FP16
from hw.attention.packed_sum import ACCUMULATORS, PackedSums
from hw.attention.unpacked_sum import UnpackedSums
from hw.component import Component, on_fpga
from hw.parameters import Parameters, require
from hw.ports import Ports, wire_in, wire_out

ADD_STAGES = (1, 2, 4)


class Op(enum.IntEnum, shape=2):
    """The addition that a PE's adder starts.

    ========== ============================= ==================================================
    PASS       products or sums of other PEs a level of the tree
    CLEAR      own product + -0              first row of a partial sum
    ACCUMULATE own product + adder's output  next row
    FOLD       ``r`` + adder's output        adds up the partial sums in the adder's pipeline
    ========== ============================= ==================================================

    FOLD is not in the paper, whose adders take one cycle. The paper's "disable" is `add_enable` = 0
    here.
    """

    PASS = 0
    CLEAR = 1
    ACCUMULATE = 2
    FOLD = 3


@dataclasses.dataclass(frozen=True)
class PeParameters(Parameters):
    """
    accumulator
        Format of sums, one of :data:`ACCUMULATORS`: ``fp32``, in which products of FP16 numbers are
        exact, or a shorter one, to which they are rounded.
    multiply_stages
        Pipeline stages from the operands to the adder's input register: 1 or 2.
    add_stages
        L: cycles of an addition, 1, 2 or 4.
    """

    accumulator: str = "fp32"
    multiply_stages: int = 1
    add_stages: int = 2

    def __post_init__(self):
        rule = f"accumulator must be one of {', '.join(ACCUMULATORS)}"
        require(self.accumulator in ACCUMULATORS, rule, self.accumulator)
        stages = self.multiply_stages
        require(1 <= stages <= 2, "multiply_stages must be between 1 and 2", stages)
        stages = self.add_stages
        require(stages in ADD_STAGES, "add_stages must be one of 1, 2, 4", stages)

    def sums(self, platform) -> PackedSums:
        """What the PEs are made of on the target: flags of special values spare an FPGA LUTs."""
        wide = self.accumulator != "fp16"
        unpacked = wide and on_fpga(platform)
        kind = UnpackedSums if unpacked else PackedSums
        return kind(self.accumulator, self.multiply_stages, self.add_stages)


class Pe(Component[PeParameters]):
    """Base of both types of PE; see :class:`PeA` and :class:`PeB`.

    ::

        row ──→ w ─┐
         └─┐       × ─→ product ─┬─→ a ─┐
        x ─┴─→ x ─┘   other PEs ─┤      + ─┬─→ total ─→ r ─→ FP16 ─→ result
                                 └─→ b ─┘  │
                          └──── r ←────────┘

    ``w`` and ``x`` are registers of the factors, ``a`` and ``b`` of the addends. The adder has no
    output register: its sum goes into the addends' registers of the next addition, so the L stages
    of an addition are the addends' and L - 1 inside of the adder. The PE has no control logic; the
    array drives all enables.

    Inner product: PASS adds other PEs' products or sums to the own product (type A) or to each
    other (type B). Outer product: CLEAR and ACCUMULATE add up the PE's own products; the adder's
    pipeline then holds L partial sums and advances only when a product arrives, so product j is
    added to partial sum j mod L however late it comes. With L = 2::

        cycle      0      1      2      3      4
        a          p0     p1     p2     p3     p4
        b          -0     -0     p0     p1     p0+p2
        total             p0     p1     p0+p2  p1+p3

    FOLD adds ``r``, a partial sum captured before or -0, to the one that leaves the adder.

    Subnormal factors are normalised before their register, so products need no shifter.
    """

    PASS_ADDENDS: ClassVar[tuple[str, str]]
    """Addends of PASS: the own ``product``, or ports for products and sums of other PEs."""

    def __init__(self, parameters: PeParameters, sums: PackedSums):
        self._sums = sums
        super().__init__(parameters)

    def ports(self) -> Ports:
        sums = self._sums
        passed = [name for name in self.PASS_ADDENDS if name != "product"]
        return {
            "row": wire_in(FP16.width, "FP16 element of a row, or of the query."),
            "x": wire_in(sums.factor, "Scalar of an outer product, as `sums` has factors."),
            "op": wire_in(Op, "What the adder adds, see :class:`Op`."),
            "load_w": wire_in(1, "``w`` takes `row`."),
            "load_query": wire_in(1, "``x`` takes `row`."),
            "load_scalar": wire_in(1, "``x`` takes `x`."),
            "multiply_enable": wire_in(1, "The multiplier's pipeline advances, if it has stages."),
            "add_enable": wire_in(1, "The adder's pipeline and the addends' registers advance."),
            "capture": wire_in(1, "``r`` takes the adder's sum."),
            "hold": wire_in(1, "Without `capture`, ``r`` keeps its value; else it becomes -0."),
            "finish": wire_in(1, "`result` takes ``r``, rounded to FP16."),
            **{name: wire_in(sums.width, "Another PE's product or sum.") for name in passed},
            "product": wire_out(sums.width, "For other PEs, combinational."),
            "total": wire_out(sums.width, "The adder's sum, for other PEs, combinational."),
            "result": wire_out(FP16.width, "The last result."),
        }

    def elaborate(self, platform):
        m = Module()
        p, sums = self.parameters, self._sums

        # Registers of the factors.
        # Factors are unpacked as they are stored, so the unpacking is not in the multiplier's path.
        w = Signal(sums.factor, reset_less=True)
        x = Signal(sums.factor, name="x_register", reset_less=True)
        row = sums.unpack(m, platform, self.row, "row")
        with m.If(self.load_w):
            m.d.sync += w.eq(row)
        with m.If(self.load_query):
            m.d.sync += x.eq(row)
        with m.Elif(self.load_scalar):
            m.d.sync += x.eq(self.x)

        m.submodules.multiply = multiply = sums.multiplier()
        m.d.comb += [multiply.a.eq(w), multiply.b.eq(x), self.product.eq(multiply.o)]

        # The adder and its addends.
        m.submodules.add = add = sums.adder()
        addend_a = Signal(sums.width, reset_less=True)
        addend_b = Signal(sums.width, reset_less=True)
        r = Signal(sums.width, reset_less=True)
        pass_a, pass_b = (getattr(self, name) for name in self.PASS_ADDENDS)
        with m.If(self.add_enable):
            with m.Switch(self.op):
                # Inner product (K): a PE is a node of the tree and adds two others' values.
                with m.Case(Op.PASS):
                    m.d.sync += [addend_a.eq(pass_a), addend_b.eq(pass_b)]
                # Outer product (V): the first row of a head begins the sum; -0 is the neutral
                # addend, as x + -0 is x for x = +0 and -0 alike.
                with m.Case(Op.CLEAR):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(sums.negative_zero)]
                # The adder's own output comes back: a sum for each of its pipeline stages is under
                # way.
                with m.Case(Op.ACCUMULATE):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(add.o)]
                # The stages' partial sums, one in `r`, the others leaving the adder one by one,
                # become one.
                with m.Case(Op.FOLD):
                    m.d.sync += [addend_a.eq(r), addend_b.eq(add.o)]
        with m.If(self.capture):
            m.d.sync += r.eq(add.o)
        # Where there are fewer partial sums than stages, the neutral element takes their place.
        with m.Elif(~self.hold):
            m.d.sync += r.eq(sums.negative_zero)
        m.d.comb += [add.a.eq(addend_a), add.b.eq(addend_b), self.total.eq(add.o)]
        if p.multiply_stages > 1:
            m.d.comb += multiply.enable.eq(self.multiply_enable)
        if p.add_stages > 1:
            m.d.comb += add.enable.eq(self.add_enable)

        # The result, rounded once more to FP16.
        result = Signal(FP16.width, reset_less=True)
        rounded = sums.to_fp16(m, platform, r)
        with m.If(self.finish):
            m.d.sync += result.eq(rounded)
        m.d.comb += self.result.eq(result)
        return m


class PeA(Pe):
    """Type A, first level of the tree: PASS adds its own product and its neighbour's."""

    PASS_ADDENDS = ("product", "neighbour")


class PeB(Pe):
    """Type B, the tree's other levels: PASS adds the sums of two other PEs."""

    PASS_ADDENDS = ("left", "right")
