"""Attention computation module: output, and update of the caches A to F (LAD, Algorithm 2)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.active_fetch import position_rows_layout
from hw.lad.caches.ac_lane import AcLane
from hw.lad.caches.cache_store import CacheStore, cache_row_layout
from hw.lad.caches.cache_update import OPERATION, CacheUpdate
from hw.lad.caches.narrow_operands import RECIPROCAL_STAGES, NarrowOperands
from hw.lad.linear import linear_ports
from hw.lad.md import correction_layout
from hw.lad.scores.query_products import QueryProducts
from hw.lad.tile_parameters import LadTileParameters, StageParameters
from hw.lad.tile_sizes import LANES
from hw.layout import FLAG, count
from hw.ports import Ports, stream_in, stream_out, wire_out


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
            **linear_ports(p, "the VPUs, while no head is here.", LANES),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        self._lanes = lanes = [AcLane(p) for _ in range(LANES)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
            if p.weights:
                wiring.connect(m, wiring.flipped(self.linear[number]), lane.linear)
        m.submodules.caches = self._caches = caches = CacheStore(p)
        m.submodules.update = self._update = update = CacheUpdate(p)
        m.submodules.query_products = self._products = QueryProducts(p)
        m.submodules.operands = self._operands = NarrowOperands(p)
        self._command = command = Signal(attend_layout(p), reset_less=True, name="command")
        self._timer = timer = Signal(range(64), name="timer")
        infinite = Signal()  # a score of the head, or a denominator that is not above 0
        column = Signal(range(p.columns + 1))  # that is read next, to be multiplied
        m.d.comb += caches.column.eq(Mux(update.read, update.column, column))
        self._connect(m)
        # The next command is accepted when this head's is no longer needed.
        waiting = Signal()
        accepts = Signal()
        m.d.comb += [
            self.command.ready.eq(accepts & ~waiting),
            caches.load.eq(waiting & ~command.clear),
        ]
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [command.eq(self.command.payload), waiting.eq(1)]
        with m.FSM() as fsm:
            m.d.comb += self.settled.eq(fsm.ongoing("LOAD") & ~self.o.valid)
            with m.State("LOAD"):
                # Rows may have come while the last head's were written.
                m.d.comb += [accepts.eq(1), update.restart.eq(1), self._products.restart.eq(1)]
                m.d.sync += [x.eq(0) for x in (column, timer, infinite)]
                with m.If(waiting & (command.clear | caches.loaded) & ~self.o.valid):
                    m.d.comb += caches.begin.eq(1)
                    m.d.sync += waiting.eq(0)
                    m.next = "DOTS"
            self._dot_states(m, column)
            self._begin_states(m)
            self._attend_state(m, infinite)
            self._divide_states(m, infinite)
            self._end_states(m, accepts)
        self._output(m, lanes[0], infinite, command)
        return m

    def _connect(self, m: Module) -> None:
        """Streams of the caches, and what the parts show one another in every state."""
        lanes, caches, update = self._lanes, self._caches, self._update
        products, operands = self._products, self._operands
        c_lane, b_lane, _ = lanes  # of the caches' vectors
        wiring.connect(m, wiring.flipped(self.cache), caches.cache)
        wiring.connect(m, caches.written, wiring.flipped(self.written))
        m.d.comb += [
            self.free.eq(caches.free),
            self.terms.eq(update.terms),
            caches.clear.eq(self._command.clear),
            *(total.eq(lane.acc) for total, lane in zip(caches.sums, lanes, strict=True)),
            caches.sums_s[0].eq(b_lane.acc_s),
            caches.sums_s[1].eq(c_lane.acc_s),
            caches.set_vectors.eq(update.set_vectors),
            caches.set_column.eq(update.set_column),
            update.minus.eq(self.correction.payload.minus),
            update.plus.eq(self.correction.payload.plus),
            update.k.eq(self.rows.payload.k),
            update.v.eq(self.rows.payload.v),
            update.base_wanted.eq(lanes[0].base_wanted),
            update.summed.eq(lanes[0].done),
            *(bit.eq(lane.dot_valid) for bit, lane in zip(products.valid, lanes, strict=True)),
            *(o.eq(lane.dot_product) for o, lane in zip(products.products, lanes, strict=True)),
            products.power.eq(operands.power),
            operands.bases.eq(caches.bases),
            operands.scalars.eq(caches.scalars),
            operands.maximum.eq(self._command.m),
            operands.total.eq(lanes[0].acc),
            operands.total_s.eq(lanes[0].acc_s),
            *(lane.power.eq(operands.power) for lane in lanes),
        ]
        for lane, base in zip(lanes, caches.bases, strict=True):
            m.d.comb += [
                lane.q.eq(self._command.q),
                lane.base.eq(base),
                lane.base_zero.eq(caches.zero),
            ]

    def _dot_states(self, m: Module, column: Signal) -> None:
        """Products of the query with A's columns and with D."""
        p, lanes, caches, timer = self.parameters, self._lanes, self._caches, self._timer
        vectors = self._operands.vectors
        with m.State("DOTS"):
            # Columns are read in one cycle and multiplied in the next; behind them B, C and D,
            # of which lane 2 multiplies D.
            m.d.sync += [column.eq(column + 1), timer.eq(1)]
            m.d.comb += [caches.read.eq(1), self._operands.scale.eq(timer == 0)]
            for lane, vector in zip(lanes, vectors, strict=True):
                m.d.comb += [
                    lane.go.eq(timer == 1),
                    lane.dot.eq(1),
                    lane.load.eq(column == 1),
                    lane.vec.eq(Mux(caches.zero, 0, vector.as_value())),
                ]
            with m.If(column == p.columns):
                m.d.sync += [column.eq(0), timer.eq(0)]
                m.next = "DENOMINATOR"
        with m.State("DENOMINATOR"):
            # D has been read; q D is the last dot product.
            m.d.comb += [
                lanes[-1].go.eq(1),
                lanes[-1].dot.eq(1),
                lanes[-1].vec.eq(Mux(caches.zero, 0, vectors[-1].as_value())),
            ]
            m.next = "BEGIN"

    def _begin_states(self, m: Module) -> None:
        """First values of the sums."""
        lanes, caches, products = self._lanes, self._caches, self._products
        first = lanes[0]
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
                first.x.eq(self._command.m),
                first.y.eq(self._operands.e),
                first.vec.eq(Mux(caches.zero, 0, self._operands.vectors[1].as_value())),
                first.s_product.eq(1),
                first.subtract.eq(1),
                first.scaled.eq(1),
            ]
            m.next = "ATTEND"

    def _attend_state(self, m: Module, infinite: Signal) -> None:
        correction = self.correction.payload
        # A position's factor and its rows of K and V are accepted together.
        joined = self.correction.valid & self.rows.valid
        # The lane that has the next active position: they take turns, so that each one's adder has
        # several cycles for a vector.
        turn = Signal(range(LANES))
        with m.State("ATTEND"):
            # An active position per cycle, in the lanes in turn.
            m.d.comb += [
                self.correction.ready.eq(joined),
                self.rows.ready.eq(joined),
                self._update.change.eq(joined & correction.changed),
            ]
            for number, lane in enumerate(self._lanes):
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
                    m.d.sync += turn.eq(0)
                    m.next = "DRAIN"

    def _divide_states(self, m: Module, infinite: Signal) -> None:
        """The output: the sum of the lanes' sums, divided by its denominator."""
        timer, operands = self._timer, self._operands
        first, second, third = self._lanes
        with m.State("DRAIN"):
            # The last product is being added.
            m.d.sync += timer.eq(timer + 1)
            with m.If(timer == self.parameters.vpu.latency + 1):
                m.d.sync += timer.eq(0)
                m.next = "TOTAL"
        with m.State("TOTAL"):
            # Lane 0 adds the sums of lanes 1 and 2, each a cycle after `join`.
            m.d.sync += timer.eq(timer + 1)
            m.d.comb += [
                first.join.eq(timer != 2),
                first.other.eq(Mux(timer[0], third.acc, second.acc)),
                first.other_s.eq(Mux(timer[0], third.acc_s, second.acc_s)),
            ]
            with m.If(timer == 2):
                m.d.sync += timer.eq(0)
                m.next = "DIVIDE"
        with m.State("DIVIDE"):
            # The reciprocal of den, then its product with num.
            m.d.sync += timer.eq(timer + 1)
            m.d.comb += [
                operands.divides.eq(1),
                operands.normalise.eq(timer == 0),
                first.x.eq(operands.reciprocal),
                first.vec.eq(operands.vectors[0]),
                first.keep.eq(1),
                first.go.eq(timer == RECIPROCAL_STAGES),
            ]
            with m.If(timer == RECIPROCAL_STAGES):
                # Not a number above 0: negative, zero, infinite or NaN.
                m.d.sync += infinite.eq(infinite | operands.bad)
            with m.If(first.product_valid):
                m.d.sync += timer.eq(0)
                m.next = "OUTPUT"

    def _end_states(self, m: Module, accepts: Signal) -> None:
        """Terms of positions that changed their mode, if there are any; the caches written back."""
        lanes, caches, update = self._lanes, self._caches, self._update
        with m.State("OUTPUT"):
            # The output waits in the lanes' product registers. Where no position changed its
            # mode, the caches are as they were, and the head ends without reading them again.
            with m.If(update.terms != 0):
                # B to F are the sums' first values.
                m.d.comb += [lane.set.eq(1) for lane in lanes]
                m.d.comb += [
                    lanes[0].base_s.eq(caches.scalars[1]),
                    lanes[1].base_s.eq(caches.scalars[0]),
                    update.begin.eq(1),
                ]
                m.next = "UPDATE"
            # A new sequence has no caches in memory yet: zeros are written.
            with m.Elif(self._command.clear):
                m.d.comb += caches.write.eq(1)
                m.next = "WRITE"
            with m.Else():
                m.d.comb += caches.release.eq(1)
                m.next = "LOAD"
        with m.State("UPDATE"):
            # The lanes and the store do what the update says; writing begins with the vectors.
            m.d.comb += [
                accepts.eq(1),
                caches.read.eq(update.read),
                caches.write.eq(update.set_vectors),
            ]
            for lane, operation in zip(lanes, update.operations, strict=True):
                m.d.comb += lane.go.eq(update.go)
                m.d.comb += [getattr(lane, x).eq(getattr(operation, x)) for x in OPERATION]
            with m.If(update.done):
                m.next = "WRITE"
        with m.State("WRITE"):
            # The store writes what it has been given. The next command may come meanwhile, and
            # its rows may be loaded behind the ones that have been written.
            m.d.comb += accepts.eq(1)
            with m.If(caches.done):
                m.next = "LOAD"

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
    return data.StructLayout({"q": p.row_layout, "m": FP16, "clear": FLAG, "invalid": FLAG})


def attended_layout(p: LadTileParameters) -> data.StructLayout:
    """A head's output ``o``; ``invalid``: it does not count."""
    return data.StructLayout({"o": p.row_layout, "invalid": FLAG})
