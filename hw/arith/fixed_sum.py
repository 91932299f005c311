"""Exact sums of floating-point terms: fixed point, carry-save adders, one rounding at the end."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.fixed_to_float import normalise
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters

LARGEST = 2047 << 29
"""The largest FP16 number in units of the smallest, 2^-24."""

SUM = data.StructLayout({"sum": FP32.width, "invalid": 1})


def significand(m: Module, bits: Value, name: str) -> tuple[Signal, Signal, Signal]:
    """An FP16 number as significand 2^(shift - 25), and whether it is no finite one.

    shift is 1 to 30, and 31 where the number is not finite. The sign is the number's top bit.
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
        Widths of a term's integer and of the number of places it is shifted left.
    even
        Every shift is at least this, so that so many bits of a sum need not exist.
    width
        Bits of the sum once they are left away, sign included.
    fraction
        Of them, those behind the binary point.
    groups
        Of a column, at least, if there is to be no wait.
    latency
        Cycles from acceptance of a column's last group to its sum being offered.
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
    """Cycles from a group to the output being offered."""

    @property
    def columns(self) -> int:
        """Columns at once between acceptance and the output being taken, at full rate.

        A credit comes home in time for the next column's last group; one more is at hand for the
        groups before.
        """
        return 1 + -(-(self.latency + 1) // self.groups)


class FixedSum(Component):
    """sum = round32(sum over a column's groups and a group's terms of ± magnitude 2^shift).

    ::

        terms ─→ shift, invert if negative ─→ carry-save ─→ 2 rows ─→ accumulator ─┐
            FP32 ←─ queue ←─ round ←─ normalise ←──────────── at the column's end ─┘

    The sum is an integer in two's complement, so nothing is lost and no order matters; it is
    rounded once, to nearest even. A zero sum is +0. A column with `invalid` in one of its groups
    gives the quiet NaN. A negative term is inverted, and one added in its last place, which is
    free: every carry-save adder leaves the last place of its carries empty.

    There is no handshake on the terms: a parent takes the last group of a column only while
    `available`, and says so by `take` in the same cycle; the pipeline then has room for the result.
    Nothing in it stalls. A group a cycle; a result is offered LATENCY cycles after its last group.

    Members
    -------
    take : :py:`In(1)`
        The last group of a column is accepted, it may arrive here later.
    available : :py:`Out(1)`
        It may be. From registers.
    valid, last, invalid : :py:`In(1)`
        A group is there, the last of its column, with something in it that makes the sum a NaN.
    terms : :py:`In(ArrayLayout({magnitude, shift, sign}, terms))`
        The group.
    o : :py:`Out(stream.Signature({sum, invalid}))`
    """

    def __init__(self, parameters: FixedSumParameters):
        p = self._parameters = parameters
        term = data.StructLayout({"magnitude": p.magnitude, "shift": p.shift, "sign": 1})
        super().__init__(
            {
                "take": In(1),
                "available": Out(1),
                "valid": In(1),
                "last": In(1),
                "invalid": In(1),
                "terms": In(data.ArrayLayout(term, p.terms)),
                "o": Out(stream.Signature(SUM)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.credits = credits = CreditCounter(CreditCounterParameters(p.columns))
        m.submodules.queue = queue = Queue(QueueParameters(SUM.size, p.columns), shape=SUM)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        m.d.comb += [
            self.available.eq(credits.available),
            credits.take.eq(self.take),
            credits.give.eq(self.o.valid & self.o.ready),
        ]

        control = Cat(self.valid, self.last, self.invalid)
        addends, ones = self._added(m)
        addends = [_register(m, f"row_{n}", row) for n, row in enumerate(addends)]
        ones = _register(m, "ones", Cat(ones))
        valid, last, invalid = _register(m, "control_rows", control, reset=True)

        first = Signal(init=1)
        total = Signal(p.width, reset_less=True)
        spoilt = Signal()
        before = Signal(p.width)
        m.d.comb += before.eq(total & ~first.replicate(p.width))
        partial, carries = carry_save(m, before, *addends, p.width, "total")
        with m.If(valid):
            m.d.sync += [
                first.eq(last),
                total.eq(partial + Cat(ones[0], carries) + ones[1]),
                spoilt.eq(invalid | (spoilt & ~first)),
            ]
        done = _register(m, "done", valid & last, reset=True)
        rounding = self._normalised(m, total)
        registers = {name: _register(m, f"{name}_normal", v) for name, v in rounding.items()}
        done, spoilt = _register(m, "control_normal", Cat(done, spoilt), reset=True)
        m.d.comb += [
            queue.i.valid.eq(done),
            queue.i.payload.sum.eq(self._rounded(m, spoilt, **registers)),
            queue.i.payload.invalid.eq(spoilt),
        ]
        return m

    def _added(self, m: Module) -> tuple[list[Value], list[Value]]:
        """Two numbers and two bits that make the sum of a group's terms, modulo 2^width."""
        p = self._parameters
        # The highest bit that a term can have: less only where the sum has no room for more.
        top = min(p.magnitude + (1 << p.shift) - 1 - p.even, p.width - 1)
        waiting, ones = [], []
        for number, term in enumerate(self.terms):
            word = term.magnitude
            for level in range(p.shift):
                distance = 1 << level
                size = min(len(word) + distance, top + p.even)
                shifted = Signal(size, name=f"shifted_{number}_{level}")
                m.d.comb += shifted.eq(Mux(term.shift[level], word << distance, word))
                word = shifted
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
        # First come, first added: rows that have passed as many adders meet.
        number = 0
        while len(waiting) > 2:
            x, y, z, *waiting = waiting
            total, carries = carry_save(m, x, y, z, p.width, f"{number}")
            waiting += [total, Cat(ones.pop(), carries)[: p.width]]
            number += 1
        waiting += [Const(0, 1)] * (2 - len(waiting))
        return waiting, ones + [Const(0, 1)] * (2 - len(ones))

    def _normalised(self, m: Module, total: Value) -> dict[str, Value]:
        """Sign, fraction and exponent of the sum, and whether to round up."""
        p = self._parameters
        # A negative sum is complemented only; the one to add is the carry out of endless ones.
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
        power = Signal(FP32.exponent)
        m.d.comb += power.eq((highest - zeros)[: FP32.exponent] & normal[-1].replicate(8))
        return {"fraction": fraction, "power": power, "up": up, "negative": negative}

    def _rounded(self, m: Module, spoilt, fraction, power, up, negative) -> Value:
        magnitude = Signal(FP32.width - 1)
        m.d.comb += magnitude.eq(Cat(fraction, power) + up)
        return Mux(spoilt, FP32.quiet_nan, Cat(magnitude, negative))


def carry_save(
    m: Module, x: Value, y: Value, z: Value, width: int, name: str
) -> tuple[Signal, Signal]:
    """Sum and carries, the latter of twice the weight, of three numbers modulo 2^width."""
    size = min(max(len(x), len(y), len(z)), width)
    half, total, carries = (
        Signal(size, name=f"{kind}_{name}") for kind in ("half", "sum", "carries")
    )
    m.d.comb += [half.eq(x ^ y), total.eq(half ^ z), carries.eq((x & y) | (half & z))]
    return total, carries


def _register(m: Module, name: str, value: Value, reset: bool = False) -> Signal:
    register = Signal(len(value), name=name, reset_less=not reset)
    m.d.sync += register.eq(value)
    return register
