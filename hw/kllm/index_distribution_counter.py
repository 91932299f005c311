"""How often each index occurs among the few of one beat (KLLM, section IV-B)."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class IndexDistributionCounterParameters(DatapathParameters):
    """
    inputs
        Indices counted together.
    activation_bits, weight_bits
        Of the two halves of an index, the activation's being the higher one.
    """

    inputs: int = 16
    activation_bits: int = 4
    weight_bits: int = 4

    CUTS: ClassVar = ((), ("tokens",), ("tokens", "result"))

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
        """Counts: one for each index."""
        return 1 << self.index_bits

    @property
    def count_bits(self) -> int:
        """Of a count, which may reach `inputs`."""
        return self.inputs.bit_length()

    @property
    def holders(self) -> list[tuple[int, int]]:
        """For each bit of a count, the first input that may hold it, and the first to do so alone.

        It takes 2^bit equal inputs to hold a bit, so twice as many before a second one can.
        """
        return [((1 << b) - 1, min((2 << b) - 1, self.inputs)) for b in range(self.count_bits)]

    @property
    def lines(self) -> int:
        """On which the bits of a count are held."""
        return sum(1 + self.inputs - alone for _, alone in self.holders)


class IndexDistributionCounter(Datapath):
    """counts[v] = how many of the indices that the mask lets count are v.

    With ``integer_mode`` the higher half a of an index is a number instead, and the lower half w
    picks the line in which each of its bits is counted:

        counts[p * 2^weight_bits + w] = how many inputs that count have bit p of a set, and w,

    for p below `activation_bits`; all other counts are zero. The sum of 2^p times the counts is the
    one in which each index counts a times (section III-B2).

    Latency: `stages`, 0 to 2. Throughput: one set of inputs per cycle. A count reaches `inputs`
    and fits.

    Technique: the paper decodes each index to a line of 2^8 and counts the ones in each column.
    Here all indices are compared first, and the last of equal ones is given their number. Then a
    bit of a count is no sum but an OR, over the inputs that hold this bit, of their rows and
    columns. An input can hold bit b only from the 2^b-th on; and until twice as many have come, one
    alone can, since its number takes 2^b of them: these share one line. Only the counts that
    `integer_mode` needs as well are sums. This takes a fifth less area than to sum all of them, and
    the first rank of registers, of indices and of who holds what, a sixth of the counts' bits.

    Members
    -------
    index : :py:`In(ArrayLayout(activation_bits + weight_bits, inputs))`
    mask : :py:`In(inputs)`
        Which of them count.
    integer_mode : :py:`In(1)`
    counts : :py:`Out(ArrayLayout(count_bits, bins))`
    """

    summary = "Histogram of the indices of a beat"
    source = "KLLM, section IV-B"

    def __init__(self, parameters: IndexDistributionCounterParameters):
        p = parameters
        super().__init__(
            p,
            {
                "index": data.ArrayLayout(p.index_bits, p.inputs),
                "mask": unsigned(p.inputs),
                "integer_mode": unsigned(1),
            },
            {"counts": data.ArrayLayout(p.count_bits, p.bins)},
        )

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        cut = self.registers(m)
        tokens = {f"bit_{bit}": token for bit, token in enumerate(self._tokens(m))}
        kept = {"index": self.index.as_value(), "mask": self.mask, "integer": self.integer_mode}
        index, mask, integer, *tokens = cut("tokens", **kept, **tokens)
        index = [index.word_select(i, p.index_bits) for i in range(p.inputs)]

        # Which inputs are of each row and, if it were not for the mask, of each column.
        rows, columns = [], []
        for row in range(1 << p.activation_bits):
            rows.append(Signal(p.inputs, name=f"row_{row}"))
            m.d.comb += rows[-1].eq(Cat(i[p.weight_bits :] == row for i in index) & mask)
        for column in range(1 << p.weight_bits):
            columns.append(Signal(p.inputs, name=f"column_{column}"))
            m.d.comb += columns[-1].eq(Cat(i[: p.weight_bits] == column for i in index))
        column_lines = [
            self._lines(m, f"column_{n}", c, tokens, False) for n, c in enumerate(columns)
        ]

        counts = []
        for number, row in enumerate(rows):
            if number < p.activation_bits:
                line = Signal(p.inputs, name=f"line_{number}")
                is_set = Cat(i[p.weight_bits + number] for i in index) & mask
                m.d.comb += line.eq(Mux(integer, is_set, row))
                unit, across = SummedRow(p), columns
            else:
                line = self._lines(m, f"row_{number}", row, tokens, True)
                unit, across = GatheredRow(p), column_lines
            m.submodules[f"row_{number}_counts"] = unit
            m.d.comb += [unit.row.eq(line), unit.columns.eq(Cat(across))]
            counts.append(unit.counts)
        m.d.comb += self.counts.eq(cut("result", counts=Cat(counts)))
        return m

    def _tokens(self, m: Module) -> list[Signal]:
        """Which inputs hold each bit of a count, from the first that can hold it on.

        The last of equal inputs holds all bits of their number. What an input holds that the mask
        leaves out does not matter.
        """
        p = self.parameters
        compared = [Cat(index, counts) for index, counts in zip(self.index, self.mask, strict=True)]
        equal = [Signal(i + 1, name=f"equal_{i}") for i in range(p.inputs)]
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
        last = Signal(p.inputs)
        for i in range(p.inputs):
            later = Cat(row[i] for row in equal[i + 1 :])
            m.d.comb += last[i].eq(~(later.any() | self.integer_mode))
        tokens = []
        for bit, (first, _) in enumerate(p.holders):
            tokens.append(Signal(p.inputs - first, name=f"token_{bit}"))
            held = (last[i] & numbers[i][bit] for i in range(first, p.inputs))
            m.d.comb += tokens[bit].eq(Cat(held))
        return tokens

    def _lines(self, m: Module, name: str, inputs: Signal, tokens: list, everywhere: bool):
        """The lines of a row or a column: of those inputs, which hold each bit.

        everywhere
            Whether lines of a single input look at its token: those of rows or of columns must.
        """
        lines = []
        for token, (first, alone) in zip(tokens, self.parameters.holders, strict=True):
            own = inputs[first:]
            held, count = own & token, alone - first
            shared = held[:count].any() if everywhere or count > 1 else own[:1]
            lines.append(Cat(shared, (held if everywhere else own)[count:]))
        line = Signal(self.parameters.lines, name=f"{name}_lines")
        m.d.comb += line.eq(Cat(lines))
        return line


class SummedRow(Component):
    """Counts of the inputs on a line in each column.

    Members
    -------
    row : :py:`In(inputs)`
    columns : :py:`In(ArrayLayout(inputs, 2^weight_bits))`
    counts : :py:`Out(ArrayLayout(count_bits, 2^weight_bits))`
    """

    def __init__(self, parameters: IndexDistributionCounterParameters):
        self._parameters = p = parameters
        super().__init__(_row_ports(p, p.inputs))

    def elaborate(self, platform):
        m = Module()
        for number, column in enumerate(self.columns):
            counter = PopulationCount(PopulationCountParameters(self._parameters.inputs))
            m.submodules[f"ones_{number}"] = counter
            m.d.comb += [counter.i.eq(self.row & column), self.counts[number].eq(counter.o)]
        return m


class GatheredRow(Component):
    """Counts in each column, put together from lines that hold their bits.

    Members
    -------
    row : :py:`In(lines)`
    columns : :py:`In(ArrayLayout(lines, 2^weight_bits))`
    counts : :py:`Out(ArrayLayout(count_bits, 2^weight_bits))`
    """

    def __init__(self, parameters: IndexDistributionCounterParameters):
        self._parameters = p = parameters
        super().__init__(_row_ports(p, p.lines))

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        for number, column in enumerate(self.columns):
            held = Signal(p.lines, name=f"held_{number}")
            m.d.comb += held.eq(self.row & column)
            start = 0
            for bit, (_, alone) in enumerate(p.holders):
                end = start + 1 + p.inputs - alone
                m.d.comb += self.counts[number][bit].eq(held[start:end].any())
                start = end
        return m


def _row_ports(parameters: IndexDistributionCounterParameters, lines: int) -> dict:
    columns = 1 << parameters.weight_bits
    return {
        "row": In(lines),
        "columns": In(data.ArrayLayout(lines, columns)),
        "counts": Out(data.ArrayLayout(parameters.count_bits, columns)),
    }
