"""A digital equivalent of UniCAIM's array: same ports, exact, and fewer steps to a race."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import In

from hw.arith.carry_save import add_rows
from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.unicaim.array import Array, ArrayParameters, row_signature


@dataclasses.dataclass(frozen=True)
class DigitalArrayParameters(ArrayParameters):
    __doc__ = ArrayParameters.__doc__

    @property
    def steps(self) -> int:
        """Of a race, always: one for each bit of a score. 11 for the paper's scores."""
        return self.score.width


class DigitalArray(Array):
    """Rows of keys that all meet a query at once, and a race of their scores.

        score[r] = sum over planes p of 2^p (sum over cells c of key[r, c] digit[p, c])

    A beat on the bit lines `i` writes one row, which is in use from then on, or clears all, after
    which none is in use, or is one plane of a query, the highest place first. After a query's last
    plane `values` has one beat, the scores of all rows (0 for those not in use), and `lines` has
    the steps of a race: which rows are high. After each step the array waits for `more`: whether
    more than k lines were high.

    The race is a search for the threshold that k rows or fewer pass, by a bit of it a step, highest
    first: a row is high if its score is at least a threshold that has this bit set. If more
    than k are, the bit stays set and the rows that were not high are out; else it is cleared, and
    the rows that were high stay so. After the last bit those rows are high whose scores are above
    the highest one that drops, as at the end of a discharge (:class:`CellArray`). That takes
    `steps` steps for any number of rows.

    Multiplication by a digit is a choice of the level, its complement or 0. What complements lack
    is the number of negative digits, the same for all rows. A row adds its terms by carry-save
    adders and one final addition.

    Overflow: none. Levels must be within the cells' limits and digits within -1 to 1.

    Latency: 1 cycle from a query's last plane to `values` and the first step. Throughput: a row
    written or a plane a cycle; a step a cycle if its answer comes at once. `i` is ready
    from the end of a race, `values` taken, to a query's last plane.

    Handshake: `more` is ready for a step's answer in the cycle in which the step is taken, and
    from then on. Other outputs depend on registers only.

    Paper: III-B2 and III-B3, the digital array is this project's own.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Bit lines.
    more : :py:`In(stream.Signature(1))`
        Answers to the steps of a race.
    lines : :py:`Out(stream.Signature(lines_layout(rows)))`
        Steps of a race.
    values : :py:`Out(stream.Signature(parameters.values_layout))`
        Scores of all rows.
    """

    summary = "Rows of keys that meet a query at once, and a race of their scores"
    source = "UniCAIM, sections III-B2 and III-B3"

    def __init__(self, parameters: DigitalArrayParameters):
        super().__init__(parameters)

    def _rows(self, m: Module, drive) -> list["DigitalRow"]:
        p = self._parameters
        m.submodules.negatives = negatives = PopulationCount(PopulationCountParameters(n=p.d))
        m.d.comb += negatives.i.eq(Cat(digit.negative for digit in drive))
        rows = [DigitalRow(p) for _ in range(p.rows)]
        m.d.comb += [row.negatives.eq(negatives.o) for row in rows]
        return rows

    def _race(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        p = self._parameters
        lines = self.lines.payload
        place = Signal(p.steps, reset_less=True)  # one-hot: the bit of this step
        above = Signal(p.rows, reset_less=True)  # rows above every threshold that may be the result
        tied = Signal(p.rows, reset_less=True)  # rows with the bits of the threshold so far
        bits = Signal(p.rows)
        m.d.comb += [
            # Of scores above -2^(width - 1) with that added, so that none is 0.
            bits.eq(Cat((Cat(s[:-1], ~s[-1]) & place).any() for s in map(Value.cast, scores))),
            lines.high.eq(above | (tied & bits)),
            lines.last.eq(place[0]),
        ]
        with m.If(begin):
            m.d.sync += [place.eq(1 << (p.steps - 1)), above.eq(0), tied.eq(used)]
        with m.If(answered):
            m.d.sync += place.eq(place >> 1)
            with m.If(self.more.payload):
                m.d.sync += tied.eq(tied & bits)
            with m.Else():
                m.d.sync += [above.eq(lines.high), tied.eq(tied & ~bits)]


class DigitalRow(Component):
    """The keys of one row and its score.

    Members
    -------
    levels : :py:`In(ArrayLayout(signed(key_bits + 1), d))`
    write : :py:`In(1)`
        Keep `levels`.
    drive : :py:`In(parameters.drive_layout)`
        Digits.
    plane : :py:`In(1)`
        Add their products with the keys to twice the score, or to nothing if `first`.
    first : :py:`In(1)`
    negatives : :py:`In(range(d + 1))`
        Digits that are negative.
    score : :py:`Out(parameters.score)`
        From a register.
    """

    def __init__(self, parameters: DigitalArrayParameters):
        self._parameters = parameters
        count = parameters.d.bit_length()
        super().__init__({**row_signature(parameters), "negatives": In(count)})

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        width, bits = p.score.width, p.key_bits + 1
        score = Signal(p.score, reset_less=True)
        m.d.comb += self.score.eq(score)
        keys = Signal(data.ArrayLayout(bits, p.d), reset_less=True)
        with m.If(self.write):
            m.d.sync += Value.cast(keys).eq(Value.cast(self.levels))

        terms = []
        for number, (key, digit) in enumerate(zip(keys, self.drive, strict=True)):
            term = Signal(bits, name=f"term_{number}")
            product = (key ^ digit.negative.replicate(bits)) & digit.on.replicate(bits)
            # 2^(bits - 1) more, so that no term is negative.
            m.d.comb += term.eq(product ^ (1 << (bits - 1)))
            terms.append(term)
        before = Signal(width)
        m.d.comb += before.eq(Mux(self.first, 0, score << 1))
        excess = Const(-(p.d << (bits - 1)) % (1 << width), width)
        total = add_rows(m, [*terms, before, self.negatives, excess], width, _uncut)
        with m.If(self.plane):
            m.d.sync += score.eq(total)
        return m


def _uncut(point: str, **signals: Value):
    """No registers anywhere in an addition."""
    values = list(signals.values())
    return values if len(values) > 1 else values[0]
