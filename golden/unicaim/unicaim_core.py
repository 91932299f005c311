"""Bit-exact model of UniCAIM's core: the rows of each kv head, job after job."""

from dataclasses import dataclass, field

import numpy as np

from golden.arith.float_multiply import float_multiply
from golden.attention.pe_array import inner_products, outer_product
from golden.attention.special_function_unit import softmax
from golden.unicaim.cell_array import CellArray
from golden.unicaim.cells import query_planes, row_scores, score_limit
from golden.unicaim.charge_accumulator import ChargeAccumulator
from golden.unicaim.digital_array import search
from golden.unicaim.eviction_sense import eviction_sense
from golden.unicaim.level_converter import LevelConverter
from golden.unicaim.sar_adc import sar_adc
from golden.unicaim.topk_sense import topk_sense

TILE = 8
"""Scores in a tile of the softmax."""


@dataclass(frozen=True)
class CoreSizes:
    """What the results depend on; names and meanings are as in the hardware's parameters."""

    rows: int
    d: int
    key_bits: int = 3
    query_bits: int = 1
    kv_heads: int = 1
    group: int = 1
    array: str = "digital"
    exact: str = "rows"
    adc_bits: int = 10
    share: int = 4
    fraction: int = 8
    fill: bool = True
    start: str = "mean"
    rotate: bool = True
    spread_mv: int = 0
    time_steps: int = 0
    late: int = 0
    line_error: int = 0
    calibrate: bool = False
    seed: int = 1

    @property
    def score_limit(self) -> int:
        return score_limit(self.d, self.key_bits, self.query_bits)

    @property
    def score_bits(self) -> int:
        return self.score_limit.bit_length() + 1

    @property
    def sum_bits(self) -> int:
        """Bits of the sum of a group's scores."""
        return self.score_bits + (self.group - 1).bit_length()

    @property
    def calibration_bits(self) -> int:
        """Bits of the codes of rows' own errors; 0 where they are not measured."""
        return self.adc_bits if self.calibrate else 0

    @property
    def adc_shift(self) -> int:
        """Shift of a code: one step of it is 2^adc_shift of score."""
        return max(0, self.score_bits - self.adc_bits)


@dataclass(frozen=True, eq=False)
class HeadResult:
    """Result of one query: the rows ``selected``, ascending, their probabilities ``p`` (float16),
    the output ``o`` float16[d], whether the softmax was ``invalid``, the ``scores`` of all rows on
    the array's lines, 0 for unused ones, and the ``steps`` of the search.
    """

    selected: list[int]
    p: np.ndarray
    o: np.ndarray
    invalid: bool
    scores: np.ndarray
    steps: int


@dataclass(frozen=True, eq=False)
class JobResult:
    """Result of a job: the ``row`` written, whether it ``evicts``, ``conversions``, ``steps``,
    heads.
    """

    row: int
    evicts: bool
    conversions: int = 0
    steps: int = 0
    heads: list[HeadResult] = field(default_factory=list)


class KvHead:
    """The rows of one kv head: K and V float16[rows, d], levels, and accumulations."""

    def __init__(self, p: CoreSizes) -> None:
        self.k, self.v = np.zeros((2, p.rows, p.d), np.float16)
        self.levels = np.zeros((p.rows, p.d), np.int64)
        self.accumulator = ChargeAccumulator(p.rows, p.sum_bits, p.fraction, p.share)
        self.used = 0
        self.evict: int | None = None


class UnicaimCore:
    """All kv heads of a core; ``heads`` [kv heads] are for reading."""

    def __init__(self, sizes: CoreSizes) -> None:
        p = self.sizes = sizes
        seed = p.seed if p.rotate else None
        self.converter = LevelConverter(p.key_bits, p.query_bits, p.kv_heads, seed)
        self.heads = [KvHead(p) for _ in range(p.kv_heads)]
        self._cells = CellArray(p, p.kv_heads) if p.array == "cell" else None

    def load(self, kv_head: int, mean: np.ndarray, divisor: float) -> None:
        """The mean key, float16[d], and the divisor of a kv head's keys."""
        self.converter.load(kv_head, mean, divisor)

    def clear(self, kv_head: int) -> JobResult:
        """No row is in use any more."""
        head = self.heads[kv_head]
        head.used, head.evict = 0, None
        head.accumulator.clear()
        return JobResult(0, False)

    def preset(self, kv_head: int, k: np.ndarray, v: np.ndarray) -> JobResult:
        """A row of the prompt, float16[d] each."""
        row, evicts = self._write(kv_head, k, v, mean=False)
        self._find(kv_head)
        return JobResult(row, evicts)

    def step(
        self,
        kv_head: int,
        k: np.ndarray,
        v: np.ndarray,
        q: np.ndarray,
        divisors: np.ndarray,
        top_k: int,
        units: np.ndarray | None = None,
    ) -> JobResult:
        """A token: ``k``, ``v`` float16[d], its queries ``q`` float16[heads, d] times the scale.

        divisors, units
            float[heads]: of the queries' levels, and what a converter's code is worth.
        """
        p = self.sizes
        row, evicts = self._write(kv_head, k, v, mean=p.start == "mean")
        results, steps = [], 0
        for number, (query, divisor) in enumerate(zip(q, divisors, strict=True)):
            scores = self._scores(kv_head, self.converter.query(query, float(divisor)))
            used = np.arange(p.rows) < self.heads[kv_head].used
            if self._cells is None:
                high, _ = search(scores, used, top_k, p.score_limit)
            else:
                high = self._cells.search(scores, used, top_k).high
            steps += len(high)
            selected = topk_sense(high, top_k, p.fill)
            unit = None if units is None else units[number]
            results.append(self._attend(kv_head, query, selected, scores, len(high), unit))
        if results:
            total = np.sum([result.scores for result in results], axis=0)
            # Of more heads than `group`, as the hardware wraps.
            half = 1 << p.sum_bits - 1
            self.heads[kv_head].accumulator.share((total + half) % (2 * half) - half)
        self._find(kv_head)
        conversions = sum(len(result.selected) for result in results)
        return JobResult(row, evicts, conversions, steps, results)

    def _write(self, kv_head: int, k, v, mean: bool) -> tuple[int, bool]:
        head = self.heads[kv_head]
        evicts = head.used == self.sizes.rows
        row = head.evict if evicts else head.used
        assert row is not None, "no row to evict is known"
        head.used += not evicts
        head.k[row], head.v[row] = k, v
        head.levels[row] = self.converter.keys(kv_head, k)
        head.accumulator.start(row, mean)
        return row, evicts

    def _find(self, kv_head: int) -> None:
        """The row to evict next, if all are in use."""
        head = self.heads[kv_head]
        if head.used == self.sizes.rows:
            head.evict = eviction_sense(head.accumulator.planes())

    def _scores(self, kv_head: int, query: np.ndarray) -> np.ndarray:
        """Scores on the lines, of unused rows 0."""
        p, head = self.sizes, self.heads[kv_head]
        scores = np.zeros(p.rows, np.int64)
        rows = slice(head.used)
        if self._cells is None or not p.spread_mv:
            scores[rows] = row_scores(head.levels[rows], query[None])[0]
        else:
            planes = query_planes(query, p.query_bits)
            scores[rows] = self._cells.scores(kv_head, head.levels[rows], planes)
        return scores

    def _attend(self, kv_head: int, query, selected: list[int], scores, steps: int, unit):
        """The exact stage."""
        p, head = self.sizes, self.heads[kv_head]
        if not selected:
            nothing, zeros = np.zeros(0, np.float16), np.zeros(p.d, np.float16)
            return HeadResult([], nothing, zeros, False, scores, steps)
        if p.exact == "rows":
            s = inner_products(query[None], head.k[selected][None], relative=True)[0]
        else:
            fraction = max(1, p.adc_shift)
            samples = scores[selected] << fraction - p.adc_shift
            codes = sar_adc(samples, p.adc_bits, fraction).astype(np.float16)
            s = float_multiply(codes, np.float16(unit))
        y, invalid = softmax(s, p.rows, TILE)
        o = outer_product(y[None], head.v[selected][None])[0]
        return HeadResult(selected, y, o, bool(invalid), scores, steps)
