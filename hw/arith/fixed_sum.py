"""Exact sums of floating-point terms: fixed point, carry-save adders, one rounding at the end."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.bits.one_hot_shift import FINE, WIDTH, merged, on_multipliers, one_hot, products
from hw.arith.fixed_to_float import normalise
from hw.arith.float_format import FP16, FP32
from hw.component import Component, on_fpga
from hw.layout import FLAG
from hw.ports import Ports, stream_out, wire_in, wire_out
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters

LARGEST = 2047 << 29
"""The largest FP16 number in units of the smallest, 2^-24."""

SUM = data.StructLayout({"sum": FP32, "invalid": FLAG})


def significand(m: Module, bits: Value, name: str) -> tuple[Signal, Signal, Signal]:
    """An FP16 number as digits 2^(shift - 25); returns (digits, shift, infinite or NaN).

    The shift is 1 to 30, and 31 if the number is infinite or NaN. The sign is the number's top bit.
    """
    digits, shift = Signal(FP16.precision, name=f"{name}_digits"), Signal(5, name=f"{name}_shift")
    special = Signal(name=f"{name}_special")
    field = bits[FP16.mantissa : -1]
    hidden = field.any()
    m.d.comb += [
        digits.eq(Cat(bits[: FP16.mantissa], hidden)),
        shift.eq(Cat(field[0] | ~hidden, field[1:])),  # a subnormal has the smallest exponent
        special.eq(field.all()),
    ]
    return digits, shift, special


@dataclasses.dataclass(frozen=True)
class FixedSumParameters:
    """
    terms
        Terms in a group.
    magnitude, shift
        Widths of a term's integer and of its left shift.
    even
        Smallest shift of a term: the lowest `even` bits of a sum are always zero, and not built.
    width
        Bits of the sum above those, sign included.
    fraction
        Fraction bits among them.
    groups
        Smallest number of groups of a column for which the full rate is wanted.
    latency
        Cycles from acceptance of a column's last group to a valid sum at the output.
    """

    terms: int
    magnitude: int
    shift: int
    even: int
    width: int
    fraction: int
    groups: int
    latency: int

    LATENCY = 4
    """Cycles from a column's last group to its sum at the output."""

    @property
    def columns(self) -> int:
        """Columns between acceptance and output at full rate: credits, and entries of the queue.

        A credit returns after `latency` + 1 cycles, in which columns of `groups` cycles each are
        accepted; one more is for the column that is being accepted.
        """
        return 1 + -(-(self.latency + 1) // self.groups)


class FixedSum(Component[FixedSumParameters]):
    """sum = round32(sum over a column's groups and a group's terms of ± magnitude 2^shift).

    ::

        terms ─→ shift, invert if negative ─→ carry-save ─→ 2 rows ─→ accumulator ─┐
            FP32 ←─ queue ←─ round ←─ normalise ←──────────── at the column's end ─┘

        shifted term    | 0 … | magnitude << shift | 0 … 0 |
        signed          | ~sign | inverted if negative     |      less 2^top, for all terms at once
        sum             | width bits                       | even | not built

    The sum is an integer in two's complement, so it is exact and independent of the order; it is
    rounded once, to nearest even. A zero sum is +0. A column with `invalid` in one of its groups
    gives the quiet NaN. A negative term is inverted, and one is added to it, which needs no adder:
    the lowest carry of every carry-save adder is free. An FPGA, where a row of full adders takes
    twice the LUTs of a carry chain, has a tree of adders instead, and one row.

    Handshake: none on the terms, and nothing in the pipeline stalls. A parent accepts the last
    group of a column only while `available` is high, and raises `take` in the same cycle; the queue
    then has an entry for the sum. Throughput: one group per cycle. Latency: LATENCY cycles from a
    column's last group to its sum at the output.
    """

    def ports(self) -> Ports:
        p = self.parameters
        term = data.StructLayout({"magnitude": p.magnitude, "shift": p.shift, "sign": FLAG})
        return {
            "take": wire_in(
                1, "The parent accepts the last group of a column, which may arrive here later."
            ),
            "available": wire_out(1, "`take` is allowed. Depends on registers only."),
            "valid": wire_in(1, "`terms` is valid."),
            "last": wire_in(1, "It is the last group of its column."),
            "invalid": wire_in(1, "It contains an infinity or a NaN."),
            "terms": wire_in(data.ArrayLayout(term, p.terms), "The group."),
            "o": stream_out(SUM),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.credits = credits = CreditCounter(CreditCounterParameters(p.columns))
        m.submodules.queue = queue = Queue(QueueParameters(SUM.size, p.columns), shape=SUM)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        m.d.comb += [
            self.available.eq(credits.available),
            credits.take.eq(self.take),
            credits.give.eq(self.o.valid & self.o.ready),
        ]

        # Stage 1: a group's terms, added to two rows and two single bits.
        control = Cat(self.valid, self.last, self.invalid)
        terms, ones = self._summed(m, platform) if on_fpga(platform) else self._added(m)
        addends = [_register(m, f"row_{n}", row) for n, row in enumerate(terms)]
        carries_in = _register(m, "ones", Cat(ones))
        valid, last, invalid = _register(m, "control_rows", control, reset=True)

        # Stage 2: accumulator; `first` group of a column: start from zero.
        first = Signal(init=1)
        total = Signal(p.width, reset_less=True)
        invalid_sum = Signal()
        before = Signal(p.width)
        m.d.comb += before.eq(total & ~first.replicate(p.width))
        if len(addends) == 1:
            after = _add(before, addends[0].as_signed(), carries_in)
        else:
            x, y = addends
            partial, carries = carry_save(m, before, x, y, p.width, "total")
            after = partial + Cat(carries_in[0], carries) + carries_in[1]
        with m.If(valid):
            m.d.sync += [
                first.eq(last),
                total.eq(after),
                invalid_sum.eq(invalid | (invalid_sum & ~first)),
            ]
        done = _register(m, "done", valid & last, reset=True)
        # Stage 3: normalise. Stage 4: round, into the queue.
        rounding = self._normalised(m, total)
        registers = {name: _register(m, f"{name}_normal", v) for name, v in rounding.items()}
        rounds, invalid_result = _register(m, "control_normal", Cat(done, invalid_sum), reset=True)
        m.d.comb += [
            queue.i.valid.eq(rounds),
            queue.i.payload.sum.eq(self._rounded(m, invalid_result, **registers)),
            queue.i.payload.invalid.eq(invalid_result),
        ]
        return m

    def _added(self, m: Module) -> tuple[list[Value], list[Value]]:
        """Two numbers and two bits that add up to a group's terms, modulo 2^width."""
        p = self.parameters
        top = self._top
        waiting: list[Value] = []
        ones: list[Value] = []
        # A negative term is its complement and a one, which waits for a free carry-in.
        for number, term in enumerate(self.terms):
            word = self._levels(m, number, term.magnitude, term.shift, 0)
            inverted = Signal(top, name=f"inverted_{number}")
            m.d.comb += inverted.eq(word[p.even :] ^ term.sign.replicate(top))
            signed = Signal(top + 1, name=f"signed_{number}")
            m.d.comb += signed.eq(Cat(inverted, ~term.sign))
            waiting.append(signed)
            ones.append(term.sign)
        # -2^top sign = 2^top (1 - sign) - 2^top, the latter for all terms at once.
        excess = (-p.terms << top) % (1 << p.width)
        if p.terms == 1:
            waiting = [Cat(inverted, term.sign.replicate(p.width - top))]
        elif excess:
            waiting.append(Const(excess, p.width))
        # The oldest rows are added first, so that all pass about the same number of adders.
        number = 0
        while len(waiting) > 2:
            x, y, z, *waiting = waiting
            total, carries = carry_save(m, x, y, z, p.width, f"{number}")
            waiting += [total, Cat(ones.pop(), carries)[: p.width]]
            number += 1
        waiting += [Const(0, 1)] * (2 - len(waiting))
        return waiting, ones + [Const(0, 1)] * (2 - len(ones))

    def _summed(self, m: Module, platform) -> tuple[list[Value], list[Value]]:
        """One signed number and a bit that add up to a group's terms, modulo 2^width.

        A pair of numbers in two's complement, the ones of negative terms in the carry-ins::

            x         | s x x x x | one |
            y         | s y y y y | one |
            x + y   | s s s s s s | (0) |
        """
        p = self.parameters
        waiting: list[Value] = []
        ones: list[Value] = []
        for number, term in enumerate(self.terms):
            word, levels = term.magnitude, 0
            # The lowest bits of the shift by a multiplier, the others by multiplexers.
            if on_multipliers(platform) and p.shift >= FINE:
                factor = one_hot(m, term.shift[:FINE], 1, f"up_{number}")
                above = len(word) - WIDTH
                pieces = (WIDTH, above) if above > 0 else (len(word),)
                word = merged(products(m, word, factor, pieces, f"moved_{number}"))
                levels = FINE
            word = self._levels(m, number, word, term.shift, levels)
            inverted = word[p.even :] ^ term.sign.replicate(len(word) - p.even)
            signed_term = Signal(len(inverted) + 1, name=f"signed_{number}")
            m.d.comb += signed_term.eq(Cat(inverted, term.sign))
            waiting.append(signed_term.as_signed())
            ones.append(term.sign)
        number = 0
        while len(waiting) > 1:
            x, y, *waiting = waiting
            total = Signal(min(max(len(x), len(y)) + 1, p.width), name=f"sum_{number}")
            m.d.comb += total.eq(_add(x, y, ones.pop()))
            waiting.append(total.as_signed())
            number += 1
        return waiting, ones

    @property
    def _top(self) -> int:
        """Bits of a shifted term without those below, cut to the width of the sum."""
        p = self.parameters
        return min(p.magnitude + (1 << p.shift) - 1 - p.even, p.width - 1)

    def _levels(self, m: Module, number: int, word: Value, shift: Value, first: int) -> Value:
        """The `word` of a term shifted left by the bits of `shift` from `first` on."""
        p = self.parameters
        for level in range(first, p.shift):
            distance = 1 << level
            size = min(len(word) + distance, self._top + p.even)
            shifted = Signal(size, name=f"shifted_{number}_{level}")
            m.d.comb += shifted.eq(Mux(shift[level], word << distance, word))
            word = shifted
        return word

    def _normalised(self, m: Module, total: Value) -> dict[str, Value]:
        """Sign, fraction and exponent of the sum, and whether to round up."""
        p = self.parameters
        # A negative sum is inverted; the missing one is decided with the rounding, as in
        # :class:`hw.arith.fixed_to_float.FixedToFloat`.
        negative = Signal()
        digits = Signal(p.width)
        ones = negative.replicate(p.width - 1)
        m.d.comb += [
            negative.eq(total[-1]),
            digits.eq(Cat(negative, total[:-1] ^ ones)),
        ]
        normal, zeros = normalise(m, digits, negative)
        highest = FP32.bias - p.fraction - 1 + p.width - 1
        fraction = Signal(FP32.mantissa)
        up = Signal()
        # A negative sum is one short here, so a tie has a guard bit of 0 and ones below it.
        rest = normal[: -1 - FP32.mantissa]
        guard, below = rest[-1], rest[:-1]
        m.d.comb += [
            fraction.eq(normal[-1 - FP32.mantissa : -1]),
            up.eq(
                Mux(
                    negative,
                    guard | (below.all() & fraction[0]),
                    guard & (below.any() | fraction[0]),
                )
            ),
        ]
        # A sum of zero has no leading one, and an exponent field of zero.
        power = Signal(FP32.exponent)
        m.d.comb += power.eq((highest - zeros)[: FP32.exponent] & normal[-1].replicate(8))
        return {"fraction": fraction, "power": power, "up": up, "negative": negative}

    def _rounded(self, m: Module, invalid, fraction, power, up, negative) -> Value:
        # A carry out of the fraction increments the exponent.
        magnitude = Signal(FP32.width - 1)
        m.d.comb += magnitude.eq(Cat(fraction, power) + up)
        return Mux(invalid, FP32.quiet_nan, Cat(magnitude, negative))


def carry_save(
    m: Module, x: Value, y: Value, z: Value, width: int, name: str
) -> tuple[Signal, Signal]:
    """Sum and carries of three numbers modulo 2^width; the carries have twice the weight."""
    size = min(max(len(x), len(y), len(z)), width)
    half, total, carries = (
        Signal(size, name=f"{kind}_{name}") for kind in ("half", "sum", "carries")
    )
    m.d.comb += [half.eq(x ^ y), total.eq(half ^ z), carries.eq((x & y) | (half & z))]
    return total, carries


def _add(x: Value, y: Value, one: Value) -> Value:
    """x + y + one of signed numbers in one carry chain: a pair of ones below is the carry-in."""
    return (Cat(one, x).as_signed() + Cat(one, y).as_signed())[1:]


def _register(m: Module, name: str, value: Value, reset: bool = False) -> Signal:
    register = Signal(len(value), name=name, reset_less=not reset)
    m.d.sync += register.eq(value)
    return register
