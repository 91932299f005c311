"""Rows of FP16 numbers to the levels of UniCAIM's cells: rotated, centred, divided."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.unicaim.array import ArrayOp
from hw.unicaim.level_parameters import ALIGNED, LevelConverterParameters, RowKind


class LevelConverter(Component[LevelConverterParameters]):
    """Convert keys and queries to levels, and send them on an array's bit lines.

        level[c] = clip(round((T x - T mean)[c] / divisor))        T x = H (s * x), or x

    H is the Hadamard matrix in its natural order, of +1 and -1, s random signs; so the length of T
    x is the length of x times the root of d, and the divisor is to be the root of d times what a
    level is worth. The transform changes no inner product. It spreads the few large elements of a
    key over all cells, whose levels then are used better. The mean key, which is taken off all keys
    of a context and not off queries, adds the same to the scores of all rows and so keeps their
    order. Both are this project's additions; without them (`rotate` off, a mean of zeros) levels
    are the paper's.

    ::

        x ─→ align ─→ ± ─→ butterflies, log2 d times ─→ - mean ─→ digits ─→ o
                                                         ↑
                                          means of all contexts

    An element is aligned to units of the divisor's last bit, 16 bits with its sign, rounded
    towards zero and saturated; so an element may be up to 32 divisors. Sums are exact. The quotient
    is found by successive approximation, a digit a cycle, the highest first: that is also the
    order of a query's planes. It is rounded to the nearest level, halves away from zero, and
    clipped to the cells' levels. The error before rounding is below d / 1024 levels; infinities
    saturate and a NaN counts as 0.

    Example with d = 2, no mean, signs +1, a divisor of 2 and 3-bit keys: x = (5, 1) becomes (6, 4),
    then the levels 3 and 2.

    Latency: log2 d + 3 cycles from a query to its first plane (3 without `rotate`), and to a key's
    beat log2 d + 2 + key_bits. Throughput: a row in log2 d + 2 cycles and one for each bit; one set
    of d adders serves all ranks, because an array takes a key and its queries in many more cycles.
    With the output stalled, the next row waits before its division. All outputs depend on registers
    only, `i.ready` too.

    A row of kind CLEAR marks all rows of its context unused; what else it says has no effect. A
    mean has no output. Before a context's first mean, its keys are not defined.

    Paper: III-B2 for levels and planes.

    Examples
    --------
    >>> from hw.unicaim.level_converter import LevelConverterParameters, RowKind
    >>> parameters = LevelConverterParameters(d=64, key_bits=3, query_bits=1)
    >>> parameters.latency, parameters.row_cycles(RowKind.KEY), parameters.sum_bits
    (9, 11, 22)
    """

    summary = "Rows of FP16 numbers to the cells' levels: rotated, centred, divided"
    source = "UniCAIM, section III-B2; the rotation is this project's own"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Rows."),
            "o": stream_out(
                p.array.input_layout,
                "For a key a beat that writes it, for a query one for each plane, for CLEAR one.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, i = self.parameters, self.i.payload
        a = p.array
        digits = max(a.key_bits, a.query_bits)

        kind = Signal(2, reset_less=True)
        context = Signal(range(max(2, a.contexts)))
        accept, rank, subtract, digit, free = (
            Signal(name=name) for name in ("accept", "rank", "subtract", "digit", "free")
        )
        held = Signal.like(context, reset_less=True)
        m.d.comb += [
            accept.eq(self.i.valid & self.i.ready),
            free.eq(~self.o.valid | self.o.ready),
            context.eq(Mux(self.i.ready, i.context, held) if a.contexts > 1 else 0),
        ]
        m.d.sync += held.eq(context)
        with m.If(accept):
            m.d.sync += kind.eq(Value.cast(i.kind))
        divisor = self._divisor(m, accept, context)

        # The mean of the context, from the cycle after the row is accepted.
        width = p.sum_bits
        m.submodules.means = means = memory.Memory(
            shape=unsigned(a.d * width), depth=max(2, a.contexts), init=[]
        )
        write, read = means.write_port(), means.read_port()
        m.d.comb += [write.addr.eq(context), read.addr.eq(context), read.en.eq(1)]

        is_key = Signal()
        remaining = Signal(digits, reset_less=True)  # a bit for each digit still to find
        trial = Signal(FP16.precision + digits, reset_less=True)  # a digit's weight, doubled
        m.d.comb += is_key.eq(kind[0])  # or CLEAR, which takes as long
        lanes = self._lanes(m, read.data, divisor)
        for lane in lanes:
            m.d.comb += [
                lane.accept.eq(accept),
                lane.rank.eq(rank),
                lane.subtract.eq(subtract),
                lane.digit.eq(digit),
                lane.is_key.eq(is_key),
                lane.trial.eq(trial),
            ]
        m.d.comb += write.data.eq(Cat(lane.sum for lane in lanes))
        self._convert(m, kind, divisor, free, remaining, trial, rank, subtract, digit, write.en)
        self._output(m, kind, held, remaining[0], free, subtract, digit)
        return m

    def _lanes(self, m: Module, means: Value, divisor: Signal) -> list["LevelLane"]:
        """The elements' lanes, with the butterflies between them."""
        p, i, o = self.parameters, self.i.payload, self.o.payload
        d, width = p.array.d, p.sum_bits
        lanes = [LevelLane(p, bool(p.signs >> n & 1)) for n in range(d)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
            first, second = lanes[number // 2], lanes[number // 2 + d // 2]
            total = first.sum + second.sum if number % 2 == 0 else first.sum - second.sum
            mean = means[number * width : (number + 1) * width]
            m.d.comb += [
                lane.x.eq(i.x[number]),
                lane.divisor.eq(divisor),
                lane.butterfly.eq(total),
                # Queries are not centred.
                lane.mean.eq((mean & lane.is_key.replicate(width)).as_signed()),
                o.levels[number].eq(lane.level),
            ]
        return lanes

    def _convert(
        self,
        m: Module,
        kind: Signal,
        divisor: Signal,
        free: Signal,
        remaining: Signal,
        trial: Signal,
        rank: Signal,
        subtract: Signal,
        digit: Signal,
        store: Signal,
    ) -> None:
        """A row's way: its ranks, its mean, its digits. One row at a time."""
        p, a = self.parameters, self.parameters.array
        is_key = kind[0]
        ranks_left = Signal(range(max(2, p.ranks + 1)), reset_less=True)
        mantissa = Cat(divisor[: FP16.mantissa], 1)
        after_ranks = "SUBTRACT"
        with m.FSM():
            with m.State("IDLE"):
                # A row is aligned in the cycle in which it is accepted.
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += ranks_left.eq(p.ranks)
                with m.If(self.i.valid):
                    m.next = "RANKS" if p.ranks else after_ranks
            if p.ranks:
                with m.State("RANKS"):
                    # All butterflies of a rank in a cycle; after the last one the row is rotated.
                    m.d.comb += rank.eq(1)
                    m.d.sync += ranks_left.eq(ranks_left - 1)
                    with m.If(ranks_left == 1):
                        m.next = after_ranks
            with m.State("SUBTRACT"):
                # A mean is stored, and ends here; of other rows the mean is taken off.
                bits = Mux(is_key, 1 << a.key_bits - 1, 1 << a.query_bits - 1)
                m.d.sync += remaining.eq(bits)
                m.d.sync += trial.eq(Mux(is_key, mantissa << a.key_bits, mantissa << a.query_bits))
                with m.If(kind == RowKind.MEAN):
                    m.d.comb += store.eq(1)
                    m.next = "IDLE"
                with m.Elif(free):
                    m.d.comb += subtract.eq(1)
                    m.next = "DIGITS"
            with m.State("DIGITS"):
                # A digit a cycle, the highest first, while the output is free.
                with m.If(free):
                    m.d.comb += digit.eq(1)
                    m.d.sync += [remaining.eq(remaining >> 1), trial.eq(trial >> 1)]
                    with m.If(remaining[0]):
                        m.next = "IDLE"

    def _output(
        self,
        m: Module,
        kind: Signal,
        context: Signal,
        last: Value,
        free: Signal,
        subtract: Signal,
        digit: Signal,
    ) -> None:
        """A beat for each plane of a query; for a key one, with its last digit."""
        o, is_key = self.o.payload, kind[0]
        row = Signal.like(Value.cast(self.i.payload.row), reset_less=True)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += row.eq(Value.cast(self.i.payload.row))
        with m.If(free):
            m.d.sync += self.o.valid.eq(digit & (~is_key | last))
        with m.If(subtract):
            m.d.sync += [
                o.op.eq(Mux(is_key, Mux(kind[1], ArrayOp.CLEAR, ArrayOp.WRITE), ArrayOp.QUERY)),
                Value.cast(o.row).eq(row),
            ]
            if self.parameters.array.contexts > 1:
                m.d.sync += o.context.eq(context)
        with m.If(digit):
            m.d.sync += o.last.eq(last & ~is_key)

    def _divisor(self, m: Module, accept: Signal, context: Signal) -> Signal:
        """The row's divisor: with a mean it is kept for the context's keys."""
        i = self.i.payload
        contexts = self.parameters.array.contexts
        stored = Array(
            Signal(FP16.width - 1, name=f"divisor_{number}", reset_less=True)
            for number in range(contexts)
        )
        sent = Signal(FP16.width - 1)
        current = Signal(FP16.width - 1, reset_less=True)
        divisor = Signal(FP16.width - 1)
        m.d.comb += [
            sent.eq(i.divisor),
            divisor.eq(Mux(accept, Mux(i.kind[0], stored[context], sent), current)),
        ]
        m.d.sync += current.eq(divisor)
        for number, kept in enumerate(stored):
            with m.If(accept & (i.kind == RowKind.MEAN) & (context == number)):
                m.d.sync += kept.eq(sent)
        return divisor


class LevelLane(Component[LevelConverterParameters]):
    """One element of a row."""

    def __init__(self, parameters: LevelConverterParameters, negated: bool):
        self._negated = negated
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        a, width = p.array, p.sum_bits
        digits = max(a.key_bits, a.query_bits)
        return {
            "accept": wire_in(1, "Take `x`, in units of the last bit of `divisor`."),
            "x": wire_in(FP16),
            "divisor": wire_in(FP16.width - 1, "FP16 without its sign."),
            "rank": wire_in(1, "Take `butterfly`."),
            "butterfly": wire_in(signed(width)),
            "subtract": wire_in(1, "Take off `mean`; the difference is what digits are found of."),
            "mean": wire_in(signed(width)),
            "digit": wire_in(1, "Find the digit of weight `trial` / 2."),
            "is_key": wire_in(1, "Collect digits in the level; else it is the last digit."),
            "trial": wire_in(FP16.precision + digits),
            "sum": wire_out(signed(width), "From a register."),
            "level": wire_out(signed(a.key_bits + 1)),
        }

    def elaborate(self, platform):
        m = Module()
        p, bits = self.parameters, self.parameters.array.key_bits

        # | mantissa | 4 zeros | shifted right by 4 plus the divisor's exponent less the element's;
        # by less than 0, it does not fit.
        size = ALIGNED - 1
        top = (1 << FP16.exponent) - 1
        mantissa, field = self.x[: FP16.mantissa], self.x[FP16.mantissa : -1]
        normal = field.any()
        special = field == top
        large = Signal()
        shift = Signal(signed(FP16.exponent + 2))
        shifted = Signal(size)
        magnitude = Signal(size)
        m.d.comb += [
            shift.eq(self.divisor[FP16.mantissa :] - (field | ~normal) + 4),
            large.eq((shift < 0) | special),
            shifted.eq((Cat(mantissa, normal) << 4) >> Mux(shift < 0, 0, shift.as_unsigned())),
            magnitude.eq(Mux(large, (1 << size) - 1, shifted)),
        ]
        present = ~(special & mantissa.any())  # not NaN
        negative = self.x[-1] ^ int(self._negated)
        with m.If(self.accept):
            aligned = (magnitude ^ negative.replicate(size)) + negative
            signed_value = Cat(aligned[:size], negative & magnitude.any())
            m.d.sync += self.sum.eq(Mux(present, signed_value.as_signed(), 0))
        if p.rotate:
            with m.If(self.rank):
                m.d.sync += self.sum.eq(self.butterfly)

        # The difference's magnitude doubled, plus the divisor: a digit is 1 if the rest is at
        # least its weight times two divisors.
        width = p.sum_bits
        difference = Signal(signed(width + 1))
        rest = Signal(width + 2, reset_less=True)
        below = Signal(reset_less=True)  # the difference is negative
        found = Signal()
        digits = Signal(bits, reset_less=True)
        m.d.comb += [
            # Centred keys: a common offset of all keys changes no order of scores, but costs
            # levels.
            difference.eq(self.sum - self.mean),
            found.eq(rest >= self.trial),
        ]
        minus = difference[-1]
        with m.If(self.subtract):
            doubled = Cat(minus, difference[:-1] ^ minus.replicate(width))  # 2 |difference| - 1
            divisor = Cat(self.divisor[: FP16.mantissa], 1)
            m.d.sync += [rest.eq(doubled + divisor + minus), below.eq(minus), digits.eq(0)]
        with m.If(self.digit):
            m.d.sync += [
                rest.eq(Mux(found, rest - self.trial, rest)),
                digits.eq(Mux(self.is_key, Cat(found, digits[:-1]), found)),
            ]
        level = Signal(bits)  # at most 2^(bits - 1)
        limit = 1 << bits - 1
        m.d.comb += [
            # The highest digit is the largest level, whatever follows: quantisation saturates.
            level.eq(Mux(digits[-1], limit, digits)),
            self.level.eq(Mux(below, -level, level)),
        ]
        return m
