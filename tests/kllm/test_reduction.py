"""The reduction: exact sums of counts times products, in both forms of the model and in RTL.

The rounding of sums is explained in docs/kllm.md, "Rounding of sums".
"""

from fractions import Fraction

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.algorithms.kllm.matvec import concatenate, count_indices, product_table, reduce
from golden.arith.fixed_sum import dot, round_sum, units
from golden.arith.formats import to_bits
from golden.kllm.reduction import MOST, index_products, index_totals, reduction, round_total
from hw.catalogue import find
from hw.kllm.reduction import Reduction, ReductionParameters
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.kllm.reduction import build, random_columns, real_columns, testbench
from tests.support.campaign import suite_takes
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.reduction")
TINY = ReductionParameters(k=3, activation_bits=1, weight_bits=1, macs=1)
SIZES = [
    TINY,
    ReductionParameters(k=1, activation_bits=1, weight_bits=2, macs=8),
    ReductionParameters(k=100, activation_bits=3, weight_bits=4, macs=2),
    ReductionParameters(k=4096, activation_bits=2, weight_bits=2, macs=4),
]


def by_fractions(counts, products):
    """The sum rounded once to FP32, by rational arithmetic."""
    total = sum(
        (int(c) * Fraction(float(p)) for c, p in zip(counts, products, strict=True) if c),
        Fraction(0),
    )
    return nearest_float32(total)


def nearest_float32(total):
    """The FP32 number nearest to a rational, ties to even; the result is not subnormal."""
    if not total:
        return np.float32(0)
    size = abs(total)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    place = Fraction(2) ** (exponent - 23)
    return np.float32(float(round(total / place) * place))


def test_golden_is_the_exact_sum_rounded_once():
    p = ReductionParameters(k=4096, macs=32)
    counts, products, _ = random_columns(p, 200, np.random.default_rng(1))
    total, invalid = reduction(counts, products)
    compared = 0
    for column in range(200):
        special = ~np.isfinite(products[column].astype(np.float64)) & (counts[column] > 0)
        assert invalid[column] == special.any()
        if invalid[column]:
            assert to_bits(total[column]) == 0x7FC00000
            continue
        expected = by_fractions(counts[column], products[column])
        assert to_bits(total[column]) == to_bits(expected), f"column {column}"
        compared += 1
    assert compared > 120 and invalid.sum() > 15


@pytest.mark.parametrize("unit", [-24, -48])
def test_rounding_of_ties_and_their_neighbours(unit):
    rng = np.random.default_rng(2)
    significand = rng.integers(1 << 23, 1 << 24, 3000)
    places = rng.integers(1, 29, 3000)
    half = np.int64(1) << (places - 1)
    exact = (significand << places) + half + rng.integers(-1, 2, 3000)
    exact *= rng.choice([-1, 1], 3000)
    low = exact & (1 << 40) - 1
    got = round_sum((exact - low).astype(np.float64), low.astype(np.float64), unit)
    for value, result in zip(exact.tolist(), got, strict=True):
        assert Fraction(float(result)) == Fraction(
            float(nearest_float32(value * Fraction(2) ** unit))
        )
    # More than the 53 bits of a float64: the lowest bit decides.
    tie = (1 << 79) + (1 << 55)
    for extra in (-1, 0, 1):
        for sign in (-1, 1):
            value = sign * (tie + extra)
            low = value & (1 << 40) - 1
            got = round_sum(np.array([float(value - low)]), np.array([float(low)]), unit)[0]
            assert got == nearest_float32(value * Fraction(2) ** unit)


def test_wide_dot_products_are_exact():
    """As integers, also where float64 cannot hold the sum."""
    rng = np.random.default_rng(3)
    a = units(rng.integers(0, 0x7C00, (4, 300)).astype(np.uint16).view(np.float16))
    b = units(rng.integers(0, 0xFC00, (300, 5)).astype(np.uint16).view(np.float16))
    high, low = dot(a, b)
    exact = a.astype(np.int64).astype(object) @ b.astype(np.int64).astype(object)
    got = [int(h) + int(x) for h, x in zip(high.ravel(), low.ravel(), strict=True)]
    assert got == exact.ravel().tolist()
    assert max(abs(v) for v in got) > 1 << 60
    with pytest.raises(ValueError, match="at most 4096 terms, not 4097"):
        dot(np.zeros((1, 4097)), np.zeros((4097, 1)))


@pytest.mark.parametrize("integer", [False, True])
def test_matrix_form_is_the_histogram_form(integer):
    rng = np.random.default_rng(4)
    tokens, k, columns = 5, 200, 7
    activation = rng.integers(0, 16, (tokens, k)).astype(np.uint8)
    weight = rng.integers(0, 16, (k, columns)).astype(np.uint8)
    keep = rng.random((tokens, k)) < 0.9
    table = rng.integers(0, 0x10000, (16, 16)).astype(np.uint16)
    table[table & 0x7C00 == 0x7C00] &= 0xBFFF
    table[1, 2], table[3, 3] = 0x7C00, 0xFE01
    weight[weight == 2] = 4
    weight[:, 0] = 5  # a column without a special product
    weight[::50, 1] = 3
    table = table.view(np.float16)
    got, invalid = index_products(activation, weight, table, keep, integer)
    assert invalid.any() and not invalid.all() and got.dtype == np.float32
    for token in range(tokens):
        index = concatenate(activation[token], weight, 4)
        if integer:
            planes = [activation[token] >> p & 1 for p in range(4)]
            counts = np.concatenate(
                [
                    count_indices(weight, 16, keep[token], np.repeat(b[:, None], columns, 1))
                    for b in planes
                ],
                axis=1,
            )
            expected, bad = reduction(counts, table[:4].reshape(-1))
        else:
            counts = count_indices(index, 256, keep[token])
            expected, bad = reduction(counts, table.reshape(-1))
        np.testing.assert_array_equal(to_bits(got[token]), to_bits(expected))
        np.testing.assert_array_equal(invalid[token], bad)


def test_matrix_form_is_exact_up_to_its_bound():
    """8196 products of the largest size: the sum is still an exact float64 integer."""
    assert MOST == 8196 and MOST * (2047 << 29) < 1 << 53 <= (MOST + 1) * (2047 << 29)
    largest = np.full((1, 1), 65504, np.float16)
    zero = np.zeros((1, MOST), np.uint8)
    weight = np.zeros((MOST, 3), np.uint8)
    total, _ = index_totals(zero, weight, largest)
    assert (total == MOST * (2047 << 29)).all()
    # One smallest product less: the lowest bit of the sum decides.
    table = np.array([[65504], [-(2.0**-24)]], np.float16)
    zero[0, 0] = 1
    total, _ = index_totals(zero, weight, table)
    assert (total == (MOST - 1) * (2047 << 29) - 1).all()
    # In integer mode each bit has a line of counts of its own.
    table = np.array([[65504], [65504], [-(2.0**-24)], [0]], np.float16)
    total, _ = index_totals(np.full((1, MOST), 3, np.uint8), weight, table, integer=True)
    assert (total == 2 * MOST * (2047 << 29)).all()
    with pytest.raises(ValueError, match="must have at most 8196 indices, not 8197"):
        index_totals(np.zeros((1, MOST + 1), np.uint8), np.zeros((MOST + 1, 1), np.uint8), largest)


def test_close_to_the_algorithm(shipped_trace):
    """Real columns: within one rounding, 2^-24, of the float64 sum of the same products."""
    p = ReductionParameters()
    counts, products, _ = real_columns(p, shipped_trace, 64)
    got, invalid = reduction(counts, products)
    exact = reduce(counts[:, None, :], products[0])[:, 0]
    error = np.abs(got - exact) / np.abs(exact)
    print(f"relative error at most 2^{np.log2(error.max()):.2f}")
    assert not invalid.any() and error.max() <= 2.0**-24
    # The rounding of products to FP16, in the table, is a larger error.
    c = columns_of(shipped_trace, p.k, 4, 4, 64)
    unrounded = reduce(counts, product_table(c.codebook_a, c.codebook_b))
    table_error = np.abs(got - unrounded) / np.abs(counts * products.astype(np.float64)).sum(axis=1)
    print(f"error of the FP16 table at most 2^{np.log2(table_error.max()):.2f} of the terms' sum")
    assert table_error.max() < 2.0**-11


@pytest.mark.parametrize("parameters", suite_takes([TINY, SIZES[2]], SIZES), ids=lambda p: p.slug())
def test_every_size(parameters):
    compiled = Compiled(BLOCK, parameters)
    stimulus = testbench.stimulus(parameters, None, 1500, seed=5)
    compiled.check_all(stimulus)


def test_latency_and_short_columns():
    """A column's sum is offered 5 cycles after its last beat; also each cycle, of one beat."""
    p = SIZES[2]
    compiled = Compiled(BLOCK, p)
    rng = np.random.default_rng(6)
    counts = rng.integers(0, 2, (40, p.bins))
    products = rng.standard_normal((40, p.bins)).astype(np.float16)
    whole = build(p, counts, products, np.full(40, p.groups), [])
    taken = compiled.check(whole, "none").cycles_of["o"]
    assert np.array_equal(taken, np.arange(1, 41) * p.groups - 1 + p.latency)
    short = build(p, counts, products, np.ones(40, int), [])
    taken = compiled.check_all(short)["none"].cycles_of["o"]
    assert np.array_equal(taken, np.arange(40) + p.latency)


def test_any_two_groups_of_tiny_operands():
    """One bin a beat, counts 0 to 3: every pair of counts over a set of edge products."""
    edges = np.array([0, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00])
    c0, c1, p0, p1 = np.meshgrid([0, 1, 2, 3], [0, 1, 2, 3], edges, edges)
    counts = np.stack([c0.ravel(), c1.ravel()], axis=1)
    fits = counts.sum(axis=1) <= TINY.total
    counts = np.pad(counts[fits], ((0, 0), (0, 2)))
    products = np.stack([p0.ravel(), p1.ravel()], axis=1)[fits].astype(np.uint16)
    products = np.pad(products, ((0, 0), (0, 2))).view(np.float16)
    assert len(counts) == 10 * 121
    stimulus = build(TINY, counts, products, np.full(len(counts), TINY.groups), [])
    Compiled(BLOCK, TINY).check(stimulus, "none")


def test_in_amaranths_simulator():
    """The same design without Verilog: one column."""
    p = TINY
    counts = np.array([[1, 2, 0, 0]])
    products = np.array([[1.5, -0.25, np.inf, 7]], np.float16)
    (expected,), _ = reduction(counts, products)
    dut, got = Reduction(p), []

    async def process(ctx):
        ctx.set(dut.o.ready, 1)
        for cycle in range(20):
            ctx.set(dut.i.valid, cycle < 4)
            if cycle < 4:
                assert ctx.get(dut.i.ready)
                ctx.set(dut.i.payload.counts[0], int(counts[0, cycle]))
                ctx.set(dut.i.payload.products[0], int(to_bits(products)[0, cycle]))
                ctx.set(dut.i.payload.last, cycle == 3)
            if ctx.get(dut.o.valid):
                got.append((cycle, ctx.get(dut.o.payload.sum)))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    assert got == [(3 + p.latency, to_bits(expected).item())]


def test_model_sums_of_large_integers():
    total = np.array([0, 1, -1, (1 << 54) + 1, -(1 << 54) - 1, (1 << 30) + 64 + 1])
    got = round_total(total)
    for value, result in zip(total.tolist(), got, strict=True):
        assert result == nearest_float32(value * Fraction(2) ** -24)
    assert not np.signbit(got[0])
