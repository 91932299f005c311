"""The vector processing unit: its model against plain sums, sizes, rate, orders of modes."""

import numpy as np
import pytest

from golden.arith.formats import canonical, to_bits
from golden.lad.vpu import DP, EM, NONE, S, vpu
from hw.catalogue import find
from hw.lad.vpu import Mode, VpuParameters
from sim.testbenches.lad.vpu import (
    Operations,
    build,
    random_operations,
    real_operations,
    testbench,
)
from sim.testbenches.operands import numbers
from tests.support.kllm.compiled import Compiled

BLOCK = find("lad.vpu")
SIZES = [
    VpuParameters(d=5, multiply_stages=1, add_stages=1),
    VpuParameters(d=3, multiply_stages=4, add_stages=3),
    VpuParameters(d=16, multiply_stages=3, add_stages=4),
]


def exact_dots(operations: Operations) -> np.ndarray:
    """The dot products in float64."""
    held = np.maximum.accumulate(np.where(operations.load, np.arange(len(operations.load)), 0))
    dots = operations.mode == DP
    a, b = (x.astype(np.float64)[dots] for x in (operations.vec1[held], operations.vec2))
    return (a * b).sum(axis=1)


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, VpuParameters.preset("eight"))


def operations(p, modes, rng, load_every=7):
    """Plain numbers, a new vector now and then."""
    count = len(modes)
    load = np.arange(count) % load_every == 0
    vec1, vec2 = (numbers("plain", (count, p.d), rng) for _ in range(2))
    return Operations(np.asarray(modes), load, vec1, vec2, numbers("plain", count, rng))


def plain(o):
    """Each operation with NumPy's scalars, dot products by recursion over the tree."""

    def total(terms):
        if len(terms) == 1:
            return terms[0]
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        return total(pairs + terms[len(pairs) * 2 :])

    vectors, dots, held = [], [], None
    for mode, load, vec1, vec2, scal in zip(o.mode, o.load, o.vec1, o.vec2, o.scal, strict=True):
        if load:
            held = vec1
        if mode == DP:
            dots.append(total([a * b for a, b in zip(held, vec2, strict=True)]))
        elif mode == EM:
            vectors.append([a * b for a, b in zip(held, vec2, strict=True)])
        elif mode == S:
            vectors.append([scal * b for b in vec2])
    return [canonical(np.array(x, np.float16)) for x in (vectors, dots)]


@pytest.mark.parametrize("d", [2, 5, 8])
def test_golden_equals_plain_sums(d):
    o = random_operations(VpuParameters(d=d), 400, np.random.default_rng(1))
    with np.errstate(all="ignore"):
        expected = plain(o)
    for got, want in zip(o.results(), expected, strict=True):
        assert len(want) > 50
        assert np.array_equal(to_bits(got), to_bits(want))
        assert 0 < np.isnan(want).sum() < want.size / 2


def test_golden_needs_a_vector():
    one = np.ones((1, 4), np.float16)
    for mode in (DP, EM):
        with pytest.raises(ValueError, match="^the first DP or EM needs a vector loaded$"):
            vpu([mode], [False], one, one, one[0, :1])
    vectors, dots = vpu([S], [False], one, 2 * one, 3 * one[0, :1])
    assert vectors.tolist() == [[6.0] * 4] and len(dots) == 0
    assert tuple(Mode) == (DP, EM, S, NONE)


def test_close_to_the_algorithm(shipped_trace):
    """Scores of real heads: within the roundings of products and sums."""
    p = VpuParameters()
    o, notes = real_operations(p, shipped_trace, 3000)
    assert len(notes) == 1
    _, dots = o.results()
    want = exact_dots(o)
    held = np.maximum.accumulate(np.where(o.load, np.arange(len(o.load)), 0))
    sizes = np.abs(o.vec1[held].astype(np.float64) * o.vec2.astype(np.float64)).sum(axis=1)
    sizes = sizes[o.mode == DP]
    roundings = 1 + (p.d - 1).bit_length()
    error = np.abs(dots - want)
    assert (error <= roundings * 2.0**-11 * sizes + p.d * 2.0**-25).all()
    worst = (error / sizes).max()
    print(f"{len(dots)} dot products: at most 2^{np.log2(worst):.2f} of the terms' sum off")
    assert len(dots) > 1000 and 2.0**-14 < worst < 2.0**-9


def check_size(parameters, vectors):
    compiled = Compiled(BLOCK, parameters)
    compiled.check_all(testbench.stimulus(parameters, None, vectors, seed=2))


@pytest.mark.campaign
@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_more_sizes(parameters):
    check_size(parameters, 1000)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_whole_heads(preset, shipped_trace):
    p = VpuParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 300, seed=3))


@pytest.mark.parametrize(
    "modes",
    [[DP] * 60, [EM] * 60, [S] * 60, [DP, S] * 30, [S, DP, EM, NONE] * 15],
    ids=lambda modes: "_".join(str(m) for m in modes[:4]),
)
def test_an_operation_a_cycle(small, modes):
    """In any order of modes, every result follows its operation by its latency."""
    p = small.parameters
    outcome = small.check(build(p, operations(p, modes, np.random.default_rng(4)), []), "none")
    modes = np.array(modes)
    dots, vectors = np.flatnonzero(modes == DP), np.flatnonzero((modes == EM) | (modes == S))
    assert np.array_equal(outcome.cycles_of["o_scal"], dots + p.dot_latency)
    assert np.array_equal(outcome.cycles_of["o_vec"], vectors + p.latency)


def test_latencies():
    """The figures of the paper's size and of one register each."""
    paper = VpuParameters.preset("paper")
    assert (paper.d, paper.latency, paper.dot_latency) == (128, 3, 18)
    one = VpuParameters.preset("small")
    assert (one.latency, one.dot_latency, one.credits.credits) == (2, 4, 5)


def test_random_orders_under_stalls(small):
    p = small.parameters
    for seed in range(2):
        stimulus = testbench.stimulus(p, None, 1500, seed)
        small.check_all(stimulus)


def test_reset_in_the_middle(small):
    """Every stimulus starts from reset; a run that was cut short has no effect on the next one."""
    p = small.parameters
    for seed in range(5, 8):
        long, short = (testbench.stimulus(p, None, count, seed) for count in (200, 50))
        small.check_after_a_cut(long, 40, "random", short)
