"""Margins, decisions and terms: the bit-exact models against exact numbers; several sizes."""

from fractions import Fraction

import numpy as np
import pytest

from golden.algorithms.topick.decide import margins
from golden.topick.dag import Denominator
from golden.topick.margin_generator import scale_code, scaled_margins, threshold_code
from golden.topick.pec import difference, limbs, term
from golden.topick.rpdu import prune
from hw.catalogue import find
from hw.topick.margin_generator import MarginGeneratorParameters
from hw.topick.pec import PecParameters
from hw.topick.rpdu import RpduParameters
from sim.drivers.run import load_testbench
from tests.support.topick.closed_loop import on_grid
from tests.support.topick.simulated_datapath import check


@pytest.mark.parametrize("seed", range(3))
def test_margins_are_the_algorithms_rounded_up(seed):
    rng = np.random.default_rng(seed)
    for bits, chunk_bits, base in ((12, 4, 14), (12, 3, 20), (4, 2, 3), (6, 1, 5)):
        q = rng.integers(-(1 << bits - 1), 1 << bits - 1, (50, 8)) >> rng.integers(0, bits, (50, 1))
        mantissa, shift = rng.integers(0, 1 << 6, 50), rng.integers(0, 8, 50)
        widths = {"bits": bits, "chunk_bits": chunk_bits, "base": base}
        most, least = scaled_margins(q, mantissa, shift, **widths)
        low, high = margins(q, bits, chunk_bits)
        for n, (m, s) in enumerate(zip(mantissa.tolist(), shift.tolist(), strict=True)):
            c = Fraction(m, 1 << base + s)
            for chunk in range(bits // chunk_bits - 1):
                up, down = Fraction(int(high[chunk, n])) * c, -Fraction(int(low[chunk, n])) * c
                assert 0 <= most[n, chunk] - up < 1 and 0 <= least[n, chunk] - down < 1
        assert not high[-1].any() and not low[-1].any()


def test_scale_codes():
    sizes = {"base": 14, "scale_bits": 16, "shift_bits": 4}
    for c in (1e-6, 3e-4, 0.01, 0.7, 3.9):
        mantissa, shift = scale_code(c, **sizes)
        assert mantissa < 1 << 16 and abs(mantissa - c * 2.0 ** (14 + shift)) <= 0.5
        assert shift == 15 or mantissa >= 1 << 15
    assert scale_code(100.0, **sizes) == ((1 << 16) - 1, 0)
    with pytest.raises(ValueError, match="a scale must be above 0, not 0"):
        scale_code(0, **sizes)


def test_threshold_codes():
    sizes = {"fraction": 10, "threshold_bits": 16}
    assert [threshold_code(2.0**-n, **sizes) for n in (1, 3, 10)] == [1024, 3072, 10240]
    for threshold in (1e-3, 0.3, 0.999, 2e-7):
        code = threshold_code(threshold, **sizes)
        assert 2.0 ** (-code / 1024) <= threshold < 2.0 ** (-(code - 1) / 1024)
    # The smallest threshold that prunes, and smaller ones, whose code prunes nothing.
    assert threshold_code(2.0 ** (-65534 / 1024), **sizes) == 65534
    assert threshold_code(0.0, **sizes) == threshold_code(1e-30, **sizes) == 65535
    with pytest.raises(ValueError, match="threshold must be at least 0 and below 1, not 1"):
        threshold_code(1, **sizes)


def test_pruned_is_below_the_threshold():
    """At the edge: t is up to one unit too small, all other operands are exact."""
    limit = 100
    for most, threshold in ((0, 0), (30, 20), (0, 7)):
        t = np.arange(limit - 120, limit + 20)
        limits = np.full(len(t), limit)
        got = prune(t, most, threshold, limits, np.ones(len(t)), threshold_bits=5)
        assert (t[got] + 1 + most + threshold <= limit).all() and 0 < got.sum() < len(t)
        assert (t[~got] + most + threshold >= limit).all()
    assert not prune(-1000, 0, 0, 1000, 0, threshold_bits=5)
    assert prune(-1000, 0, 30, 1000, 1, threshold_bits=5)
    assert not prune(-1000, 0, 31, 1000, 1, threshold_bits=5)


@pytest.mark.parametrize("fraction, precision", [(3, 4), (10, 12), (4, 6)])
def test_a_term_is_below_its_power(fraction, precision):
    t = np.arange(-3 << fraction, 3 << fraction)
    shift, significand = term(t, np.zeros_like(t), fraction=fraction, precision=precision)
    value = significand * 2.0 ** -(shift + precision)
    exact = np.exp2(t / 2.0**fraction)
    assert (value < exact).all() and (exact - value < exact * 2.0 ** (1 - precision)).all()
    assert (significand >> precision - 1 == 1).all()


@pytest.mark.parametrize("precision, limb", [(4, 4), (12, 16), (5, 8)])
def test_limbs_hold_all_of_a_term(precision, limb):
    shift = np.repeat(np.arange(-3 * limb, 3 * limb), 1 << precision - 1)
    significand = np.tile(np.arange(1 << precision - 1, 1 << precision), 6 * limb)
    number, high, low = limbs(shift, significand, precision=precision, limb=limb)
    assert ((high > 0) & (high < 1 << limb) & (low >= 0) & (low < 1 << limb)).all()
    value = (high * 2.0**limb + low) * 2.0 ** (limb * (number - 1))
    assert (value == significand * 2.0 ** -(shift + precision)).all()


@pytest.mark.parametrize("limb", [8, 16])
def test_a_denominator_is_the_sum_of_its_terms_in_any_order(limb):
    """Terms are added, replaced and removed, over a few octaves and over hundreds."""
    p = PecParameters(precision=6, limb=limb)
    options = {"precision": 6, "limb": limb}
    rng = np.random.default_rng(limb)
    climbs = 0
    for spread in (3, 20, 300):
        for _ in range(30):
            denominator = Denominator(limb=limb, fraction=10)
            terms = {}
            for _ in range(60):
                token = int(rng.integers(0, 12))
                old = terms.get(token, (0, 0))
                new = int(rng.integers(-spread, spread)), int(rng.integers(32, 64))
                if token in terms:
                    new = old[0] - int(rng.integers(-1, 3)), new[1]
                drop = token in terms and rng.random() < 0.3
                before = denominator.number
                denominator.add(*map(int, difference(new, old, drop, token in terms, **options)))
                climbs += before is not None and denominator.number > before
                terms[token] = new
                if drop:
                    del terms[token]
                assert denominator.units == on_grid(list(terms.values()), denominator.number, p)
                known, log2 = denominator.log2()
                assert known == (denominator.units > 0)
                if known:
                    exact = np.log2(denominator.units) + limb * (denominator.number - 1)
                    assert 0 <= exact - log2 / 1024 + 1e-12 < 2.5 / 1024
    assert climbs > 100


UNITS = {
    "topick.margin_generator": [
        MarginGeneratorParameters(
            d=5, bits=6, chunk_bits=3, scale_bits=5, shift_bits=0, width=12, stages=1
        ),
        MarginGeneratorParameters(
            d=3, bits=3, chunk_bits=1, scale_bits=4, shift_bits=3, width=9, stages=2
        ),
    ],
    "topick.rpdu": [RpduParameters(width=9, margin_bits=8, threshold_bits=1, stages=1)],
    "topick.pec": [
        PecParameters(width=12, margin_bits=6, fraction=1, precision=2, limb=2, stages=1),
        PecParameters(width=24, margin_bits=20, fraction=8, precision=10, limb=32, stages=2),
    ],
}


@pytest.mark.parametrize("name", UNITS)
def test_every_size(name):
    for parameters in UNITS[name]:
        block = find(name)
        values, _ = load_testbench(block).draw(parameters, None, 300, 7)
        check(block, parameters, values)
