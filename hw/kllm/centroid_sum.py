"""Sum of products of fixed-point centroids over a column: what counting replaces (KLLM, III-B)."""

import dataclasses
from functools import cached_property
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed
from amaranth.lib import data, wiring

from hw.arith.bits.partial_products import Bit, Columns, pack, reduce_columns, rows, unpack
from hw.arith.fixed_sum import carry_save
from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP32
from hw.component import Component
from hw.kllm.sparse_path import select
from hw.layout import FLAG, FixedPoint, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters


@dataclasses.dataclass(frozen=True)
class CentroidSumParameters(Parameters):
    """
    k
        Positions of the longest column.
    weight_bits
        nW: bits of a weight index.
    bits
        Width of a fixed-point centroid, sign included.
    counters
        Positions of a step, in units of 16 (a counter of :class:`ColumnCounter`).
    stages
        Pipeline stages before the accumulator, 0 to 3: halfway through the carry-save adders,
        after them, after the weights' look-up.
    late
        Cycles that a sum waits for whatever it meets, 0 or more: room for as many columns more.
    """

    k: int = 576
    weight_bits: int = 4
    bits: int = 8
    counters: int = 5
    stages: int = dataclasses.field(default=2, kw_only=True)
    late: int = dataclasses.field(default=0, kw_only=True)

    CUTS: ClassVar = ((), ("halfway",), ("halfway", "reduced"), ("lookup", "halfway", "reduced"))
    FLOAT_STAGES: ClassVar = 2

    def __post_init__(self):
        require(1 <= self.k <= 1 << 16, "k must be between 1 and 65536", self.k)
        rule = "weight_bits must be between 1 and 8"
        require(1 <= self.weight_bits <= 8, rule, self.weight_bits)
        require(2 <= self.bits <= 16, "bits must be between 2 and 16", self.bits)
        require(self.counters >= 1, "counters must be at least 1", self.counters)
        most = len(self.CUTS) - 1
        require(0 <= self.stages <= most, f"stages must be between 0 and {most}", self.stages)
        require(self.late >= 0, "late must be at least 0", self.late)

    @property
    def segment(self) -> int:
        """W: positions of a step."""
        return 16 * self.counters

    @property
    def segments(self) -> int:
        """B: steps of a column of K positions."""
        return -(-self.k // self.segment)

    @property
    def centroid(self) -> FixedPoint:
        """A centroid, -1 to just below 1."""
        return FixedPoint(signed(self.bits), self.bits - 1)

    @property
    def width(self) -> int:
        """Bits of the exact sum: K products of up to 2^(2 bits - 2) and a sign."""
        return (self.k << 2 * (self.bits - 1)).bit_length() + 1

    @property
    def latency(self) -> int:
        """Cycles from a column's last step to its sum: stages, accumulator, rounding, queue."""
        return self.stages + 1 + self.FLOAT_STAGES + 1

    @property
    def columns(self) -> int:
        """Columns between acceptance and output, and entries of the queue.

        Enough for the full rate with columns of one step: a credit returns after `latency` +
        `late` + 1 cycles.
        """
        return self.latency + self.late + 2

    def cycles(self, steps: int) -> int:
        """Cycles for `steps` steps, when nothing stalls."""
        return steps + self.latency

    @cached_property
    def to_float(self) -> FixedToFloatParameters:
        return FixedToFloatParameters(
            format="fp32",
            width=self.width,
            fraction=2 * (self.bits - 1),
            stages=self.FLOAT_STAGES,
        )

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """One step.

        ``activation`` centroids of W positions, 0 at one that does not count; ``weight`` indices;
        ``codebook`` of the weights' centroids; ``last`` step of the column.
        """
        return data.StructLayout(
            {
                "activation": data.ArrayLayout(self.centroid, self.segment),
                "weight": data.ArrayLayout(index(self.weight_bits), self.segment),
                "codebook": data.ArrayLayout(self.centroid, 1 << self.weight_bits),
                "last": FLAG,
            }
        )


class CentroidSum(Component[CentroidSumParameters]):
    """sum = round32(sum over a column's positions of activation * codebook[weight]).

    ::

        weight ─→ select ─→ Booth digits ─┐
        activation ───────────────────────┴─→ rows ─→ carry-save ─→ 2 rows ─→ accumulator ─┐
                          FP32 ←─ queue ←─ round ←─ normalise ←──── at the column's end ───┘

    Exact but for one rounding to FP32, to nearest even; a sum of zero is +0. All partial products
    of a step go into one tree of adders.

    Latency: `stages` + 4 cycles from a column's last step to its sum. Throughput: a step a cycle.
    Handshake: ``i.ready`` is
    low while as many columns are inside as the queue has room for; it and ``o.valid`` depend on
    registers only. Overflow: none for up to k positions.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Columns, step by step."),
            "o": stream_out(FP32, "A sum for each column."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.credits = credits = CreditCounter(CreditCounterParameters(p.columns))
        m.submodules.queue = queue = Queue(QueueParameters(FP32.width, p.columns), shape=FP32)
        m.submodules.to_float = to_float = FixedToFloat(p.to_float)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        accepted = Signal()
        m.d.comb += [
            self.i.ready.eq(credits.available),
            accepted.eq(self.i.valid & self.i.ready),
            # A column takes a place in the queue with its last step, when the result can no longer
            # be held back.
            # Steps before a column's last one need no place: they stop in the accumulator.
            credits.take.eq(accepted & self.i.payload.last),
            credits.give.eq(self.o.valid & self.o.ready),
        ]
        # Nothing stalls after a step is accepted; valid and last accompany it.
        valid, last = accepted, self.i.payload.last
        for stage in range(p.stages):
            valid = _register(m, f"valid_{stage}", valid, reset=True)
            last = _register(m, f"last_{stage}", last)

        addends = self._products(m)
        # After a column's last step the next one starts from zero.
        first = Signal(init=1)
        total = Signal(signed(p.width), reset_less=True)
        before = Signal(p.width)
        m.d.comb += before.eq(total & ~first.replicate(p.width))
        partial, carries = carry_save(m, before, *addends, p.width, "total")
        # The accumulator is a carry-save addition and one carry chain: one cycle for any number of
        # products.
        with m.If(valid):
            m.d.sync += [first.eq(last), total.eq(partial + Cat(Const(0, 1), carries))]

        # The total is complete a cycle after the last step, then it is normalised and rounded.
        done = valid & last
        for stage in range(1 + p.FLOAT_STAGES):
            done = _register(m, f"done_{stage}", done, reset=True)
        m.d.comb += [
            to_float.a.eq(total),
            queue.i.valid.eq(done),
            queue.i.payload.eq(to_float.o),
        ]
        return m

    def _products(self, m: Module) -> tuple[Value, Value]:
        """Two numbers that add up to the sum of a step's products, modulo 2^width."""
        p = self.parameters
        cuts = p.CUTS[p.stages]
        step = self.i.payload
        codebook = [Value.cast(centroid) for centroid in step.codebook]
        columns: Columns = [[] for _ in range(p.width)]
        inverted = 0  # sum of the weights of the rows' inverted signs
        for number, (x, weight) in enumerate(zip(step.activation, step.weight, strict=True)):
            x, y = Value.cast(x), select(m, weight, codebook, f"weight_{number}")
            # First register: centroids selected by the weight indices.
            if "lookup" in cuts:
                x, y = (_register(m, f"{n}_{number}", v) for n, v in (("x", x), ("y", y)))
            # Rows have their sign inverted in place of an extension; what that adds is subtracted
            # once for all.
            inverted += add_product(m, columns, x, y, f"{number}")
        # After half of the tree's levels its height is about the square root.
        height = round((2 * max(map(len, columns))) ** 0.5)
        columns = reduce_columns(m, columns, max(height, 2))
        # A register here holds fewer bits than before the tree and splits its delay evenly.
        if "halfway" in cuts:
            columns = unpack(columns, _register(m, "halfway", pack(columns)))
        # The constant is added here and not before, because it would make the columns higher.
        for weight, column in enumerate(columns):
            if -inverted >> weight & 1:
                column.append(Bit(0.0, Const(1, 1)))
        columns = reduce_columns(m, columns, 2)
        if "reduced" in cuts:
            columns = unpack(columns, _register(m, "reduced", pack(columns)))
        return rows(columns)


def add_product(m: Module, columns: Columns, x: Value, y: Value, name: str) -> int:
    """Add the bits of x y, both in two's complement, to columns that are wide enough.

    Two bits of `y` and the one below make a digit d = -2 ... 2 (Booth 1951, MacSorley 1961), whose
    row is |d| x, inverted where d < 0, which one more bit makes a negation::

        | ~r | r r … r |       row, n + 1 bits, its sign r inverted
                 + s |         s = 1 if d < 0

    Returns the weights of the inverted signs, to be subtracted once for all products.
    """
    n = len(x)
    inverted = 0
    # With a zero below, and the sign once more above an odd number of bits.
    digits = [Const(0, 1), *y, y[-1]]
    for low in range(0, len(y), 2):
        below, middle, top = digits[low : low + 3]
        one, two, negative = (
            Signal(name=f"{kind}_{name}_{low}") for kind in ("one", "two", "negative")
        )
        chosen = Signal(n, name=f"multiplicand_{name}_{low}")
        row = Signal(n + 1, name=f"row_{name}_{low}")
        m.d.comb += [
            one.eq(middle ^ below),
            two.eq((top & ~middle & ~below) | (~top & middle & below)),
            negative.eq(top & ~(middle & below)),
            chosen.eq(x ^ top.replicate(n)),
            row.eq(
                (Cat(chosen, chosen[-1]) & one.replicate(n + 1))
                | (Cat(top, chosen) & two.replicate(n + 1))
            ),
        ]
        for column, bit in zip(columns[low:], Cat(row[:-1], ~row[-1]), strict=False):
            column.append(Bit(1.5, bit))
        columns[low].append(Bit(0.5, negative))
        inverted += 1 << low + n
    return inverted


def _register(m: Module, name: str, value: Value, reset: bool = False) -> Signal:
    register = Signal(len(value), name=name, reset_less=not reset)
    m.d.sync += register.eq(value)
    return register
