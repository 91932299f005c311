"""Units and their schedule: sections IV-A to IV-C."""

import dataclasses
from functools import lru_cache
from math import log2

import numpy as np

from golden.algorithms.kllm.cost import cost
from golden.algorithms.kllm.cost import published as paper
from golden.algorithms.kllm.cost.decode import EXPONENTIALS, search_cycles
from golden.algorithms.kllm.quantize import outlier_count
from golden.kllm.orizuru import orizuru
from golden.studies.kllm_cost.parts import OWN
from golden.studies.kllm_cost.rates import K, Setting, percent
from golden.studies.study import Claim, Verdict

UNIT = 16
"""Inputs of a counter and of a unit of Orizuru."""
CONCAT_UNITS = 65536
"""Units of the chip, section IV-A."""
POPS = outlier_count(K, 0.01)
"""At each end of a vector of `K` values: 0.5 %."""
COUNTER_PS, POP_PS = 1324, 1360
"""Slowest path of a counter of 16 inputs, and of a pop and its replay through three levels of
Orizuru: Nangate 45 nm, docs/kllm.md."""


def lane_claims(setting: Setting) -> list[Claim]:
    """Units of a lane (sections IV-A and IV-B)."""
    concat, mac, counter = (paper.NAMED[name] for name in ("Concat Unit", "MAC", "IdxCounter"))
    table = mac.unit_area / concat.unit_area
    ours = OWN["MAC"][0] / OWN["Concat Unit"][0]
    counted = counter.units * UNIT
    idle = concat.units // counted
    path = concat.unit_area + counter.unit_area / UNIT
    own_path = OWN["Concat Unit"][0] + OWN["IdxCounter"][0] / UNIT
    return [
        Claim(
            "a Concat unit has significantly higher area efficiency than an FP16 MAC unit",
            f"{table:.0f} times smaller in Table I, {ours:.0f} times here",
            Verdict.of(table > 1, ours > 1),
            f"a concatenation alone multiplies nothing: with its share of a counter an index takes"
            f" {path:.0f} µm² in Table I and {own_path:.0f} here, {mac.unit_area / path:.1f} and"
            f" {OWN['MAC'][0] / own_path:.1f} times less than a MAC; with bins, their copy and the"
            " reduction it is more ([counting](kllm_counting.md))",
            where="IV-A",
        ),
        Claim(
            f"{concat.units} Concat units a lane, {CONCAT_UNITS:,} on the chip",
            f"{paper.LANES} × {concat.units} = {paper.LANES * concat.units:,}",
            Verdict.HOLDS if paper.LANES * concat.units == CONCAT_UNITS else Verdict.CONTRADICTS,
            f"as many as 4-bit weights in a lane's buffer of 2 KB. But {counter.units} counters of"
            f" {UNIT} take {counted} indices a cycle, one in {idle}",
            where="IV-A",
        ),
        Claim(
            f"a counter of {UNIT} inputs meets the timing of {setting.core.clock / 1e6:.0f} MHz",
            f"{COUNTER_PS} ps at 45 nm",
            Verdict.of(1e12 / setting.core.clock > COUNTER_PS),
            "Nangate, mapped for 2 ns, no wires ([areas](../kllm.md#area-and-delay)); its area is"
            " in the table of Table I",
            where="IV-B",
        ),
    ]


def softmax_claims(setting: Setting) -> list[Claim]:
    """The softmax beside the products (section IV-A)."""
    four = setting.at(activation_bits=4)
    shape, token = setting.shape, four.token()
    scores = shape.layers * shape.heads * setting.context
    taken = {units: scores / units for units in (1, EXPONENTIALS)}
    parts = {"layers": token.layers, "keys": token.keys, "values": token.values}
    longest = max(parts.values())
    largest = max(parts, key=lambda name: parts[name])
    hidden = [setting.at(activation_bits=bits).token().softmax for bits in (4, 3)]
    return [
        Claim(
            "SoftMax becomes the bottleneck, as its input is not quantised",
            ", ".join(
                f"{value / 1e3:.0f} thousand cycles with {units} exponential unit"
                + "s" * (units > 1)
                for units, value in taken.items()
            ),
            Verdict.of(*(value > longest for value in taken.values())),
            f"{shape.name}, a score a unit and cycle; the longest other part is {largest},"
            f" {longest / 1e3:.0f} thousand. The text has {EXPONENTIALS} units",
            where="IV-A",
        ),
        Claim(
            "the softmax of a head runs while another head is multiplied",
            f"{max(hidden) / 1e3:.0f} thousand cycles are not hidden,"
            f" {percent(taken[EXPONENTIALS] / token.cycles)} of A4's cycles are",
            Verdict.of(not any(hidden)),
            f"mean over an output of {setting.tokens} tokens, A4 and A3; the core has the same"
            " pipeline of heads ([attention](../kllm.md#attention))",
            where="IV-A",
        ),
    ]


@lru_cache(maxsize=1)
def counted_comparisons(n: int, pops: int) -> int:
    """Comparisons of the model of Orizuru on a random vector."""
    x = np.random.default_rng(0).standard_normal(n).astype(np.float16)
    return orizuru(x, pops).comparisons


def merge_sort_comparisons(n: int) -> int:
    """Most comparisons of a merge sort of a power of two."""
    return n * (n.bit_length() - 1) - n + 1


@dataclasses.dataclass(frozen=True)
class Search:
    """Work of Orizuru on `n` values, in comparisons and in cycles.

    One comparison a unit of 16 inputs and cycle: a leaf's 8 of the lowest level serve both trees.
    """

    n: int
    pops: int

    @property
    def set_up(self) -> int:
        """Comparisons of both trees' set-up."""
        return 3 * self.n // 2 - 2

    @property
    def replayed(self) -> int:
        """Comparisons after all pops."""
        return 2 * self.pops * int(log2(self.n))

    @property
    def set_up_cycles(self) -> int:
        """Leaves: 8 + 2 · 7; each level above: 15 for either tree."""
        levels = -(-int(log2(self.n)) // int(log2(UNIT)))
        return UNIT // 2 + 2 * (UNIT // 2 - 1) + (levels - 1) * 2 * (UNIT - 1)

    @property
    def replay_cycles(self) -> int:
        """One comparison after another; the trees side by side."""
        return self.replayed // 2


def orizuru_claims(setting: Setting) -> list[Claim]:
    """Orizuru's comparisons, units and time (section IV-C)."""
    search = Search(K, POPS)
    said = cost(K, 1, POPS).comparisons
    counted = counted_comparisons(K, POPS)
    sort = merge_sort_comparisons(K)
    both = 2 * (K - 1) + search.replayed
    half = 1 - (K // 2 - 1) / (K - 1)
    units = sum(K // UNIT**level for level in (1, 2, 3))
    whole = paper.NAMED["Orizuru"]
    return [
        Claim(
            f"1.5 N + 2 k log2 N comparisons: {said:.0f} for N = {K}, k = {POPS}",
            f"{counted} counted",
            Verdict.COUNTS if counted == said - 2 else Verdict.NOT,
            f"exactly 1.5 N − 2 + 2 k log2 N, which the text rounds. A merge sort takes up to"
            f" {sort:,}, {sort / counted:.1f} times as many, two separate trees {both:,}",
            where="IV-C",
        ),
        Claim(
            "the min tree's set-up takes 50 % fewer comparisons by the max tree's lowest level",
            f"{percent(half)}: {K // 2 - 1} instead of {K - 1}",
            Verdict.COUNTS if abs(half - 0.5) < 1 / K else Verdict.NOT,
            f"{percent(1 - counted / both)} of all comparisons at 1 % of outliers",
            where="IV-C",
        ),
        Claim(
            f"{whole.units} units of {UNIT} inputs for N = {K}",
            f"{units}",
            Verdict.HOLDS if units == whole.units else Verdict.CONTRADICTS,
            f"three levels of {UNIT} inputs; {percent(whole.area / paper.TOTAL_AREA)} of the chip's"
            f" area and {percent(whole.power / paper.TOTAL_POWER)} of its power in Table I",
            where="Table I, IV-C",
        ),
        Claim(
            "with few comparators the set-up of the trees is the bottleneck",
            f"set-up {search.set_up} comparisons, pops {search.replayed}; with one comparator a"
            f" unit set-up {search.set_up_cycles} cycles, pops {search.replay_cycles}",
            Verdict.of(
                search.set_up > search.replayed, search.set_up_cycles > search.replay_cycles
            ),
            f"N = {K}, 1 % of outliers, {whole.units} units. Maintenance is sequential by the text"
            f" and set-up is not: with a level of a tree a cycle set-up takes {int(log2(K))} of"
            f" {search_cycles(K, POPS)} cycles. So the time is the pops', if no cycle does more"
            " than one comparison of a path",
            where="IV-C",
        ),
        Claim(
            "a pop takes one clock cycle, without comparisons",
            f"a pop and its replay of both trees in one cycle, {POP_PS} ps at 45 nm",
            Verdict.of(1e12 / setting.core.clock > POP_PS),
            "the RTL pops in every cycle, as tests assert and proofs of small sizes show; a unit"
            " holds its best value in a register, so that the log2 N comparisons of a replay are"
            " not one after another ([Orizuru](../kllm.md#orizuru))",
            where="IV-C",
        ),
    ]
