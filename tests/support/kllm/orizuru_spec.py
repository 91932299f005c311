"""Specification of the Orizuru engine for formal proofs: a cycle-accurate black box.

The order of floating-point numbers is stated here by signs and magnitudes, apart from the order
keys of the hardware. The specification keeps the raw values of the vector and, for each end, the
set of those not popped yet; it picks the next pair by definition, with all comparisons made, and
expects it at the output in the cycle that the engine's documentation promises.
"""

from collections.abc import Callable

from amaranth.hdl import Assert, Cat, Const, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.bits.order_key import FP16, NAN_KEY, FloatFormat, is_nan_key, to_key
from sim.checks.formal.specs import Internals, surround

ENDS = ("max", "min")


def is_nan(bits, float_format: FloatFormat = FP16):
    """Exponent all ones, fraction not zero."""
    fraction = bits[: float_format.mantissa]
    exponent = bits[float_format.mantissa : float_format.width - 1]
    return exponent.all() & fraction.any()


def is_zero(bits):
    """Of either sign."""
    return ~bits[:-1].any()


def less(a, b):
    """IEEE 754's a < b, if neither is a NaN: by sign, then by magnitude; zeros are equal."""
    a_negative, b_negative = a[-1], b[-1]
    by_magnitude = Mux(a_negative, a[:-1] > b[:-1], a[:-1] < b[:-1])
    return ~(is_zero(a) & is_zero(b)) & Mux(a_negative ^ b_negative, a_negative, by_magnitude)


def canonical(bits, float_format: FloatFormat = FP16):
    """The same value with a positive zero and the one NaN whose fraction is its top bit alone."""
    exponent = ((1 << float_format.exponent) - 1) << float_format.mantissa
    nan = Const(exponent | 1 << (float_format.mantissa - 1), float_format.width)
    return Mux(is_nan(bits, float_format), nan, Mux(is_zero(bits), 0, bits))


def before(a, b, end: str, float_format: FloatFormat = FP16):
    """Whether value a must be popped before value b wherever they stand: a number before a NaN."""
    a_nan, b_nan = is_nan(a, float_format), is_nan(b, float_format)
    numbers = less(b, a) if end == "max" else less(a, b)
    return ~a_nan & (b_nan | numbers)


class OrizuruSpec(Elaboratable):
    """Every output pair of `dut` is right and in its cycle, for any inputs and stalls.

    A vector of B beats with k > 0 makes the engine refuse input for depth cycles and one more per
    pair; a pair is made in each cycle in which the two-entry output buffer has room, and offered in
    the next. That is the engine's documented timing, and it says that no pair is lost, repeated or
    stuck and that the engine takes the next vector afterwards.

    Nothing here looks into the engine but `invariant`.

    Parameters
    ----------
    dut : :class:`hw.kllm.orizuru.Orizuru`
    invariant : callable, optional
        ``invariant(m, spec, internals)`` adds assertions that tie the engine's registers to this
        specification's, without which an induction does not close.
    only : str, optional
        Assert, of the claims on the engine's ports, the one with this message alone.

    Attributes
    ----------
    dut : :class:`hw.kllm.orizuru.Orizuru`
        As given.
    values, kept : list of Signal, Signal
        Bits of the vector as they came in, and which of them belong to it.
    left : dict of str to Signal
        For each end, the values not popped yet.
    precedes : dict of str to list of lists of Signal
        ``precedes[end][i][j]``: value i comes before value j at that end.
    loading, beat, fresh : Signal
        Input is taken; the number of the next beat; it begins a vector.
    pairs, wait : Signal
        Pairs still to make, and cycles before the first of them.
    invalid : Signal
        A value kept is NaN.
    made, queue : Signal, list of data.View
        Number of pairs that are made and not output, and these pairs, oldest first.
    """

    def __init__(self, dut, invariant: Callable | None = None, only: str | None = None):
        self.dut, self._invariant, self._only = dut, invariant, only
        p = dut.parameters
        self.values = [Signal(FP16.width, name=f"value_{i}") for i in range(p.n)]
        self.kept = Signal(p.n)
        self.left = {end: Signal(p.n, name=f"left_{end}") for end in ENDS}
        self.precedes = {
            end: [[Signal(name=f"{end}_{i}_before_{j}") for j in range(p.n)] for i in range(p.n)]
            for end in ENDS
        }
        self.loading = Signal(init=1)
        self.beat = Signal(range(p.beats))
        self.fresh = Signal(init=1)
        self.pairs = Signal(range(p.k + 1))
        self.wait = Signal(range(p.depth + 1))
        self.invalid = Signal()
        self.made = Signal(range(3))
        self.queue = [Signal(p.output_layout, name=f"queue_{i}") for i in range(2)]

    def elaborate(self, platform):
        m = Module()
        first, internals = surround(m, self.dut)

        taken, make, left = Signal(), Signal(), Signal()
        o = self.dut.o
        m.d.comb += [
            taken.eq(self.dut.i.valid & self.loading & ~first),
            make.eq(~self.loading & (self.wait == 0) & (self.made < 2) & ~first),
            left.eq((self.made != 0) & o.ready & ~first),
        ]
        self._order(m)
        expected = self._expected(m)
        self._load(m, taken)
        self._pop(m, make)
        self._queue(m, make, left, expected)
        with m.If(~first):
            self._check(m)
            if self._invariant is not None:
                self._invariant(m, self, internals)
        self._cover(m, first, make, left)
        return m

    def _order(self, m):
        """Ties go to the lower index: j precedes a lower i only if it must."""
        for end in ENDS:
            for i, row in enumerate(self.precedes[end]):
                for j in range(i + 1, len(row)):
                    later = self.precedes[end][j][i]
                    m.d.comb += [
                        later.eq(before(self.values[j], self.values[i], end)),
                        row[j].eq(~later),
                    ]

    def _expected(self, m):
        """The next pair: at each end the remaining value that precedes all others."""
        p = self.dut.parameters
        expected = Signal(p.output_layout)
        self._best = {end: Signal(p.n, name=f"best_{end}") for end in ENDS}
        for end in ENDS:
            left, best, pair = self.left[end], self._best[end], getattr(expected, end)
            for i, row in enumerate(self.precedes[end]):
                others = [~left[j] | row[j] for j in range(p.n) if j != i]
                m.d.comb += best[i].eq(left[i] & Cat(others).all())
                value = canonical(self.values[i])
                with m.If(best[i]):
                    m.d.comb += [pair.index.eq(i), pair.value.eq(value)]
        m.d.comb += [
            expected.present.eq(self.left["max"].any()),
            expected.invalid.eq(self.invalid),
            expected.last.eq(self.pairs == 1),
        ]
        return expected

    def _load(self, m, taken):
        p, vector = self.dut.parameters, self.dut.i.payload
        end, nans = Signal(), Signal(p.n)
        m.d.comb += end.eq(vector.last | (self.beat == p.beats - 1))
        for i in range(p.n):
            beat, lane = divmod(i, p.lanes)
            value = vector.values[lane]
            with m.If(taken & (self.beat == beat)):
                nan = is_nan(value)
                m.d.comb += nans[i].eq(vector.keep[lane] & nan)
                m.d.sync += self.values[i].eq(value)
                for belongs in (self.kept, *self.left.values()):
                    m.d.sync += belongs[i].eq(vector.keep[lane])
            with m.Elif(taken & self.fresh):
                for belongs in (self.kept, *self.left.values()):
                    m.d.sync += belongs[i].eq(0)
        with m.If(taken):
            m.d.sync += [
                self.invalid.eq(nans.any() | (self.invalid & ~self.fresh)),
                self.beat.eq(self.beat + 1),
                self.fresh.eq(0),
            ]
            with m.If(end):
                m.d.sync += [self.beat.eq(0), self.fresh.eq(1), self.pairs.eq(vector.k)]
                with m.If(vector.k != 0):
                    m.d.sync += [self.loading.eq(0), self.wait.eq(p.depth)]

    def _pop(self, m, make):
        with m.If(self.wait != 0):
            m.d.sync += self.wait.eq(self.wait - 1)
        with m.If(make):
            m.d.sync += self.pairs.eq(self.pairs - 1)
            for end in ENDS:
                m.d.sync += self.left[end].eq(self.left[end] & ~self._best[end])
            with m.If(self.pairs == 1):
                m.d.sync += self.loading.eq(1)

    def _queue(self, m, make, left, expected):
        oldest, newest = self.queue
        m.d.sync += self.made.eq(self.made + make - left)
        with m.If(left):
            m.d.sync += oldest.eq(newest)
        with m.If(make):
            with m.If(self.made - left == 0):
                m.d.sync += oldest.eq(expected)
            with m.Else():
                m.d.sync += newest.eq(expected)

    def _check(self, m):
        i, o = self.dut.i, self.dut.o
        got, want = o.payload, self.queue[0]
        shown = o.valid & (self.made != 0)
        claims = {
            "refused while a vector is loaded": i.ready | ~self.loading,
            "accepted while a vector is drained": ~i.ready | self.loading,
            "a pair is missing": o.valid | (self.made == 0),
            "a pair from nowhere": ~o.valid | (self.made != 0),
            "not the largest value left": ~shown | (got.max.index == want.max.index),
            "not the smallest value left": ~shown | (got.min.index == want.min.index),
            "wrong bits of the largest": ~shown | (got.max.value == want.max.value),
            "wrong bits of the smallest": ~shown | (got.min.value == want.min.value),
            "wrong about values being left": ~shown | (got.present == want.present),
            "wrong about a NaN": ~shown | (got.invalid == want.invalid),
            "wrong about the last pair": ~shown | (got.last == want.last),
        }
        for claim, holds in claims.items():
            if self._only in (None, claim):
                m.d.comb += Assert(holds, claim)
        # The definition picks one value at each end for as long as there is one. Both ends start
        # with the same values, so they run out of them together.
        for end in ENDS:
            best, left = self._best[end], self.left[end]
            alone = ~(best & (best - 1)[: len(best)]).any()
            m.d.comb += Assert(alone & (best.any() == left.any()), "the specification is ambiguous")

    def _cover(self, m, first, make, left):
        p, o = self.dut.parameters, self.dut.o
        # Pairs made of this vector while its values last, and of the vector before.
        popped, previous = Signal(range(p.n + 1)), Signal(range(p.n + 1))
        stalled, several = Signal(), Signal()
        with m.If(make & self.left["max"].any()):
            m.d.sync += popped.eq(popped + 1)
        with m.If(make & (self.pairs == 1)):
            m.d.sync += [previous.eq(popped + self.left["max"].any()), popped.eq(0)]
        m.d.sync += stalled.eq((stalled | (o.valid & ~o.ready)) & ~first)
        m.d.sync += several.eq((several | (left & o.payload.last)) & ~first)
        oldest = self.queue[0]
        m.d.comb += [
            Cover(~first & self.loading & (previous == p.n), "every value popped at both ends"),
            Cover(left & ~oldest.present, "values used up"),
            Cover(left & oldest.present & oldest.invalid, "a NaN"),
            Cover(left & several & stalled & oldest.last & oldest.present, "a second vector"),
            Cover(left & oldest.present & (oldest.max.value == 0), "a zero leaves"),
        ]
        if p.n > 1:
            infinite = oldest.max.value == FP16.infinity
            m.d.comb += Cover(left & infinite & (oldest.min.index == p.n - 1), "infinity leaves")
        if p.beats > 1:
            short = self.loading & ~self.fresh & (self.beat == 1) & (previous == p.n)
            m.d.comb += Cover(short, "a vector begins after a full one")


def invariant(m, spec: OrizuruSpec, internals: Internals) -> None:
    """How the engine holds the specification's values, masks and pairs.

    A unit's head and the units below it hold disjoint sets of values; together they are the
    remaining values, and the head's key is the largest. Order keys appear here because the leaves
    store them; the specification's claims on the outputs do not depend on them.
    """
    p, draining = spec.dut.parameters, ~spec.loading
    m.d.comb += [
        Assert(spec.fresh == (spec.beat == 0)),
        Assert(spec.beat < p.beats),
        Assert(spec.made <= 2),
        Assert(spec.wait <= Mux(draining, p.depth, 0)),
        Assert(spec.loading | (spec.fresh & (spec.pairs != 0))),
        Assert(internals.signal("fsm_state") == Mux(spec.loading, 0, Mux(spec.wait != 0, 1, 2))),
        Assert(internals.signal("fill") == Cat(spec.wait == p.depth - i for i in range(p.depth))),
        Assert(internals.signal("beat") == spec.beat),
        Assert(internals.signal("first") == spec.fresh),
        Assert(spec.loading | (internals.signal("pairs_left") == spec.pairs)),
        Assert((spec.loading & spec.fresh) | (internals.signal("invalid") == spec.invalid)),
        Assert(internals.signal("output.ready") == (spec.made < 2)),
        Assert((spec.made < 2) | (internals.signal("output.skid") == spec.queue[1].as_value())),
    ]
    for end in ENDS:
        m.d.comb += Assert(~(spec.left[end] & ~spec.kept).any())

    keys = {end: _keys(m, spec, internals, end) for end in ENDS}
    for end in ENDS:
        below, entries = _leaf_masks(m, spec, internals, end), p.radix
        for level, units in enumerate(p.units):
            path = f"{end}_{level}_merge_{{}}.head" if level else f"leaf_{{}}.head_{end}"
            loaded = Signal(name=f"{end}_{level}_loaded")
            m.d.comb += loaded.eq(draining & (spec.wait < p.depth - level))
            held = []
            for number in range(units):
                head, base = internals.signal(path.format(number)), number * entries
                under = below[base : base + entries]
                held += _head(m, spec, head, end, loaded, base, under, keys[end])
            below, entries = held, entries * p.radix
        with m.If(draining):
            m.d.comb += Assert(Cat(below) == spec.left[end])


def _keys(m, spec, internals, end):
    """The leaves' order keys belong to the values; returns each value's key at that end.

    That keys compare as values do follows; it is asserted as a lemma, so that the rest of the
    invariant is about unsigned integers only.
    """
    p = spec.dut.parameters
    keys = []
    for i, value in enumerate(spec.values):
        unit, slot = divmod(i, p.radix)
        key = internals.signal(f"leaf_{unit}.key_{slot}")
        m.d.comb += Assert(~spec.kept[i] | (key == to_key(value)))
        if end == "min":
            key = Mux(is_nan_key(key), NAN_KEY, ~key)
        keys.append(key)
    for i in range(p.n):
        for j in range(i + 1, p.n):
            with m.If(spec.kept[i] & spec.kept[j]):
                m.d.comb += Assert(spec.precedes[end][i][j] == (keys[i] >= keys[j]))
    return keys


def _leaf_masks(m, spec, internals, end):
    """Values still in the leaves."""
    p = spec.dut.parameters
    masks = Cat(~internals.signal(f"leaf_{unit}.removed_{end}") for unit in range(p.units[0]))
    there = Signal(p.n, name=f"{end}_in_leaves")
    m.d.comb += there.eq(masks)
    with m.If(~spec.fresh | (~spec.loading & (spec.wait == p.depth))):
        m.d.comb += [Assert(there == spec.left[end]), Assert(there == spec.kept)]
    return list(there)


def _head(m, spec, head, end, loaded, base, below, keys):
    """Assertions on one unit's head; returns which values are in the head or below it."""
    best, index = head[: FP16.width], head[FP16.width :]
    held = Signal(len(below), name=f"{end}_{base}_held")
    m.d.comb += held.eq(Cat(below))
    with m.If(loaded):
        with m.If(best == 0):
            m.d.comb += [Assert(~Cat(below).any()), Assert(index == 0)]
        with m.Else():
            m.d.comb += Assert(index < len(below))
            for i in range(len(below)):
                with m.If(index == i):
                    m.d.comb += [
                        held[i].eq(1),
                        Assert(spec.kept[base + i]),
                        Assert(~below[i]),
                        Assert(best == keys[base + i]),
                    ]
                    for j in range(len(below)):
                        if j != i:
                            other = keys[base + j]
                            beaten = (best >= other) if i < j else (best > other)
                            m.d.comb += Assert(~below[j] | beaten)
    return list(held)
