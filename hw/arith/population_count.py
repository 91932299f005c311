"""Number of ones among n bits."""

import dataclasses
import heapq

from amaranth.hdl import Cat, Module, Signal, Value

from hw.arith.bits.carry_save import CARRY, CARRY_LATE, SUM, SUM_LATE
from hw.arith.datapath import Datapath, DatapathParameters
from hw.layout import count, mask
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class PopulationCountParameters(DatapathParameters):
    """
    n
        Bits to count.
    """

    n: int = 16

    def __post_init__(self):
        super().__post_init__()
        require(self.n >= 2, "n must be at least 2", self.n)

    @classmethod
    def presets(cls) -> dict[str, "PopulationCountParameters"]:
        return {"default": cls(), "registered": cls(stages=1), "wide": cls(n=128)}


class PopulationCount(Datapath[PopulationCountParameters]):
    """The number of ones among n bits.

    Full adders turn three bits of one weight into a sum of that weight and a carry of the next,
    until each weight has one bit: at most n - 1 adders in all. Bits with the smallest delay are
    added first, and among equal ones the newest (after Oklobdzija, Villeger and Liu, "A method for
    speed optimized partial product reduction", 1996).

    Latency: `stages`, 0 or 1. Throughput: one count per cycle.

    Examples
    --------
    16 bits can all be ones, so the count has five bits:

    >>> from hw.arith.population_count import PopulationCount, PopulationCountParameters
    >>> PopulationCount(PopulationCountParameters(n=16)).o.shape()
    unsigned(5)
    """

    summary = "Number of ones among n bits"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        n = p.n
        return {
            "i": wire_in(mask(n), "Bits."),
            "o": wire_out(count(n.bit_length()), "Number of bits that are 1."),
        }

    def elaborate(self, platform):
        m = Module()
        width, adders = len(self.o), 0
        # A heap of (delay, order, bit) for each weight.
        columns: list[list[tuple[float, int, Value]]] = [[] for _ in range(width + 1)]
        columns[0] = [(0.0, number, bit) for number, bit in enumerate(self.i)]
        for heap, carries in zip(columns[:-1], columns[1:], strict=True):
            heapq.heapify(heap)
            # Bits that arrive first are added first (Dadda's and Wallace's trees do not look at
            # delays), so late bits meet few adders.
            while len(heap) > 1:
                adders += 1
                bits = [heapq.heappop(heap) for _ in range(min(3, len(heap)))]
                (sum_time, total), (carry_time, carry) = _add(m, bits, adders)
                heapq.heappush(heap, (sum_time, -adders, total))
                carries.append((carry_time, -adders, carry))
        ones = Signal.like(self.o)
        m.d.comb += ones.eq(Cat(heap[0][2] for heap in columns[:-1]))
        m.d.comb += self.o.eq(self.registers(m)("result", ones=ones))
        return m


def _add(m: Module, bits: list[tuple[float, int, Value]], number: int) -> list[tuple[float, Value]]:
    """Sum and carry of two or three bits, each with its delay."""
    half, total, carry = (Signal(name=f"{kind}_{number}") for kind in ("half", "sum", "carry"))
    (t0, _, x), (t1, _, y), *last = bits
    early = max(t0, t1)
    m.d.comb += half.eq(x ^ y)
    if not last:
        m.d.comb += [total.eq(half), carry.eq(x & y)]
        return [(early + SUM / 2, total), (early + CARRY / 3, carry)]
    [(t2, _, z)] = last
    m.d.comb += [total.eq(half ^ z), carry.eq((x & y) | (half & z))]
    times = max(early + SUM, t2 + SUM_LATE), max(early + CARRY, t2 + CARRY_LATE)
    return [(times[0], total), (times[1], carry)]
