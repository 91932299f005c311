"""Special function unit: its bit-exact model against float64, every length, tile and operation."""

import numpy as np
import pytest

from golden.arith.formats import from_bits
from golden.arith.wide_exponent import LOG2_E, inverse
from golden.attention.binary_exponent import FARTHEST, binary_exponent, term
from golden.attention.moment_reduction import rounded
from golden.attention.softmax_reduction import softmax_reduction
from golden.attention.special_function_unit import layer_norm, softmax
from hw.attention.special_function_unit import Operation, SpecialFunctionUnitParameters
from hw.catalogue import find
from sim.testbenches.attention.low_order_vectors import Vector
from sim.testbenches.attention.special_function_unit import (
    EPS,
    build,
    real_vectors,
    reference,
    short_vector,
    testbench,
)
from tests.support.arith.functions import ulp_errors
from tests.support.kllm.compiled import Compiled

BLOCK = find("attention.special_function_unit")
SMALL = SpecialFunctionUnitParameters.preset("small")
SIZES = [
    SMALL,
    *(
        pytest.param(SpecialFunctionUnitParameters(*size), marks=pytest.mark.campaign)
        for size in ((11, 1), (20, 3), (8, 16), (256, 8), (4096, 32), (8192, 8))
    ),
]
ERROR = 1.7  # units in the last place of a probability


def vector(x, op: int = Operation.SOFTMAX, eps: float = EPS):
    x = np.asarray(x, np.float16)
    return Vector(x, int(op), np.float32(1 / len(x)), np.float32(eps))


def test_bounds_of_the_steps(capsys):
    """The terms of the stated bound, in units of 2^-11 of the value."""
    x = from_bits(np.arange(1 << 16), np.float16)
    x = x[np.isfinite(x)]
    exponent = binary_exponent(x)
    digits, shift = term(exponent, exponent >> 12)
    assert not shift.any() and (digits >= 1 << 14).all() and (digits < 1 << 15).all()
    # 2^-octaves with the hardware's log2(e), which scales differences below 18.
    exact = np.exp2(x.astype(np.float64) * (LOG2_E / 2**19) + (exponent >> 12))
    error = digits / 2.0**15 / exact - 1
    spread = (error.max() - error.min()) * 2**11  # a term and all the others
    scale = abs(LOG2_E / 2**19 / np.log2(np.e) - 1) * 18 * 2**11
    cut = 2**11 * 2.0**-14  # of terms, and of the sum each time it is corrected
    cells = np.arange(4096)
    table = inverse(cells) / 2.0**14
    ends = [table * (1 + (cells + end) / 4096) / 2 - 1 for end in (0, 1)]
    reciprocal = np.abs(ends).max() * 2**11
    bound = 0.5 + spread + scale + cut + reciprocal
    with capsys.disabled():
        parts = f"{spread:.3f} + {scale:.3f} + {cut:.3f} + {reciprocal:.3f}"
        print(f"\n0.5 + {parts} = {bound:.3f} ulp")
    assert bound < ERROR


def test_exponent_of_every_number():
    """Rounded down from -x log2(e), monotonic; infinities and NaN are FARTHEST."""
    x = from_bits(np.arange(1 << 16), np.float16)
    finite = np.isfinite(x)
    exact = -x[finite].astype(np.float64) * (LOG2_E / 2**19) * 4096
    got = binary_exponent(x)[finite]
    assert ((got <= exact) & (exact <= got + 1)).all()
    order = np.argsort(x[finite], kind="stable")
    assert (np.diff(got[order]) <= 0).all()
    assert set(binary_exponent(x)[~finite] >> 12) == {FARTHEST}
    assert (got >> 12).max() < FARTHEST


@pytest.mark.parametrize(
    ("n", "spread"),
    [(1, 1), (8, 1), (64, 4), (512, 0.01), (512, 3), (4096, 2), (8192, 2), (100, 1000)],
)
@pytest.mark.parametrize("tile", [1, 8, 32])
def test_close_to_softmax(n, spread, tile, capsys):
    rng = np.random.default_rng(n)
    worst = total = 0.0
    for _ in range(min(200, max(4, 6000 // n))):
        x = rng.normal(scale=spread, size=n).astype(np.float16)
        y, invalid = softmax(x, 8192, tile)
        assert not invalid
        worst = max(worst, ulp_errors(y, reference(x, Operation.SOFTMAX, 0)).max())
        total = max(total, abs(y.astype(np.float64).sum() - 1))
    with capsys.disabled():
        print(f"\n{n} scores, spread {spread}: {worst:.3f} ulp, sum off by {total:.1e}")
    assert worst < 1.2
    assert total < 2.0**-10


def test_corrections_do_not_add_up():
    """Rising scores: the sum is corrected with nearly each, or by a fraction of an octave."""
    for step in (0.7, 0.02, 0.004):
        x = (np.arange(4096) * step).clip(0, 1000).astype(np.float16)
        for tile in (1, 8, 32):
            y, _ = softmax(x, 4096, tile)
            assert ulp_errors(y, reference(x, Operation.SOFTMAX, 0)).max() < ERROR
    assert softmax_reduction(x, 4096, 8).origin == -1 + -int(x.max() * np.log2(np.e))


@pytest.mark.parametrize("rms", [False, True])
def test_close_to_layer_norm(rms, capsys):
    rng = np.random.default_rng(3)
    worst = 0.0
    op = Operation.RMS_NORM if rms else Operation.LAYER_NORM
    for n in (1, 2, 7, 64, 576, 4096):
        for spread in (2.0**-9, 0.1, 1, 50, 9000):
            for ratio in (0, 1, -20):
                x = (spread * (rng.normal(size=n) + ratio)).clip(-60000, 60000).astype(np.float16)
                y, invalid = layer_norm(x, np.float32(1 / n), EPS, rms=rms)
                exact = reference(x, op, EPS)
                wide = x.astype(np.float64)
                mean, scale = (0, 0) if rms else (wide.mean(), wide.std())
                over = mean**2 / (scale**2 + float(EPS)) if not rms else 0
                # Cancelled bits between squared mean and mean square, in FP32.
                allowed = 2.0**-22 * ((1 + over) * np.abs(exact) + np.sqrt(over))
                unit = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(exact) + 1e-30)), -14) - 10)
                worst = max(worst, ((np.abs(y - exact) - allowed) / unit).max())
                assert not invalid
    with capsys.disabled():
        print(f"\nrms {rms}: {worst:.3f} ulp besides what cancels")
    assert worst < 1.2


def test_sums_are_rounded_once():
    rng = np.random.default_rng(4)
    values = rng.integers(-(2**62), 2**62, 4000) >> rng.integers(0, 62, 4000)
    ties = (rng.integers(2**23, 2**24, 500) << 8) + 128
    for value in np.concatenate([values, ties, ties + 1, ties - 1, [0]]).tolist():
        assert rounded(value, 0) == np.int64(value).astype(np.float32)
    assert rounded(3 << 80, -48) == np.float32(3 * 2.0**32)


def test_real_vectors_are_close(shipped_trace):
    p = SpecialFunctionUnitParameters()
    chosen, _ = real_vectors(shipped_trace, p, 90, np.random.default_rng(1))
    count = 0
    for x, op, one, eps in chosen:
        exact = reference(x, op, eps)
        if op == Operation.SOFTMAX:
            y, invalid = softmax(x, p.length, p.tile)
        else:
            y, invalid = layer_norm(x, one, eps, rms=op == Operation.RMS_NORM)
        assert not invalid
        assert ulp_errors(y, exact).max() < 1.2
        count += len(y)
    assert count > 5000


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def test_flagged_vectors_and_the_next(small):
    """Each kind of error alone; the vector after it is not affected."""
    inf, nan = np.inf, np.nan
    quiet = 0x7E00
    cases = [
        ([1, nan, 2], Operation.SOFTMAX, [quiet] * 3),
        ([1, inf, 2], Operation.SOFTMAX, [quiet] * 3),
        ([-inf] * 6, Operation.SOFTMAX, [0] * 6),
        ([-inf, nan], Operation.SOFTMAX, [quiet] * 2),
        ([1, -inf, 2], Operation.LAYER_NORM, [quiet] * 3),
        ([nan], Operation.RMS_NORM, [quiet]),
        (np.ones(SMALL.length + 3), Operation.SOFTMAX, [quiet] * SMALL.length),
        (np.ones(SMALL.length + 40), Operation.LAYER_NORM, [quiet] * SMALL.length),
    ]
    clean = [
        vector([0, 0, -inf, 0, 0]),
        vector([1, -1, 1, -1], Operation.LAYER_NORM, 0),
        vector([2, -2], Operation.RMS_NORM, 0),
    ]
    values = [[0x3400, 0x3400, 0, 0x3400, 0x3400], [0x3C00, 0xBC00] * 2, [0x3C00, 0xBC00]]
    wanted, chosen = [], []
    for x, op, bits in cases:
        for one, after in zip(clean, values, strict=True):
            chosen += [vector(x, op), one]
            wanted += [(bits, 1), (after, 0)]
    chosen += [vector([5, 5], Operation.LAYER_NORM, 0), vector([5, 5], Operation.LAYER_NORM, -1)]
    wanted += [([quiet] * 2, 1)] * 2
    stimulus = build(SMALL, chosen, [])
    outcome = small.check(stimulus)
    got = outcome.outputs["o"][:, 0]
    assert got.tolist() == [
        y | (n == len(ys) - 1) << 16 | flag << 17 for ys, flag in wanted for n, y in enumerate(ys)
    ]


@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_every_length_and_tile(parameters, shipped_trace):
    """Each length and operation: latency, and when the next vector begins; any order, stalls."""
    p = parameters
    compiled = Compiled(BLOCK, p)
    rng = np.random.default_rng(5)
    lengths = [n for n in range(1, p.length + 1) if n <= 256 or n % 509 in (0, 100)]
    lengths = sorted({*lengths, p.length - 1, p.length})
    for op in Operation:
        chosen = [vector(rng.normal(size=n), op) for n in lengths]
        outcome = compiled.check(build(p, chosen, []))
        taken, at = outcome.cycles_of["o"], 0
        start = 0
        for n in lengths:
            assert taken[at] == start + n - 1 + p.first_result_cycles(n, op)
            assert (np.diff(taken[at : at + n]) == 1).all()
            start, at = taken[at] - 9 + (n if op == Operation.SOFTMAX else max(n, 6)), at + n
    for data, vectors in ((None, 300 if p.length <= 256 else 50), (shipped_trace, 30)):
        stimulus = testbench.stimulus(p, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


SEVERAL = [
    SpecialFunctionUnitParameters.preset("several"),
    *(
        pytest.param(SpecialFunctionUnitParameters(*size), marks=pytest.mark.campaign)
        for size in ((2, 1, 2), (11, 1, 4), (20, 3, 2), (9, 16, 5), (256, 8, 3))
    ),
]


@pytest.mark.parametrize("parameters", SEVERAL, ids=lambda p: p.slug())
def test_several_vectors_in_the_buffer(parameters, shipped_trace):
    """Scores of the next vectors arrive while one is read: results without a gap; any stalls."""
    p = parameters
    compiled = Compiled(BLOCK, p)
    rng = np.random.default_rng(6)
    batch = [vector(rng.normal(size=p.length)) for _ in range(p.vectors)]
    outcome = compiled.check(build(p, batch, []))
    assert (np.diff(outcome.cycles_of["o"]) == 1).all()
    short = [vector(rng.normal(size=n), op) for n in range(1, p.tile + 3) for op in (0, 0, 0, 1, 0)]
    fitting = [case for case in short if len(case.x) <= p.length]
    compiled.check_all(build(p, [fitting[n] for n in rng.permutation(len(fitting))], []))
    for data, vectors in ((None, 200), (shipped_trace, 30)):
        compiled.check_all(testbench.stimulus(p, data, vectors, seed=8))


def test_tables(small):
    """Short vectors for every entry of both tables: any sum from 1 to 2, any mean square."""
    rng = np.random.default_rng(9)
    small.check(build(SMALL, [short_vector(rng) for _ in range(8000)], []))


def test_far_scores(small):
    """Scores so far below another that they add 0, and more if a bit of the shift were ignored."""
    x = from_bits(np.arange(0x8000, 0xFC00), np.float16)
    distance = binary_exponent(x) >> 12
    x = x[(distance >= 64) & (distance % 64 < 12)]
    assert len(x) > 1500
    stimulus = build(SMALL, [vector([0, score]) for score in x], [])
    assert (stimulus.outputs["o"][:, 0] & 0xFFFF).tolist() == [0x3C00, 0] * len(x)
    small.check(stimulus)


def test_first_probability_in_time():
    """The wait of attention between its two products, for any length."""
    for length in (256, 4096):
        p = SpecialFunctionUnitParameters(length=length)
        waits = [p.first_result_cycles(n, Operation.SOFTMAX) for n in range(1, length + 1)]
        assert waits == [min(n, p.tile) + 12 for n in range(1, length + 1)]
        assert max(waits) == p.latency == 20
