"""The lane of multipliers: its model against PE lane and algorithm, every size, its rate."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from golden.algorithms.kllm.matvec import product_table
from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale
from golden.arith.formats import to_bits
from golden.kllm.centroid_lane import centroid_lane, centroid_sum, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.pe_lane import pe_lane
from hw.catalogue import find
from hw.kllm.centroid_lane import CentroidLaneParameters
from sim.core.stalls import PATTERNS
from sim.drivers.run import run
from sim.testbenches.kllm.centroid_lane import build, random_products, testbench
from sim.testbenches.kllm.layers import layers_of
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.centroid_lane")
TINY = CentroidLaneParameters.presets()["tiny"]
# Every number of pipeline stages, odd numbers of bits, one step a column and many.
SIZES = [
    CentroidLaneParameters.presets()["small"],
    pytest.param(TINY, marks=pytest.mark.campaign),
    pytest.param(
        dataclasses.replace(TINY, k=70, bits=2, sum_stages=0),
        marks=pytest.mark.campaign,
    ),
    pytest.param(
        dataclasses.replace(TINY, k=16, bits=3, weight_bits=1, entries=3, sum_stages=3),
        marks=pytest.mark.campaign,
    ),
    pytest.param(
        dataclasses.replace(TINY, k=50, bits=7, counters=2, sum_stages=1),
        marks=pytest.mark.campaign,
    ),
]


@pytest.fixture(scope="module", params=SIZES, ids=lambda p: p.slug())
def compiled(request):
    return Compiled(BLOCK, request.param)


def product_of(p, rng, columns, length=None, outliers=0.0, **fields):
    """Random columns of one vector, with this share of outliers."""
    length = length or p.k
    outlier = rng.random(length) < outliers
    high = 1 << p.bits - 1
    drawn = {
        "activation": np.where(outlier, 0, rng.integers(-high, high, length)),
        "weight": rng.integers(0, 1 << p.weight_bits, (columns, length)),
        "outlier": outlier,
        "value": rng.standard_normal(length).astype(np.float16),
        "s_b": rng.standard_normal(columns).astype(np.float16),
    }
    return dataclasses.replace(random_products(p, 1, rng)[0], **drawn | fields)


def test_every_size(compiled):
    stimulus = testbench.stimulus(compiled.parameters, None, 600, seed=3)
    for stall in PATTERNS:
        assert len(compiled.check(stimulus, stall).outputs["o"]) == 600


def test_rate(compiled):
    """T cycles a column of T steps, from the first on."""
    p = compiled.parameters
    rng = np.random.default_rng(4)
    columns = 9
    for share in (0, 0.1, 1):
        stimulus = build(p, [product_of(p, rng, columns, outliers=share)], rng, [])
        taken = compiled.check(stimulus, "none").cycles_of["o"]
        steps = len(stimulus.inputs["i"]) // columns
        assert set(np.diff(taken)) == {steps}
        assert taken[0] == steps - 1 + p.latency


def test_largest_sums(compiled):
    """All centroids at an extreme, all values outliers: nothing overflows."""
    p = compiled.parameters
    rng = np.random.default_rng(6)
    high, small = 1 << p.bits - 1, np.float16(2.0**-14)
    products = []
    for outliers in (0, 1):
        for a, b in ((-high, -high), (-high, high - 1), (high - 1, high - 1)):
            fields = {
                "activation": np.full(p.k, 0 if outliers else a),
                "value": np.full(p.k, 65504 if a * b > 0 else -65504, np.float16),
                "fixed": np.full(1 << p.weight_bits, b),
                "codebook": np.full(1 << p.weight_bits, 65504, np.float16),
                "s_a": np.float16(1),
                "r": small if outliers else np.float16(1),
                "s_b": np.full(2, small if outliers else 1, np.float16),
            }
            products.append(product_of(p, rng, 2, outliers=outliers, **fields))
            y, invalid = products[-1].results()
            assert not invalid.any() and (np.sign(y) == np.sign(a * b)).all()
            exact = p.k * (65504.0**2 * 2.0**-28 if outliers else abs(a * b) / high**2)
            assert np.abs(y).tolist() == pytest.approx([exact] * 2, rel=2e-3)
    compiled.check(build(p, products, rng, []), "random")


def test_every_sum_is_rounded_once():
    """Against rational arithmetic, where FP32 cannot hold the sum."""
    rng = np.random.default_rng(2)
    high = 1 << 15
    a = rng.integers(-high, high, (4, 300))
    b = rng.integers(-high, high, (300, 5))
    found = centroid_sum(a, b, 16)
    inexact = 0
    for (t, n), value in np.ndenumerate(found):
        exact = Fraction(int(a[t] @ b[:, n]), high**2)
        below, above = (np.nextafter(value, np.float32(x)) for x in (-np.inf, np.inf))
        off = abs(Fraction(float(value)) - exact)
        assert off <= min(abs(Fraction(float(x)) - exact) for x in (below, above))
        inexact += off > 0
    assert inexact > 10
    assert to_bits(centroid_sum(a[:, :2] * 0, b[:2], 16)).max() == 0
    with pytest.raises(ValueError, match="over 2\\^53"):
        centroid_sum(np.zeros((1, 1 << 24)), np.zeros((1 << 24, 1)), 16)


def test_fixed_codebooks():
    """The largest magnitude is the largest integer, and every centroid within half a unit."""
    a = np.array([-0.9, -0.25, 0.1, 0.5], np.float16)
    b = np.array([0.003, -0.001], np.float16)
    made = fixed_codebooks(a, b, 8)
    assert made.activations.tolist() == [-127, -35, 14, 71] and made.weights.tolist() == [127, -42]
    s_b = np.array([300], np.float16)
    column, sparse = made.column_scales(s_b), made.sparse_centroids(b)
    # Both halves of a result keep their meaning: of the sum of products, and of the outliers.
    products = np.multiply.outer(made.activations, made.weights) * 2.0**-14 * column[0]
    assert products == pytest.approx(np.multiply.outer(a, b).astype(float) * 300, abs=3e-3)
    assert column[0] * sparse.astype(float) == pytest.approx(300 * b.astype(float), rel=1e-3)
    zeros = np.zeros(2, np.float16)
    made = fixed_codebooks(a, zeros, 8)
    assert not made.weights.any() and not made.sparse_centroids(zeros).any()
    with pytest.raises(ValueError, match="a codebook must be finite"):
        fixed_codebooks(a, np.array([1, np.inf], np.float16), 8)


@pytest.mark.parametrize(("bits", "worst"), [(8, 0.02), (12, 0.002)])
def test_near_the_lane_that_counts(shipped_trace, bits, worst):
    """The same layers by both lanes' models; their difference falls with the centroids' bits."""
    count = 3
    layers, _ = layers_of(shipped_trace, 576, 64, 4, 4, count)
    off = []
    for layer in layers:
        x = layer.x[:4]
        outlier = dynamic_outliers(x, count)
        s_a = inlier_scale(x, outlier)
        index = np.stack(
            [
                cluster(v, scaled_midpoints(layer.tables.midpoints, s))
                for v, s in zip(x, s_a, strict=True)
            ]
        )
        r, s_b = np.ones(len(x), np.float16), layer.weights.scale
        value, weight, codebook = (
            np.where(outlier, x, 0),
            layer.weights.index,
            layer.weights.codebook,
        )
        table = product_table(layer.codebook, codebook, np.float16).reshape(16, 16)
        y, _ = pe_lane(index, weight, ~outlier, value, outlier, table, codebook, s_a, r, s_b)
        made = fixed_codebooks(layer.codebook, codebook, bits)
        z, _ = centroid_lane(
            np.where(outlier, 0, made.activations[index]),
            weight,
            value,
            outlier,
            made.weights,
            made.sparse_centroids(codebook),
            s_a,
            r,
            made.column_scales(s_b),
            bits,
        )
        y, z = y.astype(float), z.astype(float)
        off.append(np.linalg.norm(z - y) / np.linalg.norm(y))
    print(f"{bits} bits: differ by {min(off):.2%} to {max(off):.2%}")
    assert worst / 10 < max(off) < worst


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "twelve_bits", "paper"])
def test_large_presets(preset):
    """Too large for the tests of every block."""
    vectors = 6 if preset == "paper" else 36
    parameters = CentroidLaneParameters.presets()[preset]
    outcome = run(BLOCK, preset, parameters, driver="harness", vectors=vectors)
    assert outcome.passed, (outcome.first_mismatch, outcome.failures)
    assert outcome.transactions == 2 * len(PATTERNS) * vectors
