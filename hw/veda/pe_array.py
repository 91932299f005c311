"""The array: inner and outer products with the same PEs (VEDA, sections IV-A and V, Fig. 5)."""

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.component import Component
from hw.parameters import Parameters, require
from hw.veda.pe import Op, Pe, PeA, PeB, PeParameters, unpack_fp16

LARGEST = 256

SCORE = data.StructLayout({"s": FP16.width, "last": 1})


@dataclasses.dataclass(frozen=True)
class PeArrayParameters(Parameters):
    """
    rows, columns, arrays
        Powers of two; their product is d, the number of PEs.
    accumulator, multiply_stages, add_stages
        As in :class:`PeParameters`; L = add_stages.
    """

    rows: int = 8
    columns: int = 8
    arrays: int = 1
    accumulator: str = "fp32"
    multiply_stages: int = 1
    add_stages: int = 2

    def __post_init__(self):
        for name in ("rows", "columns", "arrays"):
            value = getattr(self, name)
            power = 0 < value <= LARGEST and value & (value - 1) == 0
            require(power, f"{name} must be a power of two up to {LARGEST}", value)
        _ = self.pe  # checks the rest

    @classmethod
    def presets(cls) -> dict[str, "PeArrayParameters"]:
        return {
            "small": cls(rows=2, columns=2, arrays=2),
            "default": cls(),
            "paper": cls(arrays=2),
            # For mutants, which simulate slowly.
            "tiny": cls(rows=1, columns=2),
        }

    @property
    def pe(self) -> PeParameters:
        """Those of a PE."""
        return PeParameters(self.accumulator, self.multiply_stages, self.add_stages)

    @property
    def lanes(self) -> int:
        """d."""
        return self.rows * self.columns * self.arrays

    @property
    def levels(self) -> int:
        """Additions from a product to the sum of all."""
        return max(1, self.lanes.bit_length() - 1)

    @property
    def tree(self) -> int:
        """Cycles that an inner product is in the adders, that of differences included."""
        return (self.levels + 1) * self.add_stages

    @property
    def folds(self) -> int:
        """Cycles from an outer product's last addition to the one that adds up the rest."""
        return self.add_stages * (self.add_stages.bit_length() - 1)

    @property
    def schedule(self) -> list[tuple[int, int, int]]:
        """How L partial sums become one: pairs first, then pairs of those, as they come out.

        Cycles, counted like `folds`, in which a sum is kept and in which the next one is added to
        it, and the partial sums that must have been begun for it to be there.
        """
        size = self.add_stages
        found = []
        for level in range(size.bit_length() - 1):
            width = 1 << level
            for first in range(width, size, 2 * width):
                keeping = level * size + first
                found.append((keeping, keeping + width, size + 1 - first))
        return found

    @property
    def ending(self) -> int:
        """Cycles from an outer product's last addition to its sums."""
        return self.folds + self.add_stages

    @property
    def latency(self) -> int:
        """Cycles from a row to its inner product."""
        return self.multiply_stages + self.tree + 2

    @property
    def outer_latency(self) -> int:
        """Cycles from an outer product's last row to the sums."""
        return self.multiply_stages + self.ending + 2

    def cycles(self, products: Sequence[tuple[bool, int]]) -> int:
        """Cycles from the first row or query offered to the last result taken, without stalls.

        For products one after the other, each whether it is an outer one, and its rows; queries
        are there in time.
        """
        # Cycles in which the last additions of an inner and an outer product began.
        inner = outer = -self.tree - self.ending
        begun = self.multiply_stages - 1
        for is_outer, rows in products:
            if is_outer:
                begun = max(begun + 1, inner + self.tree, outer + self.ending) + rows - 1
                outer = begun
            else:
                begun = max(begun + 2, outer + self.folds + 1) + rows - 1
                inner = begun
        return begun + (self.ending if products[-1][0] else self.tree) + 3

    def outer_product(self, rows: int) -> tuple[int, int, int]:
        """Cycles from an outer product's first row to others, without stalls.

        To its last row, to the first row of an inner product behind it, and to its sums.
        """
        return rows - 1, rows - 1 + max(2, self.folds + 1), rows - 1 + self.outer_latency

    @property
    def query_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.width, self.lanes)

    @property
    def input_layout(self) -> data.StructLayout:
        """``w`` (FP16) the row, ``x`` (FP16) its factor if ``outer``, ``last`` of a product.

        ``relative`` is the same for all rows of an inner product: whether its results are less the
        first finite one.
        """
        flags = {"outer": 1, "relative": 1, "last": 1}
        return data.StructLayout({"w": self.query_layout, "x": FP16.width} | flags)


class PeArray(Component):
    """s_j = sum over i of q_i w_ji, or o_i = sum over j of x_j w_ji, of rows w_j.

    Inner products: a query comes by itself, then rows, and each row's product with the query goes
    out. Outer products: each row comes with a factor, and behind the ``last`` one the d sums go
    out. Rows of a matrix (l, d) serve both, so keys and values are stored alike.

    The PEs' own adders are the tree (Fig. 5(d)), one PE after the other, arrays end to end: number
    n, from 1, adds at level v, the power of two 2^v in n. Odd ones, of type A, add neighbouring
    products; even ones, of type B, the sums of the PEs 2^(v-1) before and behind. With 8 columns,
    PEs 1, 3, 5 and 7 are the first level of a row, 2 and 6 the second, 4 has its sum; the eighth
    PEs are the tree over rows; that of the last row joins two arrays. The very last PE is left, and
    adds what makes inner products ``relative``: minus the first of them that is finite. A common
    offset of scores is so removed before they are rounded to FP16, and a softmax does not depend on
    it. With d = 1 there is a second PE for this.

    Rounding: an inner product is summed as in :class:`AdderTree`, neighbours first. A relative one
    is that sum less the reference, which is +0 for the reference itself; what is infinite or NaN
    stays so, and a difference may overflow. An outer
    product has L = add_stages partial sums, row j going to number j mod L, and at its end these
    are summed in the same way, in the order of their last rows; with fewer rows than L some are
    missing. The result is rounded to FP16 once more. Infinities and NaNs are those of IEEE 754,
    each NaN the one of the format; nothing is flagged.

    Rows shorter than d are filled up with zeros. An inner product has d terms at most, an outer
    product any number: longer vectors than d are for the outer one, d columns at a time.

    Latency: M + L (log2(d) + 1) + 2 cycles from a row to its inner product, M = multiply_stages
    (one PE counts as two); M + L (log2(L) + 1) + 2 from an outer product's last row to its sums.
    Throughput: a row every cycle. A query takes a cycle. A row waits as long as the adders are
    taken: from the last row of an outer product to the next one's first are at least
    L (log2(L) + 1) cycles, to an inner one's L log2(L) + 1; from inner to outer L (log2(d) + 1).

    Handshake: ``i.ready`` depends on ``i.payload``, ``q.ready`` also on ``i.valid``, as a query is
    taken when a row wants it: one for all rows up to the ``last``. Both depend combinationally on
    ``s.ready`` and ``o.ready``: a result that is not taken stops everything. When rows come is of
    no effect on results. A product must end before another begins. Overflow: none.

    Members
    -------
    q : :py:`In(stream.Signature(parameters.query_layout))`
        Queries, FP16.
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Rows.
    s : :py:`Out(stream.Signature(SCORE))`
        Inner products ``s`` (FP16), ``last`` as it came with the row.
    o : :py:`Out(stream.Signature(parameters.query_layout))`
        The d sums of an outer product, FP16.
    """

    summary = "Inner and outer products with the same multipliers and adders"
    source = "VEDA, section IV-A and Fig. 5"

    def __init__(self, parameters: PeArrayParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "q": In(stream.Signature(p.query_layout)),
                "i": In(stream.Signature(p.input_layout)),
                "s": Out(stream.Signature(SCORE)),
                "o": Out(stream.Signature(p.query_layout)),
            }
        )

    @property
    def parameters(self) -> PeArrayParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        row = self.i.payload
        advance = Signal()  # of all ranks, if not said otherwise
        front = Signal()  # of those in front of the adders
        m.d.comb += advance.eq((~self.s.valid | self.s.ready) & (~self.o.valid | self.o.ready))

        loaded = Signal()  # the query of the next row is there
        loading = Signal()
        taking = Signal()
        m.d.comb += [
            self.i.ready.eq(front & (row.outer | loaded)),
            self.q.ready.eq(front & self.i.valid & ~row.outer & ~loaded),
            taking.eq(self.i.valid & self.i.ready),
            loading.eq(self.q.valid & self.q.ready),
        ]
        with m.If(loading):
            m.d.sync += loaded.eq(1)
        with m.Elif(taking & ~row.outer & row.last):
            m.d.sync += loaded.eq(0)
        head = taking, row.outer, row.last, row.relative
        for stage in range(p.multiply_stages):
            ranks = (
                Signal(name=f"valid_{stage}"),
                Signal(name=f"outer_{stage}", reset_less=True),
                Signal(name=f"last_{stage}", reset_less=True),
                Signal(name=f"relative_{stage}", reset_less=True),
            )
            with m.If(front):
                m.d.sync += Cat(ranks).eq(Cat(head))
            head = ranks
        control = self._control(m, advance, front, *head)

        x = unpack_fp16(m, row.x, "x") if p.pe.wide else row.x
        pes = self._pes(m)
        for pe, element, query in zip(pes, row.w, self.q.payload, strict=False):
            m.d.comb += [pe.row.eq(Mux(row.outer | loaded, element, query)), pe.x.eq(x)]
        for pe in pes:
            scores = pe is pes[-1]
            m.d.comb += [
                pe.take.eq(taking),
                pe.load.eq(loading),
                pe.spread.eq(taking & row.outer),
                pe.move.eq(front),
                pe.op.eq(control.op),
                pe.advance.eq(control.adding),
                pe.keep.eq(control.keep_score if scores else control.keep),
                pe.hold.eq(control.hold),
                pe.finish.eq(control.finish_score if scores else control.finish),
            ]
        is_reference = self._subtract(m, advance, control, pes[self._root].total, pes[-1])
        score = pes[-1].result & (~is_reference).replicate(FP16.width)
        m.d.comb += self.s.payload.s.eq(score)
        m.d.comb += [o.eq(pe.result) for o, pe in zip(self.o.payload, pes, strict=False)]
        return m

    @property
    def _root(self) -> int:
        """The PE that has the sum of all."""
        return max(1, self._parameters.lanes // 2) - 1

    def _pes(self, m: Module) -> list[Pe]:
        """The PEs from number 1, wired to a tree without the last one, also if d = 1."""
        p = self._parameters
        numbers = range(1, max(2, p.lanes) + 1)
        pes = [PeA(p.pe) if number % 2 else PeB(p.pe) for number in numbers]
        for number, pe in zip(numbers, pes, strict=True):
            m.submodules[f"pe_{number}"] = pe
            distance = (number & -number) // 2
            if not distance:
                neighbour = pes[number].product if number < p.lanes else p.pe.negative_zero
                m.d.comb += pe.neighbour.eq(neighbour)
            elif number < len(pes):
                m.d.comb += pe.left.eq(pes[number - distance - 1].total)
                m.d.comb += pe.right.eq(pes[number + distance - 1].total)
        return pes

    def _subtract(
        self, m: Module, advance: Signal, control: "Control", total: Value, spare: PeB
    ) -> Signal:
        """The last PE's operands: an inner product's `total`, and minus the reference or -0.

        Whether a total is finite is decided a cycle later, on the register that takes it: the sum
        of the tree is the slowest signal of the array. So the reference itself passes unchanged.
        Returns whether the score at the output is that, and to be 0.
        """
        p = self._parameters
        f = p.pe.float_format
        reference = Signal(f.width, reset_less=True)
        held, opened = Signal(), Signal(reset_less=True)
        finite, referenced = Signal(), Signal()
        is_reference = Signal(p.add_stages + 1, reset_less=True)
        m.d.comb += [
            finite.eq(~reference[f.mantissa : -1].all()),
            referenced.eq(held & finite),
            spare.left.eq(total),
            spare.right.eq(
                Mux(
                    referenced & control.relative,
                    Cat(reference[:-1], ~reference[-1]),
                    p.pe.negative_zero,
                )
            ),
        ]
        with m.If(advance):
            m.d.sync += [
                opened.eq(control.summed & control.relative & ~referenced),
                is_reference.eq(Cat(opened & finite, is_reference[:-1])),
            ]
            with m.If(control.summed):
                m.d.sync += held.eq(control.relative & ~control.last)
                with m.If(~referenced):
                    m.d.sync += reference.eq(total)
        return is_reference[-1]

    def _control(
        self,
        m: Module,
        advance: Signal,
        front: Signal,
        valid: Signal,
        outer: Signal,
        last: Signal,
        relative: Signal,
    ) -> "Control":
        """When the adders take what, and when results are valid.

        valid, outer, last, relative
            Of the row whose products are at the multipliers' outputs.
        """
        p = self._parameters
        c = Control()
        flight = Signal(p.tree)  # inner products that are being added up
        lasts = Signal(p.tree, reset_less=True)
        relatives = Signal(p.levels * p.add_stages, reset_less=True)
        fold = Signal(range(p.ending + 1))  # cycles since the last addition of an outer product
        begun = Signal(range(p.add_stages + 1))  # its partial sums
        idle = Signal()
        ended = Signal()
        drained = Signal()
        present = Signal.like(begun)
        issue = Signal()
        m.d.comb += [
            idle.eq(fold == 0),
            ended.eq(fold == p.ending),
            drained.eq(~flight[:-1].any()),
            present.eq(Mux(ended, 0, begun)),
            issue.eq(valid & Mux(outer, (idle | ended) & drained, idle | (fold > p.folds))),
            front.eq(advance & (~valid | issue)),
            c.adding.eq(advance & (issue | ~idle | flight.any())),
        ]
        with m.If(advance):
            m.d.sync += [
                flight.eq(Cat(issue & ~outer, flight[:-1])),
                lasts.eq(Cat(last, lasts[:-1])),
                relatives.eq(Cat(relative, relatives[:-1])),
                begun.eq(present + (issue & outer & (present != p.add_stages))),
            ]
            with m.If(issue & outer & last):
                m.d.sync += fold.eq(1)
            with m.Elif(ended):
                m.d.sync += fold.eq(0)
            with m.Elif(~idle):
                m.d.sync += fold.eq(fold + 1)

        kept = Signal()
        between = Signal()
        m.d.comb += c.op.eq(Mux(present == p.add_stages, Op.ACCUMULATE, Op.CLEAR))
        with m.If(~outer | ~drained):
            m.d.comb += c.op.eq(Op.PASS)
        with m.Switch(fold):
            for keeping, folding, least in p.schedule:
                with m.Case(keeping):
                    m.d.comb += kept.eq(begun >= least)
                for cycle in range(keeping + 1, folding):
                    with m.Case(cycle):
                        m.d.comb += between.eq(1)
                with m.Case(folding):
                    m.d.comb += c.op.eq(Op.FOLD)

        top = len(relatives) - 1  # the tree's last addition
        m.d.comb += [
            c.summed.eq(flight[top]),
            c.last.eq(lasts[top]),
            c.relative.eq(relatives[top]),
        ]
        summed = Signal()
        scored = Signal()
        scored_last = Signal(reset_less=True)
        m.d.comb += [
            c.keep.eq(advance & (kept | ended)),
            c.keep_score.eq(advance & (kept | ended | flight[-1])),
            c.hold.eq(~advance | between),
            c.finish.eq(advance & summed),
            c.finish_score.eq(advance & (summed | scored)),
        ]
        with m.If(advance):
            m.d.sync += [
                summed.eq(ended),
                scored.eq(flight[-1]),
                scored_last.eq(lasts[-1]),
                self.o.valid.eq(summed),
                self.s.valid.eq(scored),
                self.s.payload.last.eq(scored_last),
            ]
        return c


class Control:
    """What PEs are told: all of them, or with `_score` the last one, with inner products.

    And in the cycle in which the tree's sum leaves its root: that it is ``summed``, and the row's
    ``last`` and ``relative``.
    """

    def __init__(self):
        self.summed = Signal(name="tree_summed")
        self.last = Signal(name="tree_last")
        self.relative = Signal(name="tree_relative")
        self.op = Signal(Op)
        self.adding = Signal()
        self.hold = Signal()
        self.keep = Signal()
        self.keep_score = Signal()
        self.finish = Signal()
        self.finish_score = Signal()
