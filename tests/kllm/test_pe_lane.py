"""The lane: its model against the algorithm, every size, its rate."""

import dataclasses
import itertools

import numpy as np
import pytest

from golden.algorithms.kllm.matvec import matvec
from golden.algorithms.kllm.quantize import QuantizedActivations, QuantizedWeights
from golden.arith.formats import to_bits
from golden.kllm.column_scale import column_scale
from golden.kllm.index_distribution_counter import index_distribution
from golden.kllm.pe_lane import pe_lane
from golden.kllm.reduction import reduction
from golden.kllm.sparse_path import sparse_path
from hw.catalogue import find
from hw.kllm.pe_lane import PeLaneParameters
from sim.core.stalls import PATTERNS
from sim.drivers.run import run
from sim.testbenches.kllm.pe_lane import build, random_products, real_products, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.pe_lane")
TINY = PeLaneParameters.presets()["tiny"]
# One group and several, one counter and two, all pipeline stages. Other sizes are built by other
# tests, or take a minute each.
SIZES = [
    PeLaneParameters.presets()["small"],
    pytest.param(TINY, marks=pytest.mark.campaign),
    pytest.param(
        dataclasses.replace(TINY, k=16, macs=8, counter_stages=0, columns=1, entries=3),
        marks=pytest.mark.campaign,
    ),
    pytest.param(
        dataclasses.replace(TINY, k=50, counters=2, macs=1, counter_stages=3),
        marks=pytest.mark.campaign,
    ),
]
TABLES = ("table", "codebook")


@pytest.fixture(scope="module", params=SIZES, ids=lambda p: p.slug())
def compiled(request):
    return Compiled(BLOCK, request.param)


def product_of(p, rng, columns, length=None, outliers=0.0, **fields):
    """Random columns of one vector, with this share of outliers."""
    length = length or p.k
    outlier = rng.random(length) < outliers
    product = dataclasses.replace(random_products(p, 1, rng)[0], groups=p.groups)
    drawn = {
        "activation": rng.integers(0, 1 << p.activation_bits, length),
        "weight": rng.integers(0, 1 << p.weight_bits, (columns, length)),
        "outlier": outlier,
        "keep": ~outlier,
        "value": rng.standard_normal(length).astype(np.float16),
        "s_b": rng.standard_normal(columns).astype(np.float16),
    }
    return dataclasses.replace(product, **drawn | fields)


def test_every_size(compiled):
    stimulus = testbench.stimulus(compiled.parameters, None, 600, seed=3)
    for stall in PATTERNS:
        assert len(compiled.check(stimulus, stall).outputs["o"]) == 600


def test_rate(compiled):
    """max(T, G') cycles a column of T steps and G' groups, from the first on."""
    p = compiled.parameters
    rng = np.random.default_rng(4)
    columns = 9
    for share, groups in itertools.product((0, 0.1, 1), {1, p.groups // 2 or 1, p.groups}):
        few = rng.integers(0, (groups * p.macs >> p.weight_bits) or 1, p.k)
        fields = {"groups": groups, "activation": few, "integer": False}
        if groups * p.macs < 1 << p.weight_bits:  # not all bins of the first line
            fields["weight"] = rng.integers(0, groups * p.macs, (columns, p.k))
        stimulus = build(p, [product_of(p, rng, columns, outliers=share, **fields)], rng, [])
        taken = compiled.check(stimulus, "none").cycles_of["o"]
        steps = len(stimulus.inputs["i"]) // columns
        assert set(np.diff(taken)) == {max(steps, groups)}
        assert taken[0] == steps - 1 + p.latency_of(groups)
    assert p.latency == p.latency_of(p.groups)


def test_a_matrix_in_parts(compiled):
    """Sums of up to five parts, of as many columns as are kept and of one."""
    p = compiled.parameters
    rng = np.random.default_rng(9)
    products = []
    for columns, parts in itertools.product((p.columns, 1), (1, 2, 5)):
        kept = None
        for _ in range(parts):
            length = int(rng.integers(1, p.k + 1))
            fields = {"length": length, "outliers": 0.2, "s_a": np.float16(2), "r": np.float16(1)}
            fields |= {"table": rng.standard_normal((1 << p.activation_bits, 1 << p.weight_bits))}
            product = product_of(p, rng, columns, **fields, kept=kept)
            table, ones = product.table.astype(np.float16), np.ones_like(product.codebook)
            product = dataclasses.replace(product, table=table, codebook=ones)
            products.append(product)
            alone = dataclasses.replace(product, kept=None).total()
            expected = alone if kept is None else kept + alone
            kept = product.total()
            np.testing.assert_array_equal(kept, expected)
    compiled.check_all(build(p, products, rng, []))


def test_unused_lines_of_the_table_have_no_effect():
    """Integers and few centroids: a model's table may have anything in all other lines."""
    p = TINY
    rng = np.random.default_rng(10)
    fewer = 0
    for product in random_products(p, 400, rng):
        table = product.table.copy()
        used = p.activation_bits if product.integer else 1 + product.activation.max()
        assert used <= -(-product.groups * p.macs >> p.weight_bits) or p.macs < 1 << p.weight_bits
        table[product.groups * p.macs >> p.weight_bits :] = np.nan
        y, invalid = dataclasses.replace(product, table=table).results()
        expected = product.results()
        np.testing.assert_array_equal(to_bits(y), to_bits(expected[0]))
        np.testing.assert_array_equal(invalid, expected[1])
        fewer += product.groups < p.groups
    assert fewer > 50


def test_every_number_of_steps(compiled):
    """Columns of 1 to G + 2 steps, each length after each other one; none is lost or exchanged."""
    p = compiled.parameters
    rng = np.random.default_rng(7)
    lengths = range(1, p.groups + 3)
    products = []
    for pair in [(a, b) for a in lengths for b in lengths]:
        for steps in pair:
            # As many outliers as entries in each step: all at the vector's first positions.
            outlier = np.arange(p.k) < min(steps * p.entries, p.segment)
            fields = {"outlier": outlier, "keep": ~outlier}
            products.append(product_of(p, rng, 1, **fields))
    stimulus = build(p, products, rng, [])
    compiled.check_all(stimulus, timed=False)


def test_empty_columns(compiled):
    """No counts and no outliers: +0 for any products, or NaN by a scale; others are unaffected."""
    p = compiled.parameters
    rng = np.random.default_rng(8)
    some = product_of(p, rng, 2, outliers=0.2)
    fields = {"keep": np.zeros(p.k, bool), "outlier": np.zeros(p.k, bool), "s_a": np.float16(-2)}
    fields |= {"table": np.full_like(some.table, np.inf), "r": np.float16(1)}
    fields |= {"s_b": np.array([1, np.nan, 3], np.float16)}
    empty = product_of(p, rng, 3, **fields)
    y, invalid = empty.results()
    assert to_bits(y).tolist() == [0, 0x7E00, 0] and invalid.tolist() == [False, True, False]
    for stall in PATTERNS:
        compiled.check(build(p, [empty, some, empty, empty, some], rng, []), stall)


def test_model_counts_as_the_hardware_does():
    """Column by column from counts, integers too."""
    p = PeLaneParameters.presets()["small"]
    rng = np.random.default_rng(5)
    compared = 0
    for number in range(60):
        a = random_products(p, 6, rng)[0]
        index = a.activation << p.weight_bits | a.weight
        keep = np.broadcast_to(a.keep, index.shape)
        flags = np.full(len(index), a.integer)
        counts = index_distribution(index, keep, flags, p.activation_bits, p.weight_bits)
        s, _ = reduction(counts, a.table.reshape(-1))
        o = [sparse_path(a.value, w[:, None], a.codebook, a.outlier)[0][0] for w in a.weight]
        expected = column_scale(s, np.array(o), a.s_a, a.r, a.s_b, a.kept)
        y, invalid = a.results()
        assert to_bits(y).tolist() == to_bits(expected).tolist(), number
        assert invalid.tolist() == np.isnan(expected).tolist()
        compared += np.count_nonzero(~invalid & (y != 0))
    assert compared > 50


def test_model_is_close_to_the_algorithm(shipped_trace):
    """Within half an FP16 ulp, apart from the FP16 rounding of products of centroids.

    Of a vector in parts, their sums together.
    """
    p = PeLaneParameters()
    products, _ = real_products(p, shipped_trace, 60)
    worst, in_parts, exact = 0.0, 0, np.array([])
    for a in products:
        y, invalid = a.results()
        zero = np.float16(0)
        vector = QuantizedActivations(a.activation, None, a.s_a, zero, a.outlier, a.value)
        matrix = QuantizedWeights(a.weight.T, a.codebook, a.s_b, zero * a.s_b)
        table = a.table.astype(np.float64).reshape(-1)
        levels = np.arange(a.table.shape[0])
        part = matvec(dataclasses.replace(vector, codebook=levels), matrix, table)
        exact = part if a.kept is None else exact[: len(part)] + part
        in_parts += a.kept is not None
        assert not invalid.any()
        worst = max(worst, (np.abs(y - exact) / np.spacing(np.abs(y))).max())
    print(f"at most {worst:.4f} units in the last place from the float64 sum")
    assert 0.3 < worst <= 0.501
    assert in_parts > 2


def test_largest_counts(compiled):
    """All K indices equal, at several indices, and all K values outliers."""
    p = compiled.parameters
    rng = np.random.default_rng(6)
    small = np.float16(2.0**-14)
    products = []
    for outliers in (0, 1):
        for index in (0, (1 << p.activation_bits) - 1):
            product = product_of(
                p,
                rng,
                2,
                outliers=outliers,
                activation=np.full(p.k, index),
                weight=np.full((2, p.k), [[0], [(1 << p.weight_bits) - 1]]),
                value=np.full(p.k, 65504, np.float16),
                s_a=small,
                r=small,
                s_b=np.full(2, small),
                integer=False,
            )
            largest = {name: np.full_like(getattr(product, name), 65504) for name in TABLES}
            products.append(dataclasses.replace(product, **largest))
    stimulus = build(p, products, rng, [])
    compiled.check(stimulus, "random")
    y = np.concatenate([product.results()[0] for product in products])
    assert np.isfinite(y).all() and (y > 0).all()


def test_model_flags_special_numbers_only():
    """A NaN or infinity anywhere gives NaN and is flagged; overflow gives an infinity."""
    base = {
        "activation": np.zeros((1, 4), int),
        "weight": np.zeros((4, 1), int),
        "keep": np.array([[1, 1, 0, 0]], bool),
        "value": np.ones((1, 4), np.float16),
        "outlier": np.array([[0, 0, 1, 0]], bool),
        "table": np.ones((2, 2), np.float16),
        "codebook": np.ones(2, np.float16),
        "s_a": np.ones(1, np.float16),
        "r": np.ones(1, np.float16),
        "s_b": np.ones(1, np.float16),
    }
    assert [a[0, 0] for a in pe_lane(**base)] == [3, False]
    for name, at in (("value", (0, 2)), ("table", (0, 0)), ("codebook", 0), ("s_a", 0), ("r", 0)):
        changed = base[name].copy()
        changed[at] = np.nan
        y, invalid = pe_lane(**base | {name: changed})
        assert np.isnan(y[0, 0]) and invalid[0, 0], name
    large = {"table": np.full((2, 2), 60000, np.float16)}
    y, invalid = pe_lane(**base | large)
    assert np.isposinf(y[0, 0]) and not invalid[0, 0]


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_huge_presets(preset):
    """Too many instances for the tests of every block."""
    vectors = 72 if preset == "default" else 6
    parameters = PeLaneParameters.presets()[preset]
    outcome = run(BLOCK, preset, parameters, driver="harness", vectors=vectors)
    assert outcome.passed, (outcome.first_mismatch, outcome.failures)
    assert outcome.transactions == 2 * len(PATTERNS) * vectors
