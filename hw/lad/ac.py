"""Attention computation module: output, and update of the caches A to F (LAD, Algorithm 2)."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.component import Component
from hw.lad.ac_lane import AcLane
from hw.lad.active_fetch import cache_row_layout, position_rows_layout
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.linear import LinearPort
from hw.lad.md import correction_layout
from hw.lad.tile_parameters import LadTileParameters, StageParameters
from hw.layout import FLAG, index

LANES = 3
"""Computation components, each with a VPU."""

RECIPROCAL_STAGES = 2


class AcParameters(StageParameters):
    __doc__ = LadTileParameters.__doc__

    @property
    def latency(self) -> int:
        """Cycles from the last active position to the output."""
        return 2 * self.vpu.latency + RECIPROCAL_STAGES + 6

    @property
    def idle_bound(self) -> int:
        """Cycles at most, or about, in which no beat passes: the dot products with A, or terms."""
        columns = -(-self.d // LANES)
        return columns + self.vpu.dot_latency + 2 * self.updates + self.latency + 20


class Ac(Component):
    """o = num / den;   then A to F take the terms of positions that change their mode.

    ::

        num = q A - m B + C + sum over J of cf[j] V[j]
        den = q D - m E + F + sum over J of cf[j]

    A head begins with the rows of its caches, in any order: A's columns go to three banks, lane l
    has columns l ceil(d / 3) and following; B to F to registers. Then, in this order::

        DOTS        q . A[:, p], q . D                         AC.1, AC.2
        ATTEND      lane 0: C - m B, lane 1: q A, lane 2: 0    AC.1, AC.2
                    + cf[j] V[j], in the lanes in turn         AC.3
        TOTAL       lane 0 + lane 1 + lane 2
        DIVIDE      o = num (1 / den)                          AC.4
        VECTORS     lane 0: B, E; lane 1: C, F; lane 2: D      AC.6 to AC.8
        COLUMNS     A, three columns at a time                 AC.5

    A position that changes its mode is removed as it was added, a[minus] V and that times K, and
    added anew with the coefficients of `plus`: two terms, or one where a mode is 0, whose line is
    0. All products are FP16, so a term's removal cancels its addition but for the rounding of the
    FP32 sums. The paper adds the difference of the coefficients, whose products do not cancel
    (docs/results/lad.md).

    A to F are FP32 and are rounded to FP16 as they are multiplied. num and den are rounded to FP16
    for the division. The changed caches are written back row by row, each column as soon as it is
    complete; without a term nothing is, unless the head has been cleared.

    Cycles, with T terms and the VPU's latency M + 1: 2 d + 7 to load the caches;
    ceil(d / 3) + dot_latency + 7 from there to ATTEND; a cycle for each active position; 2 M + 10
    from the last one to o; then T + M + 4 and T ceil(d / 3) + M + 5 to all sums, while a column
    takes two cycles to write. :func:`golden.lad.cycles.ac_cycles` has all of them. Of the paper's
    (d + |J| + T d + 3 T) / 3 (equation 7), |J| / 3 becomes |J|, as a position's rows take two
    cycles of the memory's port. Loading and writing are not in it.

    Handshake: ``cache`` is accepted until all rows are there, ``correction`` together with
    ``rows``, in ATTEND. Overflow: none.

    Members
    -------
    command : :py:`In(stream.Signature(q, m, clear, invalid))`
    cache : :py:`In(stream.Signature(row, data))`
    correction : :py:`In(stream.Signature(correction_layout))`
    rows : :py:`In(stream.Signature(k, v))`
        Of the position that `correction` is of.
    o : :py:`Out(stream.Signature(o, invalid))`
        ``invalid``: the command's; or a score was infinite or NaN; or den is not a number above 0;
        or an element of o is infinite or NaN.
    written : :py:`Out(stream.Signature(row, data))`
    terms : :py:`Out(count)`
        T of this head.
    idle : :py:`Out(1)`
    linear : :py:`In(LinearPort).array(3)`
        Only with `weights`: the VPUs, while no head is here.

    Examples
    --------
    >>> from hw.lad.ac import Ac, AcParameters
    >>> parameters = AcParameters(d=128)
    >>> parameters.cache_rows, Ac(parameters).columns, parameters.latency
    (263, 43, 14)
    """

    summary = "A head's output, and update of the caches that stand for its inactive positions"
    source = "LAD, section IV-B, part 5, and Algorithm 2"

    def __init__(self, parameters: LadTileParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "command": In(stream.Signature(attend_layout(p))),
                "cache": In(stream.Signature(cache_row_layout(p))),
                "correction": In(stream.Signature(correction_layout())),
                "rows": In(stream.Signature(position_rows_layout(p))),
                "o": Out(stream.Signature(attended_layout(p))),
                "written": Out(stream.Signature(cache_row_layout(p))),
                "terms": Out(range(2 * p.updates + 1)),
                "idle": Out(1),
                **({"linear": In(LinearPort(p)).array(LANES)} if p.weights else {}),
            }
        )

    @property
    def parameters(self) -> LadTileParameters:
        return self._parameters

    @property
    def columns(self) -> int:
        """Columns of A in a lane, at most."""
        return -(-self._parameters.d // LANES)

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        lanes = self._lanes = [AcLane(p) for _ in range(LANES)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
            if p.weights:
                wiring.connect(m, wiring.flipped(self.linear[number]), lane.linear)
        command: Any = Signal(attend_layout(p), reset_less=True)
        self._command = command
        # B, C, D and, as scalars, E, F.
        self._vectors = [Signal(p.wide_row, name=name, reset_less=True) for name in "BCD"]
        self._scalars = [Signal(FP32, name=name, reset_less=True) for name in "EF"]
        self._reads, self._writes = self._make_banks(m)
        # Columns of A that were read; a cleared head has none.
        bases = [Signal(p.wide_row, name=f"column_{number}") for number in range(LANES)]
        for base, read in zip(bases, self._reads, strict=True):
            m.d.comb += base.eq(Mux(command.clear, 0, Value.cast(read.data)))
        infinite = Signal()  # a score of the head

        # Narrowed operands of lane 0: B, D or the total; E or the denominator.
        narrow_in = Signal(p.wide_row)
        narrow_s_in = Signal(FP32)
        narrow = self._narrow(m, "lane_0", narrow_in)
        narrow_s = self._narrow(m, "scalar", Cat(narrow_s_in))[0]
        narrowed = [narrow, *(self._narrow(m, f"lane_{n}", bases[n]) for n in range(1, LANES))]

        column = Signal(range(self.columns + 1))
        timer = Signal(range(64))
        dots = self._dots(m)
        turn = Signal(range(LANES))
        changes = Signal(range(p.updates + 1))
        records = Signal(data.ArrayLayout(_record_layout(), p.updates), reset_less=True)
        writing = Signal()  # rows may be written back
        complete = Signal(range(self.columns + 1))  # columns of each lane that are updated
        writer_done = self._write_back(m, writing, complete)
        update_rows: Any = memory.Memory(shape=2 * p.row_bits, depth=p.updates, init=[])
        m.submodules.update_rows = update_rows
        keep, kept = update_rows.write_port(), update_rows.read_port()
        walk = self._walk(m, records, changes, kept)
        loaded = Signal(range(p.cache_rows + 1))

        recip = m.submodules.reciprocal = Reciprocal(ReciprocalParameters(stages=RECIPROCAL_STAGES))
        m.d.comb += recip.x.eq(narrow_s)
        joined = self.correction.valid & self.rows.valid
        correction = self.correction.payload
        first, *_ = lanes
        m.d.comb += [
            keep.addr.eq(changes),
            keep.data.eq(Cat(self.rows.payload.k, self.rows.payload.v)),
        ]
        # What holds unless a state says otherwise.
        m.d.comb += narrow_in.eq(bases[0])
        for lane, base in zip(lanes, bases, strict=True):
            m.d.comb += [lane.q.eq(command.q), lane.base.eq(base)]

        with m.FSM() as fsm:
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~self.o.valid)
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(self.idle)
                m.d.sync += [
                    loaded.eq(0),
                    column.eq(0),
                    timer.eq(0),
                    turn.eq(0),
                    changes.eq(0),
                    complete.eq(0),
                    self.terms.eq(0),
                    infinite.eq(0),
                ]
                with m.If(self.command.valid & self.idle):
                    m.d.sync += command.eq(self.command.payload)
                    m.next = "LOAD"
            with m.State("LOAD"):
                self._load(m, loaded)
                with m.If(command.clear):
                    m.d.sync += [x.eq(0) for x in (*self._vectors, *self._scalars)]
                    m.next = "DOTS"
                with m.Elif(loaded == p.cache_rows):
                    m.next = "DOTS"
            with m.State("DOTS"):
                # Columns are read in one cycle and multiplied in the next; then D in lane 0.
                m.d.sync += [column.eq(column + 1), timer.eq(1)]
                m.d.comb += [read.en.eq(column != self.columns) for read in self._reads]
                m.d.comb += [read.addr.eq(column) for read in self._reads]
                for lane, vector in zip(lanes, narrowed, strict=True):
                    m.d.comb += [
                        lane.go.eq(timer == 1),
                        lane.dot.eq(1),
                        lane.load.eq(column == 1),
                        lane.vec.eq(vector),
                    ]
                with m.If(column == self.columns):
                    m.d.sync += [column.eq(0), timer.eq(0)]
                    m.next = "DENOMINATOR"
            with m.State("DENOMINATOR"):
                m.d.comb += [
                    narrow_in.eq(self._vectors[2]),
                    first.go.eq(1),
                    first.dot.eq(1),
                    first.vec.eq(narrow),
                ]
                m.next = "BEGIN"
            with m.State("BEGIN"):
                with m.If(dots.complete):
                    m.d.comb += [lane.set.eq(1) for lane in lanes]
                    m.d.comb += [
                        lanes[0].base.eq(self._vectors[1]),
                        lanes[0].base_s.eq(self._scalars[1]),
                        lanes[1].base.eq(dots.wide),
                        lanes[1].base_s.eq(dots.wide_s),
                        lanes[2].base.eq(0),
                    ]
                    m.next = "MAXIMUM"
            with m.State("MAXIMUM"):
                m.d.comb += [
                    narrow_in.eq(self._vectors[0]),
                    narrow_s_in.eq(self._scalars[0]),
                    first.go.eq(1),
                    first.x.eq(command.m),
                    first.y.eq(narrow_s),
                    first.vec.eq(narrow),
                    first.s_product.eq(1),
                    first.subtract.eq(1),
                ]
                m.next = "ATTEND"
            with m.State("ATTEND"):
                m.d.comb += [
                    self.correction.ready.eq(joined),
                    self.rows.ready.eq(joined),
                    keep.en.eq(joined & correction.changed),
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
                    with m.If(correction.changed):
                        m.d.sync += [
                            records[changes].minus.eq(correction.minus),
                            records[changes].plus.eq(correction.plus),
                            changes.eq(changes + 1),
                            self.terms.eq(
                                self.terms + correction.minus.any() + correction.plus.any()
                            ),
                        ]
                    with m.If(correction.last):
                        m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += timer.eq(timer + 1)
                with m.If(timer == p.vpu.latency):
                    m.d.sync += timer.eq(0)
                    m.next = "TOTAL"
            with m.State("TOTAL"):
                m.d.sync += timer.eq(timer + 1)
                m.d.comb += [
                    first.join.eq(1),
                    first.base.eq(Mux(timer[0], lanes[2].acc, lanes[1].acc)),
                    first.base_s.eq(Mux(timer[0], lanes[2].acc_s, lanes[1].acc_s)),
                ]
                with m.If(timer == 1):
                    m.d.sync += timer.eq(0)
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.sync += timer.eq(timer + 1)
                m.d.comb += [
                    narrow_in.eq(first.acc),
                    narrow_s_in.eq(first.acc_s),
                    first.x.eq(recip.o),
                    first.vec.eq(narrow),
                    first.keep.eq(1),
                    first.go.eq(timer == RECIPROCAL_STAGES),
                ]
                with m.If(timer == RECIPROCAL_STAGES):
                    # Not a number above 0: negative, zero, infinite or NaN.
                    magnitude = narrow_s[:-1]
                    bad = narrow_s[-1] | (magnitude == 0) | (magnitude >= FP16.infinity)
                    m.d.sync += infinite.eq(infinite | bad)
                with m.If(first.product_valid):
                    m.d.sync += timer.eq(0)
                    m.next = "OUTPUT"
            with m.State("OUTPUT"):
                with m.If(self.terms != 0):
                    m.d.comb += [lane.set.eq(1) for lane in lanes]
                    for lane, vector in zip(lanes, self._vectors, strict=True):
                        m.d.comb += lane.base.eq(vector)
                    for lane, scalar in zip(lanes, self._scalars, strict=False):
                        m.d.comb += lane.base_s.eq(scalar)
                    m.d.comb += walk.begin.eq(1)
                    m.next = "VECTORS"
                with m.Elif(command.clear):
                    m.d.comb += writing.eq(1)
                    m.d.sync += complete.eq(self.columns)
                    m.next = "WRITE"
                with m.Else():
                    m.next = "IDLE"
            with m.State("VECTORS"):
                for number, lane in enumerate(lanes):
                    m.d.comb += [
                        lane.go.eq(walk.valid),
                        lane.x.eq(walk.intercept if number == 1 else walk.slope),
                        lane.vec.eq(walk.k if number == 2 else walk.v),
                        lane.subtract.eq(walk.subtract),
                        lane.last.eq(walk.last),
                    ]
                with m.If(first.done):
                    for lane, vector in zip(lanes, self._vectors, strict=True):
                        m.d.sync += vector.eq(lane.acc)
                    for lane, scalar in zip(lanes, self._scalars, strict=False):
                        m.d.sync += scalar.eq(lane.acc_s)
                    m.d.comb += walk.begin.eq(1)
                    m.d.sync += column.eq(0)
                    m.next = "COLUMNS"
            with m.State("COLUMNS"):
                # Columns begin one after another; `column` is the one whose base is read next.
                m.d.comb += [writing.eq(1), walk.repeats.eq(1)]
                for number, lane in enumerate(lanes):
                    m.d.comb += [
                        lane.go.eq(walk.valid),
                        lane.x.eq(walk.slope),
                        lane.y.eq(walk.elements[number]),
                        lane.f_product.eq(1),
                        lane.vec.eq(walk.k),
                        lane.subtract.eq(walk.subtract),
                        lane.first.eq(walk.first),
                        lane.last.eq(walk.last),
                    ]
                with m.If(first.base_wanted):
                    m.d.comb += [read.en.eq(1) for read in self._reads]
                    m.d.comb += [read.addr.eq(column) for read in self._reads]
                    m.d.sync += column.eq(column + 1)
                with m.If(first.done):
                    for lane, write in zip(lanes, self._writes, strict=True):
                        m.d.comb += [
                            write.en.eq(0b11),
                            write.addr.eq(complete),
                            write.data.eq(lane.acc),
                        ]
                    m.d.sync += complete.eq(complete + 1)
                with m.If(complete == self.columns):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += writing.eq(1)
                with m.If(writer_done):
                    m.next = "IDLE"

        self._output(m, first, infinite, command)
        return m

    def _make_banks(self, m: Module) -> tuple[list[Any], list[Any]]:
        """Read and write ports of the three banks of A, a word of which is a column."""
        p = self._parameters
        reads, writes = [], []
        for number in range(LANES):
            shape = data.ArrayLayout(p.row_bits, 2)
            bank: Any = memory.Memory(shape=shape, depth=self.columns, init=[])
            m.submodules[f"bank_{number}"] = bank
            writes.append(bank.write_port(granularity=1))
            reads.append(bank.read_port())
            m.d.comb += reads[-1].en.eq(0)
        return reads, writes

    def _load(self, m: Module, loaded: Signal) -> None:
        """A row of the caches to its bank or register.

        ::

            row     0 1         2 3         …   2 d, 2 d + 1   …   2 d + 6
                    A[:, 0]     A[:, 1]     …   B              …   E, F
        """
        p = self._parameters
        row, value = self.cache.payload.row, Value.cast(self.cache.payload.data)
        column, half = row >> 1, row[0]
        m.d.comb += self.cache.ready.eq(~self._command.clear & (loaded != p.cache_rows))
        with m.If(self.cache.valid & self.cache.ready):
            m.d.sync += loaded.eq(loaded + 1)
            for number, write in enumerate(self._writes):
                start = number * self.columns
                m.d.comb += [
                    write.addr.eq(column - start),
                    write.data.eq(Cat(value, value)),
                ]
                end = min(start + self.columns, p.d)
                # The comparison with lane 0's first column would be constant.
                begun = column >= start if start else 1
                with m.If(begun & (column < end)):
                    m.d.comb += write.en.eq(Mux(half, 0b10, 0b01))
            for number, vector in enumerate(self._vectors):
                for part in range(2):
                    with m.If(row == 2 * (p.d + number) + part):
                        bits = vector.as_value()[part * p.row_bits : (part + 1) * p.row_bits]
                        m.d.sync += bits.eq(value)
            with m.If(row == p.cache_rows - 1):
                m.d.sync += Cat(*self._scalars).eq(value)

    def _narrow(self, m: Module, name: str, wide: Value) -> Any:
        """Numbers of FP32 rounded to FP16."""
        numbers = Value.cast(wide)
        width = FP32.width
        elements = len(numbers) // width
        o = Signal(data.ArrayLayout(FP16, elements), name=f"narrow_{name}")
        for k in range(elements):
            m.submodules[f"narrow_{name}_{k}"] = convert = FloatConvert(FloatConvertParameters())
            m.d.comb += [
                convert.a.eq(numbers[k * width : (k + 1) * width]),
                o[k].eq(convert.o),
            ]
        return o

    def _dots(self, m: Module) -> "Dots":
        """The products q . A[:, p] and, last in lane 0, q . D."""
        p = self._parameters
        dots = Signal(data.ArrayLayout(FP16, LANES * self.columns), reset_less=True)
        with_d = Signal(FP16, reset_less=True)
        counts = [Signal(range(self.columns + 2), name=f"dots_{n}") for n in range(LANES)]
        for number, (lane, done) in enumerate(zip(self._lanes, counts, strict=True)):
            with m.If(lane.dot_valid):
                m.d.sync += done.eq(done + 1)
                for place in range(self.columns):
                    with m.If(done == place):
                        m.d.sync += dots[number * self.columns + place].eq(lane.dot_product)
                if number == 0:
                    with m.If(done == self.columns):
                        m.d.sync += with_d.eq(lane.dot_product)
            with m.If(self.command.ready):
                m.d.sync += done.eq(0)
        found = Dots(Signal(), Signal(p.wide_row), Signal(FP32))
        m.d.comb += found.complete.eq(counts[0] == self.columns + 1)
        for k, (narrow, wide) in enumerate(
            zip([*list(dots)[: p.d], with_d], [*list(found.wide), found.wide_s], strict=True)
        ):
            m.submodules[f"widen_{k}"] = convert = FloatConvert(
                FloatConvertParameters(source="fp16", format="fp32")
            )
            m.d.comb += [convert.a.eq(narrow), wide.eq(convert.o)]
        return found

    def _walk(self, m: Module, records, changes: Signal, kept) -> "Walk":
        """The terms of all changes, one per cycle; for each column of a lane anew if `repeats`."""
        p = self._parameters
        walk = Walk(p)
        running = Signal(name="walking")
        number = Signal(range(p.updates), name="change")
        second = Signal(name="second_term")
        column = Signal(range(self.columns), name="walk_column")
        record: Any = Signal(_record_layout(), name="change_record")
        removes, more, final = Signal(), Signal(), Signal()
        mode = Signal(MODE_BITS)
        m.d.comb += [
            record.eq(Array(Value.cast(each) for each in records)[number]),
            removes.eq(~second & record.minus.any()),
            more.eq(removes & record.plus.any()),
            final.eq((number == changes - 1) & ~more),
            mode.eq(Mux(removes, record.minus, record.plus)),
            kept.addr.eq(number),
            kept.en.eq(running),
            Cat(walk.k, walk.v).eq(kept.data),
        ]
        place = Signal.like(column, name="walk_place")
        for lane, element in enumerate(walk.elements):
            start = lane * self.columns
            choices = list(walk.v)[start : start + self.columns]
            with m.Switch(place):
                for choice, value in enumerate(choices):
                    with m.Case(choice) if choice < len(choices) - 1 else m.Default():
                        m.d.comb += element.eq(value)
        for table, o in ((p.tables.slopes, walk.slope), (p.tables.intercepts, walk.intercept)):
            m.d.sync += o.eq(Array(Const(value, FP16.width) for value in table)[mode])
        m.d.sync += [
            walk.valid.eq(running),
            walk.subtract.eq(removes),
            walk.first.eq((number == 0) & ~second),
            walk.last.eq(final),
            place.eq(column),
        ]
        # Of a first change with two terms, the first one begins the sum.
        with m.If(running):
            m.d.sync += [second.eq(more), number.eq(Mux(more, number, number + 1))]
            with m.If(final):
                m.d.sync += number.eq(0)
                with m.If(walk.repeats & (column != self.columns - 1)):
                    m.d.sync += column.eq(column + 1)
                with m.Else():
                    m.d.sync += running.eq(0)
        with m.If(walk.begin):
            m.d.sync += [running.eq(1), number.eq(0), second.eq(0), column.eq(0)]
        return walk

    def _write_back(self, m: Module, writing: Signal, complete: Signal) -> Value:
        """Rows of B to F, then each column as soon as it is complete. Returns: all are written.

        A column is read from its bank, its first half goes out, the second one is held and goes out
        while the next column is read. Reads of bases go first; one that comes while the first half
        waits makes the column be read again.
        """
        p = self._parameters
        first = self._lanes[0]
        vector = Signal(range(8))  # row of B to F
        # The column that is read or written, and the one after it.
        lane, number = Signal(range(LANES)), Signal(range(self.columns + 1))
        next_lane, next_number = Signal.like(lane), Signal.like(number)
        advance = Signal()  # to the next column
        held = Signal(p.row_bits, reset_less=True)
        free, read = Signal(), Signal()
        written = self.written
        row = written.payload.row
        start = Signal(range(p.d + 1))  # the lane's first column
        column: Any = Signal(data.ArrayLayout(p.row_bits, 2))
        zero = self._command.clear & (self.terms == 0)
        for place, port in enumerate(self._reads):
            wanted = Mux(advance, next_lane, lane) == place
            m.d.comb += [
                port.en.eq(read & wanted),
                port.addr.eq(Mux(advance, next_number, number)),
            ]
            with m.If(lane == place):
                m.d.comb += [
                    column.eq(Mux(zero, 0, Value.cast(port.data))),
                    start.eq(place * self.columns),
                ]
        position = Signal(range(LANES * self.columns))
        last_lane = Signal()
        available, more = Signal(), Signal()
        m.d.comb += [
            free.eq(~written.valid | written.ready),
            position.eq(start + number),
            # The last lane has fewer columns.
            last_lane.eq(
                (lane == LANES - 1)
                | ((lane == LANES - 2) & (number >= p.d - (LANES - 1) * self.columns))
            ),
            next_lane.eq(Mux(last_lane, 0, lane + 1)),
            next_number.eq(number + last_lane),
            available.eq(writing & (number < complete) & ~first.base_wanted),
            more.eq(writing & (next_number < complete) & ~first.base_wanted),
        ]
        with m.If(written.ready):
            m.d.sync += written.valid.eq(0)
        rows = [
            bits.as_value()[part * p.row_bits : (part + 1) * p.row_bits]
            for bits in self._vectors
            for part in range(2)
        ]
        rows.append(Cat(*self._scalars))
        with m.If(advance):
            m.d.sync += [lane.eq(next_lane), number.eq(next_number)]
        with m.If(~writing):
            m.d.sync += [vector.eq(0), lane.eq(0), number.eq(0)]
        with m.Elif(free & (vector != len(rows))):
            m.d.sync += [written.valid.eq(1), row.eq(2 * p.d + vector), vector.eq(vector + 1)]
            with m.Switch(vector):
                for count, bits in enumerate(rows):
                    with m.Case(count):
                        m.d.sync += Value.cast(written.payload.data).eq(bits)
        with m.FSM(name="writer"):
            with m.State("READ"):
                with m.If((vector == len(rows)) & available):
                    m.d.comb += read.eq(1)
                    m.next = "FIRST"
            with m.State("FIRST"):
                with m.If(free):
                    m.d.sync += [
                        written.valid.eq(1),
                        row.eq(Cat(0, position)),
                        Value.cast(written.payload.data).eq(column[0]),
                        held.eq(column[1]),
                    ]
                    m.next = "SECOND"
                with m.Elif(first.base_wanted):
                    m.next = "READ"
            with m.State("SECOND"):
                with m.If(free):
                    m.d.sync += [
                        written.valid.eq(1),
                        row.eq(Cat(1, position)),
                        Value.cast(written.payload.data).eq(held),
                    ]
                    m.d.comb += advance.eq(1)
                    m.next = "READ"
                    with m.If(more):
                        m.d.comb += read.eq(1)
                        m.next = "FIRST"
        return (number == self.columns) & (vector == len(rows)) & free

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


class Dots:
    """Dot products of a head: all are there; those with A and with D, in FP32."""

    def __init__(self, complete: Signal, wide, wide_s):
        self.complete, self.wide, self.wide_s = complete, wide, wide_s


class Walk:
    """One term of a position that changes its mode, per cycle.

    begin, repeats
        Inputs: begin; go on with the next column after the last term.
    subtract
        The term is removed. ``first``, ``last`` of a column.
    slope, intercept
        a and b of the term's mode.
    k, v, elements
        The position's rows, and V's element of each lane's column.
    """

    def __init__(self, p: LadTileParameters):
        self.begin, self.repeats = Signal(name="walk_begin"), Signal(name="walk_repeats")
        self.valid, self.subtract = Signal(name="term_valid"), Signal(name="term_subtract")
        self.first, self.last = Signal(name="term_first"), Signal(name="term_last")
        self.slope, self.intercept = Signal(FP16, name="slope"), Signal(FP16, name="intercept")
        self.k, self.v = Signal(p.row, name="term_k"), Signal(p.row, name="term_v")
        self.elements = [Signal(FP16, name=f"element_{lane}") for lane in range(LANES)]


def attend_layout(p: LadTileParameters) -> data.StructLayout:
    """A head: ``q``; ``m``; ``clear``: its caches are zero; ``invalid``: report it as such."""
    return data.StructLayout({"q": p.row, "m": FP16, "clear": FLAG, "invalid": FLAG})


def attended_layout(p: LadTileParameters) -> data.StructLayout:
    """A head's output ``o``; ``invalid``: it does not count."""
    return data.StructLayout({"o": p.row, "invalid": FLAG})


def _record_layout() -> data.StructLayout:
    """A change of mode; 0: no term."""
    return data.StructLayout({"minus": index(MODE_BITS), "plus": index(MODE_BITS)})
