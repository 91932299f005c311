"""A digital equivalent of UniCAIM's array: same ports, exact scores, fewer steps to a search."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.bits.carry_save import add_rows
from hw.arith.datapath import Registers
from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.ports import Ports, wire_in
from hw.unicaim.array import (
    ArrayParameters,
    BitLines,
    UnicaimArray,
    parallel_scores,
    row_ports,
    stored_keys,
)
from hw.unicaim.threshold_search import threshold_search


@dataclasses.dataclass(frozen=True)
class DigitalArrayParameters(ArrayParameters):
    __doc__ = ArrayParameters.__doc__


class DigitalArray(UnicaimArray):
    """Score all rows against a query, then search for the k largest scores, one bit per step.

        score[r] = sum over planes p of 2^p (sum over cells c of key[r, c] digit[p, c])

    A beat on the bit lines `i` is one of three. WRITE stores one row, which is in use from then on.
    CLEAR marks all rows unused. With several `contexts` there are as many sets of keys, which share
    the adders, and a beat is for one of them. QUERY is one bit plane of a query, the most
    significant one first. After a query's last plane `values` has one beat, the scores of all rows
    (0 for unused rows), and `lines` has the steps of a search: which rows are high. After each step
    the array waits for `too_many`: whether more than k lines were high.

    The search finds the threshold that k rows or fewer pass, one bit of it per step, the most
    significant one first. A row is high if its score is at least a threshold that has this bit set.
    If more than k rows are high, the bit remains set and the rows that were low are out; else it is
    cleared, and the rows that were high remain high. After the last bit those rows are high whose
    scores are above the highest score that drops, as at the end of a discharge of the analog array
    (:class:`hw.unicaim.cell_array.CellArray`). That takes `steps` steps for any number of rows.

    Example with scores 5, 2, 4, -3 of 4 bits and k = 1. The threshold starts at the lowest score,
    -8, and steps try to raise it by 8, 4, 2, 1:

        step 1: threshold  0   high 5, 2, 4   more than k: keep the bit
        step 2: threshold  4   high 5, 4      more than k: keep the bit
        step 3: threshold  6   high none      clear the bit
        step 4: threshold  5   high 5         clear the bit; the row of score 5 is selected

    Overflow: none. Key levels must be within the cells' limits and digits within -1 to 1.

    Latency: 1 cycle from a query's last plane to `values` and the first step. Throughput: one row
    written or one plane per cycle; one step per cycle if its answer arrives in the same cycle. `i`
    is ready from the end of a search with `values` taken, to a query's last plane.

    Handshake: `too_many` is ready for a step's answer in the cycle in which the step is taken, and
    from then on. Other outputs depend on registers only.

    Paper: III-B2 and III-B3; the digital array is this project's own.

    Examples
    --------
    >>> from hw.unicaim.digital_array import DigitalArrayParameters
    >>> paper = DigitalArrayParameters.preset("paper")
    >>> paper.score_limit, paper.score, paper.steps
    (512, signed(11), 11)
    >>> DigitalArrayParameters(rows=4096, d=128).steps  # does not depend on the number of rows
    11
    """

    summary = "Score rows of keys against a query, search for the k largest scores bit by bit"
    source = "UniCAIM, sections III-B2 and III-B3"

    def _scores(self, m: Module, bus: BitLines, scoring: Signal, begin: Signal) -> list:
        p = self.parameters
        # -key is ~key + 1: rows add complements, and the number of negative digits once.
        m.submodules.negatives = negatives = PopulationCount(PopulationCountParameters(n=p.d))
        m.d.comb += negatives.i.eq(Cat(digit.negative for digit in bus.drive))
        rows = [DigitalRow(p) for _ in range(p.rows)]
        m.d.comb += [row.negatives.eq(negatives.o) for row in rows]
        return parallel_scores(m, rows, bus, begin)

    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        threshold_search(m, self, scores, used, begin, answered)


def product_term(key: Value, on: Value, negative: Value, bits: int) -> Value:
    """A key times a digit, `bits` wide, unsigned: 2^(bits - 1) more, and 1 less for digit -1."""
    product = (key ^ negative.replicate(bits)) & on.replicate(bits)
    return product ^ (1 << (bits - 1))


class DigitalRow(Component[DigitalArrayParameters]):
    """The keys of one row and its score."""

    def ports(self) -> Ports:
        p = self.parameters
        count = p.d.bit_length()
        return {**row_ports(p), "negatives": wire_in(count, "Number of negative digits.")}

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        width, bits = p.score.width, p.key_bits + 1
        score = Signal(p.score, reset_less=True)
        m.d.comb += self.score.eq(score)
        stored = stored_keys(m, self, p.contexts)
        keys = [stored[n * bits : (n + 1) * bits] for n in range(p.d)]

        # One carry-save addition, all operands modulo 2^width:
        #
        #   | 2 score, or 0 on the first plane         |
        #   |                      | term of cell 0    |   `bits` wide, unsigned: digit * key,
        #   |                      | ...               |   without the + 1 of a negation, and
        #   |                      | term of cell d-1  |   2^(bits - 1) more than that
        #   |                      | negatives         |   the + 1 of each negation
        #   | -d 2^(bits - 1)                          |   takes the offsets of the terms off
        terms = []
        for number, (key, digit) in enumerate(zip(keys, self.drive, strict=True)):
            term = Signal(bits, name=f"term_{number}")
            m.d.comb += term.eq(product_term(key, digit.on, digit.negative, bits))
            terms.append(term)
        before = Signal(width)
        m.d.comb += before.eq(Mux(self.first, 0, score << 1))
        # Terms are made unsigned by an offset, so that no sign extension fills the carry-save
        # columns; one constant takes all offsets off.
        excess = Const(-(p.d << (bits - 1)) % (1 << width), width)
        operands = [*terms, before, self.negatives, excess]
        total = add_rows(m, operands, width, Registers(m, (), None))
        with m.If(self.plane):
            m.d.sync += score.eq(total)
        return m
