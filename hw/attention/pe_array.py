"""The array: inner and outer products with the same PEs (VEDA, sections IV-A and V, Fig. 5)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from hw.arith.float_format import FP16
from hw.attention.packed_sum import PackedSums
from hw.attention.pe import Op, Pe, PeA, PeB
from hw.attention.product_array import PeArrayParameters, ProductArray


@dataclasses.dataclass
class RowFlags:
    """Flags of the row in a pipeline stage."""

    valid: Value
    outer: Value
    last: Value
    relative: Value

    def bits(self) -> Value:
        return Cat(self.valid, self.outer, self.last, self.relative)


class PeArray(ProductArray[PeArrayParameters]):
    """s_j = sum over i of q_i w_ji, or o_i = sum over j of x_j w_ji, of rows w_j.

    Inner product: a query on `q`, then rows on `i`; each row's product with the query is a beat of
    `s`. Outer product: each row comes with a factor; after the ``last`` one the d sums are a beat
    of `o`. Rows of a matrix (l, d) serve both, so keys and values are stored alike.

    The PEs' own adders make the tree (Fig. 5(d)). PEs are numbered from 1, row after row, array
    after array; PE n adds at level v, where 2^v is the largest power of two in n::

        PE     1   2   3   4   5   6   7   8
        type   A   B   A   B   A   B   A   B
        level  0   1   0   2   0   1   0   subtraction
               └─→ ↑ ←─┘   ↑   └─→ ↑ ←─┘
                   └──────→ ←──────┘

    Odd PEs, of type A, add two neighbouring products; even ones, of type B, the sums of PEs
    n - 2^(v-1) and n + 2^(v-1). With 8 columns, PEs 1, 3, 5 and 7 are a row's first level, 2 and 6
    its second, 4 has its sum; the eighth PEs are the tree over rows; the last row's joins two
    arrays. The very last PE has no place in the tree: it subtracts the reference from ``relative``
    inner products, the first of them that is finite. So a common offset of scores is removed before
    they are rounded to FP16; a softmax does not depend on it. With d = 1 there is a second PE for
    this.

    Rounding: an inner product is summed as in :class:`AdderTree`, neighbours first. A relative one
    is that sum less the reference, which is +0 for the reference itself; infinities and NaNs are
    unchanged, and a difference may overflow. An outer product has L = add_stages partial sums, row
    j going to number j mod L; at its end these are summed in the same way, in the order of their
    last rows; with fewer rows than L some are missing. The result is rounded to FP16 once more.
    Infinities and NaNs follow IEEE 754, each NaN being the format's quiet NaN; there are no flags.

    Rows shorter than d are padded with zeros. An inner product has d terms at most, an outer
    product any number of rows: vectors longer than d take several outer products, d columns each.

    Latency: M + L (log2(d) + 1) + 2 cycles from a row to its inner product, M = multiply_stages
    (one PE counts as two); M + L (log2(L) + 1) + 2 from an outer product's last row to its sums.
    Throughput: a row every cycle. A query takes a cycle. A row waits while another product is in
    the adders: from the last row of an outer product to the next one's first row are at least
    L (log2(L) + 1) cycles, to an inner one's L log2(L) + 1; from inner to outer L (log2(d) + 1).

    Handshake: ``i.ready`` depends on ``i.payload``, ``q.ready`` also on ``i.valid``: a query is
    accepted when a row needs it, one for all rows up to the ``last``. Both depend combinationally
    on ``s.ready`` and ``o.ready``: a result that is not accepted stalls the whole array. Gaps
    between rows do not change results. A product must end before another begins. Overflow: none.

    Examples
    --------
    >>> from hw.attention.pe_array import PeArray, PeArrayParameters
    >>> parameters = PeArrayParameters(rows=8, columns=8, arrays=2)
    >>> parameters.lanes, parameters.latency, parameters.outer_latency
    (128, 19, 7)
    >>> parameters.cycles([(False, 100), (True, 100)])  # q K^T and s' V of 100 rows
    223
    >>> PeArray(parameters).q.payload.shape().size
    2048
    """

    summary = "Inner and outer products with the same multipliers and adders"
    source = "VEDA, section IV-A and Fig. 5"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        row = self.i.payload
        advance = Signal()  # no result waits: every stage may advance
        front = Signal()  # the stages before the adders advance
        m.d.comb += advance.eq((~self.s.valid | self.s.ready) & (~self.o.valid | self.o.ready))

        # Stage 0: accept a query or a row into the PEs' factor registers.
        loaded = Signal()  # the PEs hold the query of the next row
        loading = Signal()
        taking = Signal()
        m.d.comb += [
            self.i.ready.eq(front & (row.outer | loaded)),
            self.q.ready.eq(front & self.i.valid & ~row.outer & ~loaded),
            taking.eq(self.i.valid & self.i.ready),
            loading.eq(self.q.valid & self.q.ready),
        ]
        # A query enters the register that holds an outer product's factor, so it takes a cycle of
        # the array, and does so only when an inner product's row waits for it.
        with m.If(loading):
            m.d.sync += loaded.eq(1)
        with m.Elif(taking & ~row.outer & row.last):
            m.d.sync += loaded.eq(0)

        # Stages of the multiplier: the row's flags go with it.
        flags = RowFlags(taking, row.outer, row.last, row.relative)
        for stage in range(p.multiply_stages):
            registers = RowFlags(
                Signal(name=f"valid_{stage}"),
                Signal(name=f"outer_{stage}", reset_less=True),
                Signal(name=f"last_{stage}", reset_less=True),
                Signal(name=f"relative_{stage}", reset_less=True),
            )
            with m.If(front):
                m.d.sync += registers.bits().eq(flags.bits())
            flags = registers
        control = self._control(m, advance, front, flags)

        # The PEs' data and enables. The last PE also captures and rounds inner products.
        sums = p.pe.sums(platform)
        x = sums.unpack(m, platform, row.x, "x")
        pes = self._pes(m, sums)
        for pe, element, query in zip(pes, row.w, self.q.payload, strict=False):
            m.d.comb += [pe.row.eq(Mux(row.outer | loaded, element, query)), pe.x.eq(x)]
        for pe in pes:
            scores = pe is pes[-1]
            m.d.comb += [
                pe.load_w.eq(taking),
                pe.load_query.eq(loading),
                pe.load_scalar.eq(taking & row.outer),
                pe.multiply_enable.eq(front),
                pe.op.eq(control.op),
                pe.add_enable.eq(control.add_enable),
                pe.capture.eq(control.capture_score if scores else control.capture),
                pe.hold.eq(control.hold),
                pe.finish.eq(control.finish_score if scores else control.finish),
            ]
        is_reference = self._subtract(m, sums, advance, control, pes[self._root].total, pes[-1])
        score = pes[-1].result & (~is_reference).replicate(FP16.width)
        m.d.comb += self.s.payload.s.eq(score)
        m.d.comb += [o.eq(pe.result) for o, pe in zip(self.o.payload, pes, strict=False)]
        return m

    @property
    def _root(self) -> int:
        """Index of the PE whose adder makes the tree's sum."""
        return max(1, self.parameters.lanes // 2) - 1

    def _pes(self, m: Module, sums: PackedSums) -> list[Pe]:
        """The PEs, wired to a tree but for the last one's operands; two of them if d = 1."""
        p = self.parameters
        numbers = range(1, max(2, p.lanes) + 1)
        pes: list[Pe] = [PeA(p.pe, sums) if number % 2 else PeB(p.pe, sums) for number in numbers]
        for number, pe in zip(numbers, pes, strict=True):
            m.submodules[f"pe_{number}"] = pe
            distance = (number & -number) // 2  # 2^(v - 1) at level v; 0 at level 0
            if not distance:
                neighbour = pes[number].product if number < p.lanes else sums.negative_zero
                m.d.comb += pe.neighbour.eq(neighbour)
            elif number < len(pes):
                m.d.comb += pe.left.eq(pes[number - distance - 1].total)
                m.d.comb += pe.right.eq(pes[number + distance - 1].total)
        return pes

    def _subtract(
        self,
        m: Module,
        sums: PackedSums,
        advance: Signal,
        control: "Control",
        total: Value,
        last_pe: Pe,
    ) -> Value:
        """The last PE's operands: an inner product's `total`, and minus the reference or -0.

        Whether a total is finite is decided a cycle later, on the register that takes it, because
        the tree's sum is on the array's critical path. So the reference itself passes unchanged.
        Returns whether the score at the output is the reference, and so to be 0.
        """
        p = self.parameters
        reference = Signal(sums.width, reset_less=True)  # the first finite total, or the last total
        stored = Signal()  # `reference` is of the product in progress
        captured = Signal(reset_less=True)  # in the cycle before
        finite = Signal()
        referenced = Signal()
        is_reference = Signal(p.add_stages + 1, reset_less=True)  # by cycle after `captured`
        m.d.comb += [
            # A softmax depends on differences of scores only. Less the first one, scores fit FP16
            # even where q K is beyond it, and small differences are not rounded away.
            finite.eq(sums.finite(reference)),
            referenced.eq(stored & finite),
            last_pe.left.eq(total),
            last_pe.right.eq(
                Mux(
                    referenced & control.relative,
                    Cat(reference[:-1], ~reference[-1]),
                    sums.negative_zero,
                )
            ),
        ]
        with m.If(advance):
            m.d.sync += [
                captured.eq(control.summed & control.relative & ~referenced),
                is_reference.eq(Cat(captured & finite, is_reference[:-1])),
            ]
            with m.If(control.summed):
                m.d.sync += stored.eq(control.relative & ~control.last)
                with m.If(~referenced):
                    m.d.sync += reference.eq(total)
        return is_reference[-1]

    def _control(self, m: Module, advance: Signal, front: Signal, flags: RowFlags) -> "Control":
        """When the adders start what, and when results are valid.

        flags
            Flags of the row whose products are at the multipliers' outputs.
        """
        p = self.parameters
        c = Control()
        # Inner products are tracked by shift registers, bit n for n + 1 cycles in the adders.
        # The adders have no valid bits: these registers know what is in them, and all PEs obey
        # them.
        flight = Signal(p.tree_cycles)
        lasts = Signal(p.tree_cycles, reset_less=True)
        relatives = Signal(p.levels * p.add_stages, reset_less=True)
        # An outer product is tracked by the partial sums it has, then by the cycles of its folds.
        fold = Signal(range(p.outer_end_cycles + 1))  # cycles since its last addition, 0 if none
        partial_sums = Signal(range(p.add_stages + 1))
        idle = Signal()  # no folds
        folded = Signal()  # the sums are at the adders' outputs
        drained = Signal()  # no inner product needs the adders any more
        present = Signal.like(partial_sums)  # 0 again in the cycle in which they ended
        issue = Signal()  # the products at the multipliers' outputs enter the adders
        # An outer product needs the adders to itself; an inner one may follow the last fold.
        free = Mux(flags.outer, (idle | folded) & drained, idle | (fold > p.fold_cycles))
        m.d.comb += [
            idle.eq(fold == 0),
            folded.eq(fold == p.outer_end_cycles),
            drained.eq(~flight[:-1].any()),
            present.eq(Mux(folded, 0, partial_sums)),
            issue.eq(flags.valid & free),
            front.eq(advance & (~flags.valid | issue)),
            # In gaps between the rows of an outer product the adders do not advance, so partial
            # sums keep their places.
            c.add_enable.eq(advance & (issue | ~idle | flight.any())),
        ]
        with m.If(advance):
            m.d.sync += [
                flight.eq(Cat(issue & ~flags.outer, flight[:-1])),
                lasts.eq(Cat(flags.last, lasts[:-1])),
                relatives.eq(Cat(flags.relative, relatives[:-1])),
                partial_sums.eq(present + (issue & flags.outer & (present != p.add_stages))),
            ]
            with m.If(issue & flags.outer & flags.last):
                m.d.sync += fold.eq(1)
            with m.Elif(folded):
                m.d.sync += fold.eq(0)
            with m.Elif(~idle):
                m.d.sync += fold.eq(fold + 1)

        capture, between = self._start(m, c, flags, fold, partial_sums, present, drained)
        root = len(relatives) - 1  # the tree's last addition
        m.d.comb += [
            c.summed.eq(flight[root]),
            c.last.eq(lasts[root]),
            c.relative.eq(relatives[root]),
        ]
        self._finish(m, c, advance, capture, between, folded, flight[-1], lasts[-1])
        return c

    def _start(
        self, m: Module, c: "Control", flags: RowFlags, fold, partial_sums, present, drained
    ) -> tuple[Signal, Signal]:
        """What the adders start: the first L rows begin partial sums, later rows are added to them.

        Returns whether a sum is captured, to be folded, and whether the fold is still to come.
        """
        p = self.parameters
        capture = Signal()
        between = Signal()  # between a capture and its fold
        m.d.comb += c.op.eq(Mux(present == p.add_stages, Op.ACCUMULATE, Op.CLEAR))
        # The tree adds as long as any inner product is in it, whatever row waits at the front.
        with m.If(~flags.outer | ~drained):
            m.d.comb += c.op.eq(Op.PASS)
        # The folds: L partial sums leave the adder one a cycle; one of each pair waits in r until
        # the other one is there (Fig. 5, outer product; the paper's adders have no pipeline to
        # fold).
        with m.Switch(fold):
            for step in p.fold_schedule:
                with m.Case(step.capture):
                    m.d.comb += capture.eq(partial_sums >= step.partial_sums)
                for cycle in range(step.capture + 1, step.add):
                    with m.Case(cycle):
                        m.d.comb += between.eq(1)
                with m.Case(step.add):
                    m.d.comb += c.op.eq(Op.FOLD)
        return capture, between

    def _finish(
        self,
        m: Module,
        c: "Control",
        advance: Signal,
        capture: Signal,
        between: Signal,
        folded: Signal,
        summed_score: Value,
        last: Value,
    ) -> None:
        """Results: captured in r, rounded into the result a cycle later, valid in the next.

        summed_score, last
            An inner product leaves the adders, with the flag of its row.
        """
        summed = Signal()
        scored = Signal()
        scored_last = Signal(reset_less=True)
        m.d.comb += [
            # Three steps, so that the FP32 adder, the conversion to FP16 and the consumer's logic
            # are in cycles of their own: adder to r, r rounded to the result, the result valid.
            c.capture.eq(advance & (capture | folded)),
            c.capture_score.eq(advance & (capture | folded | summed_score)),
            c.hold.eq(~advance | between),
            c.finish.eq(advance & summed),
            c.finish_score.eq(advance & (summed | scored)),
        ]
        with m.If(advance):
            m.d.sync += [
                summed.eq(folded),
                scored.eq(summed_score),
                scored_last.eq(last),
                self.o.valid.eq(summed),
                self.s.valid.eq(scored),
                self.s.payload.last.eq(scored_last),
            ]


class Control:
    """Enables of the PEs; those with `_score` are the last PE's, which also handles inner products.

    summed
        The tree's sum of an inner product is at its root, of a row with these flags:
    last, relative
        As they came with the row.
    op, add_enable, hold, capture, capture_score, finish, finish_score
        See :class:`Pe`.
    """

    def __init__(self):
        self.summed = Signal(name="tree_summed")
        self.last = Signal(name="tree_last")
        self.relative = Signal(name="tree_relative")
        self.op = Signal(Op)
        self.add_enable = Signal()
        self.hold = Signal()
        self.capture = Signal()
        self.capture_score = Signal()
        self.finish = Signal()
        self.finish_score = Signal()
