"""Counts of each index among the indices of one beat (KLLM, section IV-B)."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.layout import FLAG, count, index, mask
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class IndexDistributionCounterParameters(DatapathParameters):
    """
    inputs
        Indices counted in one cycle.
    activation_bits, weight_bits
        Bits of the two parts of an index; the activation is the upper part.
    """

    inputs: int = 16
    activation_bits: int = 4
    weight_bits: int = 4

    CUTS: ClassVar = ((), ("holders",), ("holders", "result"))

    def __post_init__(self):
        super().__post_init__()
        require(self.inputs >= 2, "inputs must be at least 2", self.inputs)
        for name in ("activation_bits", "weight_bits"):
            bits = getattr(self, name)
            require(1 <= bits <= 6, f"{name} must be between 1 and 6", bits)

    @classmethod
    def presets(cls) -> dict[str, "IndexDistributionCounterParameters"]:
        return {"small": cls(8, 3, 2), "default": cls(), "paper": cls(stages=1)}

    @property
    def index_bits(self) -> int:
        return self.activation_bits + self.weight_bits

    @property
    def bins(self) -> int:
        """Counts, one for each index."""
        return 1 << self.index_bits

    @property
    def count_bits(self) -> int:
        """Bits of a count, which may reach `inputs`."""
        return self.inputs.bit_length()

    @property
    def holders(self) -> list[tuple[int, int]]:
        """For each bit of a count, the first input that may hold it, and the first not to share.

        Bit b of a count needs 2^b equal inputs, so input 2^b - 1 is the first that may hold it. Two
        inputs of different indices that both hold it need 2 · 2^b inputs; before that, at most one
        input holds the bit, and these inputs share a line.
        """
        return [((1 << b) - 1, min((2 << b) - 1, self.inputs)) for b in range(self.count_bits)]

    @property
    def lines(self) -> int:
        """Lines on which the bits of a count are held."""
        return sum(1 + self.inputs - alone for _, alone in self.holders)


class IndexDistributionCounter(Datapath[IndexDistributionCounterParameters]):
    """counts[v] = number of indices, among those in the mask, that equal v.

    With ``integer_mode`` the upper part a of an index is an integer instead, and the lower part w
    selects the bins in which each bit of a is counted:

        counts[p * 2^weight_bits + w] = number of masked inputs with bit p of a set and weight w

    for p below `activation_bits`; all other counts are zero. The sum of 2^p times these counts is
    the sum in which each index counts a times (section III-B2).

    Latency: `stages`, 0 to 2. Throughput: one set of inputs per cycle. Overflow: none, a count
    reaches `inputs` and fits.

    Technique: the paper decodes each index to one of 2^8 lines and counts the ones of each line.
    Here all indices are compared with each other first, and the last of equal inputs *holds* their
    number::

        index    5 3 5 5 3
        number   1 1 2 3 2      of equal inputs up to this one
        holds    - - - 3 2      the last of equal inputs

    Then a bit of a count is not a sum but an OR, over the inputs that hold this bit, of row match
    and column match. At most one of the first 2^(b+1) - 1 inputs can hold bit b, so these share one
    line. Only the counts that `integer_mode` uses as well are sums. This takes a fifth less area
    than to sum all counts, and the first pipeline stage, with the indices and the held bits, has a
    sixth of the bits of all counts.

    Examples
    --------
    >>> from hw.kllm.index_distribution_counter import IndexDistributionCounterParameters
    >>> parameters = IndexDistributionCounterParameters(inputs=16, stages=1)
    >>> parameters.bins, parameters.count_bits
    (256, 5)
    >>> parameters.holders  # first input that may hold bit b, first that does not share its line
    [(0, 1), (1, 3), (3, 7), (7, 15), (15, 16)]
    """

    summary = "Histogram of the indices of a beat"
    source = "KLLM, section IV-B"

    def operation(self) -> Ports:
        p = self.parameters
        return {
            "index": wire_in(
                data.ArrayLayout(index(p.index_bits), p.inputs), "Joined indices of the inputs."
            ),
            "mask": wire_in(mask(p.inputs), "Which of them count."),
            "integer_mode": wire_in(FLAG, "Activations are integers of bits, see above."),
            "counts": wire_out(
                data.ArrayLayout(count(p.count_bits), p.bins), "Number of inputs in each bin."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        cut = self.registers(m)
        # Stage 1: which input holds each bit of its index's count.
        held = {f"bit_{bit}": inputs for bit, inputs in enumerate(self._held(m))}
        operands = {"index": self.index.as_value(), "mask": self.mask, "integer": self.integer_mode}
        word, counted, integer, *held = cut("holders", **operands, **held)
        indices = [word.word_select(i, p.index_bits) for i in range(p.inputs)]

        # Stage 2: inputs of each row (masked) and of each column (not masked).
        rows, columns = [], []
        for row in range(1 << p.activation_bits):
            rows.append(Signal(p.inputs, name=f"row_{row}"))
            m.d.comb += rows[-1].eq(Cat(i[p.weight_bits :] == row for i in indices) & counted)
        for column in range(1 << p.weight_bits):
            columns.append(Signal(p.inputs, name=f"column_{column}"))
            m.d.comb += columns[-1].eq(Cat(i[: p.weight_bits] == column for i in indices))
        column_lines = [
            self._lines(m, f"column_{n}", c, held, False) for n, c in enumerate(columns)
        ]

        # The rows that integer mode uses are sums, the others are gathered from held bits.
        counts = []
        for number, inputs in enumerate(rows):
            if number < p.activation_bits:
                line = Signal(p.inputs, name=f"line_{number}")
                is_set = Cat(i[p.weight_bits + number] for i in indices) & counted
                # Integer mode: row n counts the inputs whose bit n of the activation is set, as
                # bits are powers of two and need no table.
                m.d.comb += line.eq(Mux(integer, is_set, inputs))
                unit: SummedRow | GatheredRow = SummedRow(p)
                across = columns
            else:
                line = self._lines(m, f"row_{number}", inputs, held, True)
                unit, across = GatheredRow(p), column_lines
            m.submodules[f"row_{number}_counts"] = unit
            m.d.comb += [unit.row.eq(line), unit.columns.eq(Cat(across))]
            counts.append(unit.counts)
        m.d.comb += self.counts.eq(cut("result", counts=Cat(counts)))
        return m

    def _held(self, m: Module) -> list[Signal]:
        """For each bit of a count, the inputs that hold it, from the first that may.

        The last of equal inputs holds all bits of their number. Inputs outside the mask compare
        equal among themselves only; their held bits are masked later.
        """
        p = self.parameters
        # Counts of 16 inputs in up to 256 bins, without 256 counters: among equal inputs the last
        # one knows how many there are (its number), and holds the bits of that count for all of
        # them.
        compared = [Cat(pair) for pair in zip(self.index, self.mask, strict=True)]
        equal = [Signal(i + 1, name=f"equal_{i}") for i in range(p.inputs)]
        # numbers[i]: how many of the inputs 0 to i equal input i.
        numbers = []
        for i in range(p.inputs):
            m.d.comb += equal[i].eq(Cat(*(compared[i] == other for other in compared[:i]), 1))
            if i == 0:
                numbers.append(equal[0])
                continue
            unit = PopulationCount(PopulationCountParameters(i + 1))
            m.submodules[f"number_{i}"] = unit
            m.d.comb += unit.i.eq(equal[i])
            numbers.append(unit.o)
        # An input is the last of its kind if no later one equals it. In integer mode none holds.
        last = Signal(p.inputs)
        for i in range(p.inputs):
            later = Cat(row[i] for row in equal[i + 1 :])
            m.d.comb += last[i].eq(~(later.any() | self.integer_mode))
        held = []
        for bit, (first, _) in enumerate(p.holders):
            held.append(Signal(p.inputs - first, name=f"held_{bit}"))
            holds = (last[i] & numbers[i][bit] for i in range(first, p.inputs))
            m.d.comb += held[bit].eq(Cat(holds))
        return held

    def _lines(self, m: Module, name: str, matches: Signal, held: list, everywhere: bool):
        """For each bit of a count, the matching inputs that hold it: one shared line, then others.

        everywhere
            Whether lines of a single input are masked by its held bit: either the rows' lines or
            the columns' must be.
        """
        lines = []
        for holds, (first, alone) in zip(held, self.parameters.holders, strict=True):
            candidates = matches[first:]
            # At most one of the first inputs can hold a high bit of the same bin, as a count that
            # large needs that many inputs before it: so they share a line.
            masked, sharing = candidates & holds, alone - first
            shared = masked[:sharing].any() if everywhere or sharing > 1 else candidates[:1]
            lines.append(Cat(shared, (masked if everywhere else candidates)[sharing:]))
        line = Signal(self.parameters.lines, name=f"{name}_lines")
        m.d.comb += line.eq(Cat(lines))
        return line


class SummedRow(Component[IndexDistributionCounterParameters]):
    """Counts of the inputs of a row in each column, by population counts."""

    def ports(self) -> Ports:
        p = self.parameters
        return _row_ports(p, p.inputs)

    def elaborate(self, platform):
        m = Module()
        for number, column in enumerate(self.columns):
            counter = PopulationCount(PopulationCountParameters(self.parameters.inputs))
            m.submodules[f"ones_{number}"] = counter
            m.d.comb += [counter.i.eq(self.row & column), self.counts[number].eq(counter.o)]
        return m


class GatheredRow(Component[IndexDistributionCounterParameters]):
    """Counts of a row in each column; a bit of a count is the OR over the lines that hold it."""

    def ports(self) -> Ports:
        p = self.parameters
        return _row_ports(p, p.lines)

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        for number, column in enumerate(self.columns):
            # Lines of the row and the column: for each bit, one shared line and the others.
            held = Signal(p.lines, name=f"held_{number}")
            m.d.comb += held.eq(self.row & column)
            start = 0
            for bit, (_, alone) in enumerate(p.holders):
                end = start + 1 + p.inputs - alone
                m.d.comb += self.counts[number][bit].eq(held[start:end].any())
                start = end
        return m


def _row_ports(parameters: IndexDistributionCounterParameters, lines: int) -> Ports:
    """Ports of one row of counts."""
    columns = 1 << parameters.weight_bits
    return {
        "row": wire_in(lines, "Lines of the row's index."),
        "columns": wire_in(data.ArrayLayout(lines, columns), "Lines of each column's index."),
        "counts": wire_out(data.ArrayLayout(parameters.count_bits, columns), "Of both at once."),
    }
