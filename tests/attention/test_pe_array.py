"""The PE array: its bit-exact model against sums by hand, every size, its rate, exact products."""

import math
from fractions import Fraction

import numpy as np
import pytest

from golden.arith.formats import DTYPES, canonical, to_bits
from golden.attention.pe_array import inner_products, outer_product
from hw.attention.pe_array import PeArrayParameters
from hw.catalogue import find
from sim.core.stalls import PATTERNS
from sim.testbenches.attention.pe_array import (
    Product,
    build,
    random_products,
    real_products,
    testbench,
)
from sim.testbenches.operands import numbers
from tests.support.kllm.compiled import Compiled

BLOCK = find("attention.pe_array")
SIZES = [
    PeArrayParameters(1, 1, 1, "fp32", add_stages=1),
    PeArrayParameters(2, 1, 1, "fp16", add_stages=4),
]
MORE_SIZES = [
    PeArrayParameters(4, 2, 1, "fp32", multiply_stages=2, add_stages=4),
    PeArrayParameters(1, 1, 1, "fp16", add_stages=2),
    PeArrayParameters(1, 1, 1, "fp32", multiply_stages=2, add_stages=4),
    PeArrayParameters(2, 1, 1, "fp32", multiply_stages=2, add_stages=1),
    PeArrayParameters(4, 2, 1, "fp16", multiply_stages=2, add_stages=1),
    PeArrayParameters(2, 2, 2, "fp16", add_stages=4),
    PeArrayParameters(1, 4, 4, "fp32", add_stages=2),
    PeArrayParameters(2, 2, 2, "fp20", multiply_stages=2, add_stages=2),
    PeArrayParameters(2, 1, 1, "fp22", multiply_stages=2, add_stages=2),
    PeArrayParameters(2, 2, 1, "fp24", multiply_stages=1, add_stages=1),
]


def exact(product: Product) -> np.ndarray:
    """The result in float64."""
    rows, vector = product.rows.astype(np.float64), product.vector.astype(np.float64)
    result = vector @ rows if product.outer else rows @ vector
    return result - result[0] if product.relative else result


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, PeArrayParameters.preset("small"))


def rounded(total):
    with np.errstate(all="ignore"):
        return canonical(np.float16(total)[None])[0]


def inner_by_hand(product, accumulator):
    """The last PE subtracts the first finite sum from the later ones."""
    totals = [tree_by_hand(product.vector, row, accumulator) for row in product.rows]
    found, reference = [], None
    for total in totals:
        if not product.relative or (reference is None and not np.isfinite(total)):
            found.append(rounded(total))
        elif reference is None:
            reference = total
            found.append(np.float16(0))
        else:
            found.append(rounded(total - reference))
    return found


def tree_by_hand(query, row, accumulator):
    """By the numbers of Fig. 5(d): PE n, from 1, adds the PEs on both sides of it."""
    dtype, d = DTYPES[accumulator].type, len(row)
    product = [dtype(q) * dtype(w) for q, w in zip(query, row, strict=True)]
    if d == 1:
        return product[0]
    total = {n: product[n - 1] + product[n] for n in range(1, d, 2)}
    distance = 1
    while 2 * distance < d:
        for n in range(2 * distance, d, 4 * distance):
            total[n] = total[n - distance] + total[n + distance]
        distance *= 2
    assert len(total) == d - 1  # every PE but the last one adds once
    return total[d // 2]


def outer_by_hand(factors, column, accumulator, stages):
    """One PE: a ring of partial sums, then pairs of neighbours as they come out."""
    dtype = DTYPES[accumulator].type
    ring = [None] * stages
    for x, w in zip(factors, column, strict=True):
        oldest = ring.pop(0)
        product = dtype(x) * dtype(w)
        ring.append(product if oldest is None else oldest + product)
    while len(ring) > 1:
        pairs = zip(ring[::2], ring[1::2], strict=True)
        ring = [b if a is None else a + b for a, b in pairs]
    return rounded(ring[0])


@pytest.mark.parametrize("accumulator", ["fp16", "fp32"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_golden_is_sums_by_hand(accumulator, stages):
    p = PeArrayParameters(2, 4, 1, accumulator, add_stages=stages)
    compared = nans = 0
    with np.errstate(all="ignore"):
        for product in random_products(p, 200, np.random.default_rng(1)):
            got = product.result(p)
            if product.outer:
                columns = product.rows.T
                want = [outer_by_hand(product.vector, c, accumulator, stages) for c in columns]
            else:
                want = inner_by_hand(product, accumulator)
            assert np.array_equal(to_bits(got), to_bits(np.array(want))), product
            compared, nans = compared + len(want), nans + np.isnan(got).sum()
    assert compared > 1000 and 20 < nans < compared / 2, nans


def nearest(exact: Fraction, bits: int) -> Fraction:
    """Rounded to `bits` significant bits, a tie to even."""
    if not exact:
        return exact
    exponent = math.frexp(exact)[1] - bits
    return round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent


@pytest.mark.parametrize(("accumulator", "bits"), [("fp20", 12), ("fp22", 14), ("fp24", 16)])
def test_short_sums_in_fractions(accumulator, bits):
    """Products and sums rounded once each, in the order of the tree and of one partial sum."""
    rng = np.random.default_rng(11)
    for _ in range(60):
        vector, rows = numbers("plain", 8, rng), numbers("plain", (8, 8), rng)
        exact = [
            [
                nearest(Fraction(float(q)) * Fraction(float(w)), bits)
                for q, w in zip(vector, row, strict=True)
            ]
            for row in rows
        ]
        want = []
        for level in exact:
            while len(level) > 1:
                pairs = zip(level[::2], level[1::2], strict=True)
                level = [nearest(a + b, bits) for a, b in pairs]
            want.append(np.float16(float(level[0])))
        got = inner_products(vector, rows, accumulator=accumulator)
        assert np.array_equal(got, np.array(want))
        total = [Fraction(0)] * 8
        for x, row in zip(vector, rows, strict=True):
            terms = [nearest(Fraction(float(x)) * Fraction(float(w)), bits) for w in row]
            total = [nearest(a + b, bits) for a, b in zip(total, terms, strict=True)]
        got = outer_product(vector, rows, accumulator=accumulator, add_stages=1)
        assert np.array_equal(got, np.array([np.float16(float(t)) for t in total]))


def test_golden_takes_any_axes():
    rng = np.random.default_rng(2)
    q, x, w = (rng.standard_normal(s).astype(np.float16) for s in ((3, 8), (3, 5), (3, 5, 8)))
    inner, outer = inner_products(q, w), outer_product(x, w)
    assert inner.shape == (3, 5) and outer.shape == (3, 8)
    for n in range(3):
        assert np.array_equal(inner[n], inner_products(q[n], w[n]))
        assert np.array_equal(outer[n], outer_product(x[n], w[n]))


@pytest.mark.parametrize(
    ("accumulator", "bits"), [("fp32", 24), ("fp24", 16), ("fp22", 14), ("fp20", 12), ("fp16", 11)]
)
def test_close_to_the_algorithm(shipped_trace, accumulator, bits):
    """Real heads: within the roundings of all sums and the last one."""
    p = PeArrayParameters(accumulator=accumulator)
    products, notes = real_products(p, shipped_trace, 48, np.random.default_rng(3))
    assert len(notes) == 1 and notes[0].endswith(" of 64 elements.")
    worst = {False: 0.0, True: 0.0}
    for product in products:
        rows = np.abs(product.rows.astype(np.float64))
        size = np.abs(product.vector.astype(np.float64))
        terms = size @ rows if product.outer else rows @ size
        additions = len(rows) // p.add_stages + 1 if product.outer else p.levels
        want = exact(product)
        error = np.abs(product.result(p) - want)
        # Products, sums and the last rounding; 2^-24 is the spacing of subnormal numbers.
        if product.relative:
            additions, terms = additions + 1, terms + terms[0]
        bound = (additions + 2) * 2.0**-bits * terms + 2.0**-11 * np.abs(want) + 2.0**-24
        assert (error <= bound).all()
        worst[product.outer] = max(worst[product.outer], (error / terms).max())
    for outer, name in ((False, "inner"), (True, "outer")):
        print(f"{name}: error at most 2^{np.log2(worst[outer]):.2f} of the terms' sum")
        assert worst[outer] < (2.0**-10.5 if bits > 14 else 2.0**-8)


def check_size(p, vectors):
    compiled = Compiled(BLOCK, p)
    for seed in (4, 5):
        stimulus = testbench.stimulus(p, None, vectors, seed)
        compiled.check_all(stimulus)


@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_every_size(parameters):
    check_size(parameters, 400)


@pytest.mark.campaign
@pytest.mark.parametrize("parameters", MORE_SIZES, ids=lambda p: p.slug())
def test_more_sizes(parameters):
    check_size(parameters, 400)


@pytest.mark.parametrize("preset", ["default", pytest.param("paper", marks=pytest.mark.campaign)])
def test_whole_heads(preset, shipped_trace):
    p = PeArrayParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for data in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, data, 100, seed=6))


def head(p, length, rng):
    """A query's scores and the weighted sum of rows: one head."""
    return [
        Product(False, numbers("plain", p.lanes, rng), numbers("plain", (length, p.lanes), rng)),
        Product(True, numbers("plain", length, rng), numbers("plain", (length, p.lanes), rng)),
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_rate(small, length):
    """A row every cycle in both products; heads follow each other as the docstring says."""
    p, rng = small.parameters, np.random.default_rng(7)
    heads = [product for _ in range(3) for product in head(p, length, rng)]
    outcome = small.check(build(p, heads, rng, []), "none")
    scores = outcome.cycles_of["s"].reshape(3, length)
    assert np.array_equal(np.diff(scores, axis=1), np.ones((3, length - 1)))
    assert scores[0, 0] == 1 + p.latency  # the query takes the first cycle
    # The outer product's first addition starts when the last inner one has left the adders.
    begun = scores[:, -1] - 2
    assert np.array_equal(outcome.cycles_of["o"], begun + length - 1 + p.outer_end_cycles + 2)
    # The query and the folds are done before the next row's product is.
    assert np.array_equal(
        scores[1:, 0], begun[:-1] + length - 1 + p.fold_cycles + 1 + p.tree_cycles + 2
    )


def test_latencies():
    """The figures of the paper's size, and those of one addition a cycle."""
    paper = PeArrayParameters.preset("paper")
    assert (paper.lanes, paper.latency, paper.outer_latency) == (128, 19, 7)
    one = PeArrayParameters(1, 1, 1, add_stages=1)
    assert (one.latency, one.fold_cycles, one.outer_latency) == (5, 0, 4)
    slow = PeArrayParameters(add_stages=4, multiply_stages=2)
    assert (slow.latency, slow.fold_cycles, slow.outer_latency) == (32, 8, 16)


def test_bubbles_and_stalls_change_no_sum(small):
    """Late rows of outer products go to the same partial sums."""
    p, rng = small.parameters, np.random.default_rng(8)
    products = [
        Product(True, numbers("any", n, rng), numbers("any", (n, p.lanes), rng))
        for n in [*range(1, 12)] * 8
    ]
    stimulus = build(p, products, rng, [])
    cycles = {stall: small.check(stimulus, stall).cycles for stall in PATTERNS}
    assert cycles["none"] < cycles["random"] < cycles["bursts"]


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.campaign)])
def test_products_are_exact(small, every):
    """All products of significands, less their FP16 rounding: the error is exact.

    The sum a b - round16(a b) is an FP16 number if the product has all its bits.
    """
    p = small.parameters
    b = (0x3C00 + np.arange(1024)).astype(np.uint16).view(np.float16)
    products, compared = [], 0
    for bits in range(0x3C00 + every // 2, 0x4000, every):
        a = np.uint16(bits).view(np.float16)
        high = (a.astype(np.float32) * b.astype(np.float32)).astype(np.float16)
        query, rows = np.zeros(p.lanes, np.float16), np.zeros((len(b), p.lanes), np.float16)
        query[:2], rows[:, 0], rows[:, 1] = (a, -1), b, high
        product = Product(False, query, rows)
        rest = a.astype(np.float64) * b.astype(np.float64) - high.astype(np.float64)
        assert np.array_equal(product.result(p).astype(np.float64), rest)
        products.append(product)
        compared += np.count_nonzero(rest)
    small.check(build(p, products, np.random.default_rng(9), []), "none")
    assert compared > 800 * 1024 // every


def test_every_number_as_a_factor(small):
    """All FP16 numbers in a row, and many as scalars, times numbers of all sorts."""
    p = small.parameters
    every = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    others = np.array([0x3C00, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xF800, 0xFC00, 0x8000], np.uint16)
    others = others.view(np.float16)
    products = []
    for lane, other in enumerate(others):
        query, rows = np.zeros(p.lanes, np.float16), np.zeros((len(every), p.lanes), np.float16)
        query[lane], rows[:, lane] = other, every
        products.append(Product(False, query, rows))
    scalars = np.concatenate([every[3::32], every[:64], every[0x8000:0x8040]])
    products += [Product(True, x[None], others[None]) for x in scalars]
    outcome = small.check(build(p, products, np.random.default_rng(10), []), "none")
    assert len(outcome.outputs["s"]) == 8 << 16 and len(outcome.outputs["o"]) > 2048
