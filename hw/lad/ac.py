"""Attention computation module: output, and update of the caches A to F (LAD, Algorithm 2)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.component import Component
from hw.lad.ac_lane import AcLane
from hw.lad.active_fetch import position_rows_layout
from hw.lad.cache_store import CacheStore, cache_row_layout
from hw.lad.linear import linear_ports
from hw.lad.md import correction_layout
from hw.lad.powers import (
    HALF,
    POWER_BITS,
    SHIFT,
    exponent_of,
    least,
    narrow_numbers,
    power_of,
    significand_of,
    times_power,
)
from hw.lad.query_products import QueryProducts
from hw.lad.term_walk import TermWalk
from hw.lad.tile_parameters import LANES, LadTileParameters, StageParameters
from hw.layout import FLAG, count
from hw.ports import Ports, stream_in, stream_out, wire_out

RECIPROCAL_STAGES = 2


class AcParameters(StageParameters):
    __doc__ = LadTileParameters.__doc__

    @property
    def latency(self) -> int:
        """Cycles from the last active position to the output."""
        return 2 * self.vpu.latency + RECIPROCAL_STAGES + 8

    @property
    def idle_bound(self) -> int:
        """Cycles at most, or about, in which no beat passes: the dot products with A, or terms."""
        return self.columns + self.vpu.dot_latency + 2 * self.updates + self.latency + 20


class Ac(Component[LadTileParameters]):
    """o = num / den;   then A to F take the terms of positions that change their mode.

    ::

        num = q A - m B + C + sum over J of cf[j] V[j]
        den = q D - m E + F + sum over J of cf[j]

    A head begins with the rows of its caches, in any order (:class:`CacheStore`); lane l has A's
    columns l ceil(d / 3) and following. Then, in this order::

        DOTS        q . A[:, p], q . D                         AC.1, AC.2
        ATTEND      lane 0: C - m B, lane 1: q A, lane 2: 0    AC.1, AC.2
                    + cf[j] V[j], in the lanes in turn         AC.3
        TOTAL       lane 0 + lane 1 + lane 2
        DIVIDE      o = num (1 / den)                          AC.4
        VECTORS     lane 0: C, F; lane 1: B, E; lane 2: D      AC.6 to AC.8
        COLUMNS     A, three columns at a time                 AC.5

    A position that changes its mode is removed as it was added, a[minus] V and that times K, and
    added anew with the coefficients of `plus`: two terms, or one where a mode is 0, whose line is
    0. All products are FP16, so a term's removal cancels its addition but for the rounding of the
    FP32 sums. The paper adds the difference of the coefficients, whose products do not cancel
    (docs/results/lad.md).

    A to F are FP32. To be multiplied, A, B, D and E are divided by 2^p and rounded to FP16, and
    their products multiplied by 2^p as they are widened: 2^p is the product of the powers of two at
    or below F and the magnitude of m, each 1 at least, and 2^31 at most. F is the sum of the lines'
    intercepts, none of which is below its slope, so that neither many positions nor large scores
    make a sum or a product too large for FP16. For the division num and den are divided by the
    power of two that brings den to 0.5 to 1, and rounded to FP16: what is then infinite is an
    output above 65504. The changed caches are written back row by row, each column as soon as it is
    complete, and the next head's rows are loaded behind them; without a term nothing is written,
    unless the head has been cleared.

    Cycles, with T terms and the VPU's latency M + 1: 2 d + 7 to load the caches; ceil(d / 3) +
    dot_latency + 7 from there to ATTEND; a cycle for each active position; 2 M + 12 from the last
    one to o; then T + M + 5 and T ceil(d / 3) + M + 6 to all sums, while a column takes two cycles
    to write. :func:`golden.lad.cycles.ac_cycles` has all of them. In the paper's (d + |J| + T d + 3
    T) / 3 (equation 7), |J| / 3 becomes |J|, because a position's rows take two cycles of the
    memory's port. Loading and writing are not in it.

    Handshake: ``command`` is accepted when the output of the head before it is there. A row of
    ``cache`` is accepted after its head's command, when its place is free; ``correction`` together
    with ``rows``, in ATTEND. Overflow: none. A subnormal number in ``cache``, which no sum of FP16
    numbers is, counts as 0.

    Examples
    --------
    >>> from hw.lad.ac import Ac, AcParameters
    >>> parameters = AcParameters(d=128)
    >>> parameters.cache_rows, parameters.columns, parameters.latency
    (263, 43, 16)
    """

    summary = "A head's output, and update of the caches that replace its inactive positions"
    source = "LAD, section IV-B, part 5, and Algorithm 2"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(
                attend_layout(p), "Heads, each with its query ``q`` and maximum ``m``."
            ),
            "cache": stream_in(
                cache_row_layout(p), "Rows of the head's intermediate caches, from the memory."
            ),
            "correction": stream_in(
                correction_layout(), "Corrections of inactive positions, in order."
            ),
            "rows": stream_in(
                position_rows_layout(p), "Rows of the position that `correction` is for."
            ),
            "o": stream_out(
                attended_layout(p),
                "``invalid``: the command's; or a score was infinite or NaN; or den is not a "
                "number above 0; or an element of o is infinite or NaN.",
            ),
            "written": stream_out(cache_row_layout(p), "Rows of the caches to write back."),
            "free": wire_out(
                count(range(p.cache_rows + 1)),
                "Rows of the caches whose place is free for the next head, in the order of "
                "writing.",
            ),
            "terms": wire_out(range(2 * p.updates + 1), "T of this head."),
            "settled": wire_out(1, "Each head that has begun is finished and written."),
            "idle": wire_out(1, "And no other one waits."),
            **linear_ports(p, "the VPUs, while no head is here.", LANES),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        lanes = [AcLane(p) for _ in range(LANES)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
            if p.weights:
                wiring.connect(m, wiring.flipped(self.linear[number]), lane.linear)
        m.submodules.caches = caches = CacheStore(p)
        m.submodules.walk = walk = TermWalk(p)
        m.submodules.query_products = products = QueryProducts(p)
        first, *_, last = lanes
        c_lane, b_lane = first, lanes[1]  # of the caches' vectors
        command = Signal(attend_layout(p), reset_less=True)
        infinite = Signal()  # a score of the head, or a denominator that is not above 0

        # Narrowed operands: of lane 0 also the total; E or the denominator.
        narrow_in = Signal(p.wide_row)
        narrow_s_in = Signal(FP32)
        # Divided by 2^power: the caches' sums, and in lane 0 later the numerator.
        power = Signal(SHIFT, reset_less=True)
        narrow = narrow_numbers(m, "lane_0", narrow_in, power)
        of_sums = power[:POWER_BITS]
        others = [narrow_numbers(m, f"lane_{n}", caches.bases[n], of_sums) for n in range(1, LANES)]
        narrow_s = Signal(FP16)
        m.submodules.narrow_scalar = scalar = FloatConvert(FloatConvertParameters())
        m.d.comb += [scalar.a.eq(narrow_s_in), narrow_s.eq(scalar.o)]
        narrow_e = Signal(FP16, reset_less=True)
        recip = m.submodules.reciprocal = Reciprocal(ReciprocalParameters(stages=RECIPROCAL_STAGES))

        wiring.connect(m, wiring.flipped(self.cache), caches.cache)
        wiring.connect(m, caches.written, wiring.flipped(self.written))
        # A position's factor and its rows of K and V are taken together.
        joined = self.correction.valid & self.rows.valid
        correction = self.correction.payload
        # What holds unless a state says otherwise.
        m.d.comb += [
            self.free.eq(caches.free),
            self.terms.eq(walk.terms),
            caches.clear.eq(command.clear),
            *(total.eq(lane.acc) for total, lane in zip(caches.sums, lanes, strict=True)),
            *(
                total.eq(lane.acc_s)
                for total, lane in zip(caches.sums_s, (b_lane, c_lane), strict=True)
            ),
            walk.minus.eq(correction.minus),
            walk.plus.eq(correction.plus),
            walk.k.eq(self.rows.payload.k),
            walk.v.eq(self.rows.payload.v),
            *(bit.eq(lane.dot_valid) for bit, lane in zip(products.valid, lanes, strict=True)),
            *(o.eq(lane.dot_product) for o, lane in zip(products.products, lanes, strict=True)),
            recip.x.eq(narrow_s),
            narrow_in.eq(caches.bases[0]),
            narrow_s_in.eq(times_power(m, "e", caches.scalars[0], -of_sums)),
            products.power.eq(of_sums),
            *(lane.power.eq(of_sums) for lane in lanes),
        ]
        m.d.sync += narrow_e.eq(narrow_s)  # E, when its product with m begins
        for lane, base in zip(lanes, caches.bases, strict=True):
            m.d.comb += [
                lane.q.eq(command.q),
                lane.base.eq(base),
                lane.base_zero.eq(caches.zero),
            ]

        column = Signal(range(p.columns + 1))  # that is read next
        m.d.comb += caches.column.eq(column)
        updated = Signal(range(p.columns + 1))  # columns of each lane
        timer = Signal(range(64))
        # The lane that takes the next active position: they take turns, so that each one's adder
        # has several cycles for a vector.
        turn = Signal(range(LANES))
        # The next command is accepted when this head's is no longer needed.
        waiting, accepts = Signal(), Signal()
        m.d.comb += [
            self.command.ready.eq(accepts & ~waiting),
            caches.load.eq(waiting & ~command.clear),
        ]
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [command.eq(self.command.payload), waiting.eq(1)]
        with m.FSM() as fsm:
            m.d.comb += [
                self.settled.eq(fsm.ongoing("LOAD") & ~self.o.valid),
                self.idle.eq(self.settled & ~waiting),
            ]
            with m.State("LOAD"):
                # Rows may have come while the last head's were written.
                m.d.comb += [accepts.eq(1), walk.restart.eq(1), products.restart.eq(1)]
                m.d.sync += [x.eq(0) for x in (column, updated, timer, turn, infinite)]
                with m.If(waiting & (command.clear | caches.loaded) & ~self.o.valid):
                    m.d.comb += caches.begin.eq(1)
                    m.d.sync += waiting.eq(0)
                    m.next = "DOTS"
            with m.State("DOTS"):
                # Columns are read in one cycle and multiplied in the next; behind them B, C and D,
                # of which lane 2 multiplies D.
                m.d.sync += [column.eq(column + 1), timer.eq(1)]
                m.d.comb += caches.read.eq(1)
                with m.If(timer == 0):
                    of_m = power_of(command.m, FP16)
                    m.d.sync += power.eq(least(power_of(caches.scalars[1]) + of_m))
                for lane, vector in zip(lanes, (narrow, *others), strict=True):
                    m.d.comb += [
                        lane.go.eq(timer == 1),
                        lane.dot.eq(1),
                        lane.load.eq(column == 1),
                        lane.vec.eq(Mux(caches.zero, 0, vector)),
                    ]
                with m.If(column == p.columns):
                    m.d.sync += [column.eq(0), timer.eq(0)]
                    m.next = "DENOMINATOR"
            with m.State("DENOMINATOR"):
                m.d.comb += [
                    last.go.eq(1),
                    last.dot.eq(1),
                    last.vec.eq(Mux(caches.zero, 0, others[-1])),
                ]
                m.next = "BEGIN"
            with m.State("BEGIN"):
                # The sums begin with C and F, q A and q D, and 0. `bases` keeps B, C and D.
                with m.If(products.complete):
                    m.d.comb += [lane.set.eq(1) for lane in lanes]
                    m.d.comb += [
                        lanes[0].base_s.eq(caches.scalars[1]),
                        lanes[1].base.eq(products.a),
                        lanes[1].base_zero.eq(0),
                        lanes[1].base_s.eq(products.d),
                        lanes[2].base_zero.eq(1),
                    ]
                    m.next = "MAXIMUM"
            with m.State("MAXIMUM"):
                # Minus m B, m E.
                m.d.comb += [
                    first.go.eq(1),
                    first.x.eq(command.m),
                    first.y.eq(narrow_e),
                    first.vec.eq(Mux(caches.zero, 0, others[0])),
                    first.s_product.eq(1),
                    first.subtract.eq(1),
                    first.scaled.eq(1),
                ]
                m.next = "ATTEND"
            with m.State("ATTEND"):
                # An active position per cycle, in the lanes in turn.
                m.d.comb += [
                    self.correction.ready.eq(joined),
                    self.rows.ready.eq(joined),
                    walk.change.eq(joined & correction.changed),
                ]
                for number, lane in enumerate(lanes):
                    m.d.comb += [
                        lane.go.eq(joined & (turn == number)),
                        lane.x.eq(correction.cf),
                        lane.vec.eq(self.rows.payload.v),
                    ]
                with m.If(joined):
                    m.d.sync += [
                        turn.eq(Mux(turn == LANES - 1, 0, turn + 1)),
                        infinite.eq(infinite | correction.infinite),
                    ]
                    with m.If(correction.last):
                        m.next = "DRAIN"
            with m.State("DRAIN"):
                # The last product is being added.
                m.d.sync += timer.eq(timer + 1)
                with m.If(timer == p.vpu.latency + 1):
                    m.d.sync += timer.eq(0)
                    m.next = "TOTAL"
            with m.State("TOTAL"):
                # Lane 0 adds the sums of lanes 1 and 2, each a cycle after `join`.
                m.d.sync += timer.eq(timer + 1)
                m.d.comb += [
                    first.join.eq(timer != 2),
                    first.other.eq(Mux(timer[0], lanes[2].acc, lanes[1].acc)),
                    first.other_s.eq(Mux(timer[0], lanes[2].acc_s, lanes[1].acc_s)),
                ]
                with m.If(timer == 2):
                    m.d.sync += timer.eq(0)
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                # The reciprocal of den, then its product with num.
                m.d.sync += timer.eq(timer + 1)
                with m.If(timer == 0):
                    m.d.sync += power.eq(exponent_of(first.acc_s) - HALF)
                m.d.comb += [
                    narrow_in.eq(first.acc),
                    narrow_s_in.eq(significand_of(first.acc_s)),
                    first.x.eq(recip.o),
                    first.vec.eq(narrow),
                    first.keep.eq(1),
                    first.go.eq(timer == RECIPROCAL_STAGES),
                ]
                with m.If(timer == RECIPROCAL_STAGES):
                    # Not a number above 0: negative, zero, infinite or NaN.
                    # The denominator's sign, and whether its significand is zero, infinite or NaN.
                    magnitude = narrow_s[:-1]
                    bad = narrow_s[-1] | (magnitude == 0) | (magnitude >= FP16.infinity)
                    m.d.sync += infinite.eq(infinite | bad)
                with m.If(first.product_valid):
                    m.d.sync += timer.eq(0)
                    m.next = "OUTPUT"
            with m.State("OUTPUT"):
                # The output waits in the lanes' product registers. Where no position changed its
                # mode, the caches are as they were, and the head ends without reading them again.
                with m.If(walk.terms != 0):
                    # B to F are the sums' first values.
                    m.d.comb += [lane.set.eq(1) for lane in lanes]
                    for lane, scalar in zip((b_lane, c_lane), caches.scalars, strict=True):
                        m.d.comb += lane.base_s.eq(scalar)
                    m.d.comb += walk.begin.eq(1)
                    m.next = "VECTORS"
                # A new sequence has no caches in memory yet: zeros are written.
                with m.Elif(command.clear):
                    m.d.comb += caches.write.eq(1)
                    m.next = "WRITE"
                with m.Else():
                    m.d.comb += caches.release.eq(1)
                    m.next = "LOAD"
            with m.State("VECTORS"):
                m.d.comb += accepts.eq(1)
                # Terms of C and F, of B and E, of D: b V, b; a V, a; a K.
                for number, lane in enumerate(lanes):
                    m.d.comb += [
                        lane.go.eq(walk.valid),
                        lane.x.eq(walk.intercept if lane is c_lane else walk.slope),
                        lane.vec.eq(walk.k_out if number == 2 else walk.v_out),
                        lane.subtract.eq(walk.subtract),
                        lane.last.eq(walk.last),
                    ]
                with m.If(first.done):
                    m.d.comb += [
                        caches.set_vectors.eq(1),
                        caches.write.eq(1),
                        walk.begin.eq(1),
                    ]
                    m.d.sync += column.eq(0)
                    m.next = "COLUMNS"
            with m.State("COLUMNS"):
                # Terms of A, a V[r] K for column r. Columns begin one after another.
                m.d.comb += [accepts.eq(1), walk.repeats.eq(1)]
                for lane, element in zip(lanes, walk.elements, strict=True):
                    m.d.comb += [
                        lane.go.eq(walk.valid),
                        lane.x.eq(walk.slope),
                        lane.y.eq(element),
                        lane.f_product.eq(1),
                        lane.vec.eq(walk.k_out),
                        lane.subtract.eq(walk.subtract),
                        lane.first.eq(walk.first),
                        lane.last.eq(walk.last),
                    ]
                # A column's old sum is wanted a few cycles before its first term leaves the
                # multiplier.
                with m.If(first.base_wanted):
                    m.d.comb += caches.read.eq(1)
                    m.d.sync += column.eq(column + 1)
                with m.If(first.done):
                    m.d.comb += caches.set_column.eq(1)
                    m.d.sync += updated.eq(updated + 1)
                # All columns of all lanes have been set.
                with m.If(updated == p.columns):
                    m.next = "WRITE"
            with m.State("WRITE"):
                # The store writes what it has been given. The next command may come meanwhile, and
                # its rows may be loaded behind the ones that have been written.
                m.d.comb += accepts.eq(1)
                with m.If(caches.done):
                    m.next = "LOAD"

        self._output(m, first, infinite, command)
        return m

    def _output(self, m: Module, first: AcLane, infinite: Signal, command) -> None:
        o = self.o
        special = Cat(element[FP16.mantissa : -1].all() for element in first.product)
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        # o is free: a head begins when the output of the one before it has been accepted.
        with m.If(first.product_valid & ~o.valid):
            m.d.sync += [
                o.valid.eq(1),
                o.payload.o.eq(first.product),
                o.payload.invalid.eq(infinite | command.invalid | special.any()),
            ]


def attend_layout(p: LadTileParameters) -> data.StructLayout:
    """A head: ``q``; ``m``; ``clear``: its caches are zero; ``invalid``: report it as such."""
    return data.StructLayout({"q": p.row, "m": FP16, "clear": FLAG, "invalid": FLAG})


def attended_layout(p: LadTileParameters) -> data.StructLayout:
    """A head's output ``o``; ``invalid``: it does not count."""
    return data.StructLayout({"o": p.row, "invalid": FLAG})
