"""The sum of the lanes' differences, cycle by cycle against its bit-exact model."""

import dataclasses

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.topick.dag import Denominator
from golden.topick.pec import difference, term
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.dag import Dag, DagParameters
from tests.support.topick.closed_loop import on_grid

SMALL = DagParameters.presets()["small"]


class Tokens:
    """The lanes' tokens, each with its latest term."""

    def __init__(self, p: DagParameters, seed: int, octaves: float = np.inf):
        self._p, self._rng = p, np.random.default_rng(seed)
        limit = (1 << p.width - 2) / (1 << p.fraction)
        self._limit, self._octaves = limit, min(octaves, limit)
        self.clear()

    def clear(self) -> None:
        rng = self._rng
        self._centre = rng.uniform(self._octaves - self._limit, self._limit - self._octaves + 1e-9)
        self.terms: list[dict[int, tuple[int, int]]] = [{} for _ in range(self._p.lanes)]

    def next(self, lane: int) -> tuple[int, int, int]:
        """A new token's term, or a token's better one, or a token is pruned."""
        p, rng, terms = self._p, self._rng, self.terms[lane]
        token = int(rng.integers(p.tokens // p.lanes))
        old = terms.get(token)
        drop = old is not None and rng.random() < 0.3
        # The lower bound of a score, which a token's next chunk may raise a little or a lot.
        middle = self._centre if old is None else -old[0] + rng.exponential(2)
        bound = rng.uniform(middle - self._octaves, middle + self._octaves)
        bound = int(min(max(bound, -self._limit), self._limit) * (1 << p.fraction))
        new = self.term(bound)
        if drop:
            del terms[token]
        else:
            terms[token] = new
        return self.difference(new, old, drop)

    def term(self, bound: int) -> tuple[int, int]:
        p = self._p
        shift, significand = term(bound, 0, fraction=p.fraction, precision=p.precision)
        return int(shift), int(significand)

    def difference(self, new, old=None, drop=False) -> tuple[int, int, int]:
        sizes = {"precision": self._p.precision, "limb": self._p.limb}
        found = difference(new, old or (0, 0), drop, old is not None, **sizes)
        number, high, low = map(int, found)
        return number, high, low


def run(dut: Dag, cycles: list[tuple[bool, dict[int, tuple[int, int, int]]]]) -> list:
    """The denominator in each cycle, None if it is not known. A cycle: clear, and differences."""
    found = []
    layout = dut.parameters.difference_layout

    async def testbench(ctx):
        for clear, differences in cycles:
            ctx.set(dut.clear, clear)
            for lane, port in enumerate(dut.difference):
                ctx.set(port.valid, lane in differences)
                # The payload of no difference is arbitrary.
                values = differences.get(lane, (5, -3, -1))
                names = zip(("limb", "high", "low"), values, strict=True)
                ctx.set(port.payload.as_value(), layout.const(dict(names)).as_bits())
            known, log2 = ctx.get(dut.denominator.known), ctx.get(dut.denominator.log2)
            found.append(log2 if known else None)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return found


def model(p: DagParameters, cycles) -> list:
    """What :func:`run` must find."""
    total = Denominator(limb=p.limb, fraction=p.fraction)
    after, found = [None] * p.latency, []
    for clear, differences in cycles:
        found.append(after[-p.latency])
        for values in differences.values():
            total.add(*values)
        known, log2 = (False, 0) if total.number is None else total.log2()
        after.append(log2 if known else None)
        if clear:  # nothing is in the tree, and the sum is there for a cycle more
            total = Denominator(limb=p.limb, fraction=p.fraction)
            after[len(after) - p.levels :] = [None] * p.levels
    return found


def settle(p: DagParameters) -> list:
    """Cycles until the last differences are in the denominator."""
    return [(False, {})] * (p.latency + 1)


@pytest.mark.parametrize("lanes", [1, 2, pytest.param(16, marks=pytest.mark.campaign)])
def test_every_cycle(lanes):
    """Differences of a few octaves and of all, one at a time and of all lanes at once; clears in
    every distance from one another, each as soon as no difference is in the tree."""
    p = dataclasses.replace(SMALL, lanes=lanes)
    rng = np.random.default_rng(lanes)
    cycles = []
    for octaves in (4, 20, np.inf):
        for rate, cleared in ((1, 0), (1, 0.02), (1, 0.3), (0.1, 0.1), (0.5, 0.02)):
            tokens = Tokens(p, int(rng.integers(1 << 30)), octaves)
            for _ in range(40):
                active = [n for n in range(lanes) if rng.random() < rate]
                cycles.append((False, {n: tokens.next(n) for n in active}))
                if rng.random() < cleared:
                    cycles += [(False, {})] * p.levels + [(True, {})]
                    tokens.clear()
            cycles += settle(p)[: p.levels + int(rng.integers(p.latency))]
            cycles.append((True, {}))
    found, wanted = run(Dag(p), cycles), model(p, cycles)
    assert found == wanted
    known = [log2 for log2 in wanted if log2 is not None]
    assert len(set(known)) > 100 and None in wanted[p.latency :]


@pytest.mark.parametrize("preset", ["default", pytest.param("paper", marks=pytest.mark.campaign)])
def test_presets(preset):
    p = DagParameters.presets()[preset]
    cycles = []
    for octaves in (4, 40, np.inf):
        tokens = Tokens(p, 3, octaves)
        cycles += [(False, {n: tokens.next(n) for n in range(p.lanes)}) for _ in range(60)]
        cycles += [*settle(p), (True, {})]
    assert run(Dag(p), cycles) == model(p, cycles)


def test_latency():
    """A difference shows in exactly `latency` cycles, a clear a cycle later than at the sum."""
    for lanes in (1, 3):
        p = dataclasses.replace(SMALL, lanes=lanes)
        tokens = Tokens(p, 0)
        one = tokens.difference(tokens.term(0))
        cycles = [(False, {lanes - 1: one}), *settle(p), (True, {}), *settle(p)]
        found = run(Dag(p), cycles)
        cleared = p.latency + 3 + p.latency - p.levels
        shown = [None] * p.latency + [-1] * (cleared - p.latency)
        assert found == shown + [None] * (len(cycles) - cleared)


@pytest.mark.parametrize("lanes", [1, 4])
def test_scores_at_their_limits(lanes):
    """Every token has the largest score, or the smallest, or leaves the least that can be left."""
    p = dataclasses.replace(SMALL, lanes=lanes)
    limit = 1 << p.width - 2
    tokens = Tokens(p, 0)
    for bound in (-limit, limit):
        new = tokens.term(bound)
        one = tokens.difference(new)
        cycles = [(False, dict.fromkeys(range(lanes), one))] * (p.tokens // lanes)
        found = run(Dag(p), [*cycles, *settle(p)])
        # A term is below its power by less than 2^(1 - precision) of it.
        exact = bound + (p.tokens.bit_length() - 1 << p.fraction)
        assert exact - 2 <= found[-1] <= exact and found == model(p, [*cycles, *settle(p)])
        assert -(1 << p.width - 1) <= found[-1] < 1 << p.width - 1
    # The sum is one unit of the lowest limb: a token of which one bit is left, and one that went.
    limb = -((tokens.term(-limit)[0] + 1) // p.limb)  # all of it above the smallest score
    small, large = ((-n * p.limb - 1, 1 << p.precision - 1) for n in (limb, limb + 1))
    cycles = [
        (False, {0: tokens.difference(large)}),
        (False, {0: tokens.difference(small)}),
        (False, {0: tokens.difference(large, large, drop=True)}),
        *settle(p),
    ]
    found = run(Dag(p), cycles)
    assert found == model(p, cycles) and found[-1] == limb * p.limb << p.fraction


def test_a_sum_has_every_term_in_any_order():
    """The pipeline's last sum is that of the latest terms, each without the bits below it."""
    p = dataclasses.replace(SMALL, lanes=4)
    tokens = Tokens(p, 9, 12)
    total = Denominator(limb=p.limb, fraction=p.fraction)
    for _ in range(200):
        for lane in range(p.lanes):
            total.add(*tokens.next(lane))
        terms = [value for lane in tokens.terms for value in lane.values()]
        assert total.units == on_grid(terms, total.number, p)


def test_parameters():
    with pytest.raises(ValueError, match="limb must be a power of two between 12"):
        DagParameters(limb=32)
    with pytest.raises(ValueError, match="width must leave room for log2 of a sum of 1024 terms"):
        DagParameters(width=17)
    for name in ("small", "default", "paper", "streams"):
        p = TopickCoreParameters.presets()[name].dag
        assert p.lanes == TopickCoreParameters.presets()[name].lanes_per_head
