"""The clustering unit: its model against the algorithm; every value and size through the RTL."""

import numpy as np
import pytest

from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    quantize_activations,
)
from golden.kllm.clustering_unit import cluster, midpoints, scaled_midpoints
from hw.catalogue import find
from hw.kllm.clustering_unit import ClusteringUnit, ClusteringUnitParameters
from sim.testbenches.kllm.clustering_unit import build, testbench
from tests.support.campaign import suite_takes
from tests.support.formal import prove_stream_rules
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.clustering_unit")
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
SIZES = [
    ClusteringUnitParameters(activation_bits=1, lanes=1),
    ClusteringUnitParameters(activation_bits=3, lanes=5),
    ClusteringUnitParameters(activation_bits=5, lanes=2),
]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_index_is_the_number_of_midpoints_below(bits):
    """All FP16 values among ascending midpoints; the midpoints below are counted one by one."""
    rng = np.random.default_rng(bits)
    with np.errstate(invalid="ignore"):
        value = EVERY.astype(np.float64)
        for _ in range(20):
            bound = np.sort(rng.choice(EVERY[np.isfinite(value)], (1 << bits) - 1))
            below = (bound.astype(np.float64)[:, None] < value).sum(axis=0)
            assert np.array_equal(cluster(EVERY, bound), below)


def test_scaled_midpoints_are_rounded_products():
    rng = np.random.default_rng(1)
    table = rng.choice(EVERY, (2000, 7))
    scale = rng.choice(EVERY, 2000)
    got = scaled_midpoints(table, scale)
    factor = np.where(scale == 0, 1, scale.astype(np.float64))
    with np.errstate(all="ignore"):
        exact = table.astype(np.float64) * factor[:, None]  # exact: 22 bits of significand
        want = exact.astype(np.float16)
    nan = np.isnan(exact)
    assert np.array_equal(np.isnan(got), nan) and nan.any()
    assert np.array_equal(got[~nan].view(np.uint16), want[~nan].view(np.uint16))


@pytest.mark.parametrize("bits", [3, 4])
def test_close_to_the_algorithm_on_real_activations(shipped_trace, bits, capsys):
    """An index differs from level 1's only where x is within rounding of a boundary.

    A midpoint is rounded twice, so a boundary moves by 2^-11 of itself each time (or by half of
    the smallest number).
    """
    values = differ = 0
    for x in shipped_trace.x.values():
        x = x.astype(np.float16)
        outlier = dynamic_outliers(x, -(-x.shape[1] // 200))
        scale = inlier_scale(x, outlier)
        inliers = (x.astype(np.float32) / scale[:, None])[~outlier][::13]
        codebook = fit_activation_codebook(inliers, bits)
        level_1 = quantize_activations(x, codebook, outlier).index
        scaled = scaled_midpoints(midpoints(codebook), scale)
        index = cluster(x, scaled[:, None])
        other = (index != level_1) & ~outlier
        assert np.abs(index.astype(int) - level_1)[other].max(initial=0) <= 1
        exact = np.float64(scale)[:, None] * np.float64(codebook[1:] / 2 + codebook[:-1] / 2)
        exact = np.float64(scale)[:, None] * (
            (codebook[1:].astype(np.float64) + codebook[:-1].astype(np.float64)) / 2
        )
        token, place = np.nonzero(other)
        crossed = np.minimum(index, level_1)[other]
        bound = exact[token, crossed]
        room = 2.0**-10 * np.abs(bound) + np.float64(scale)[token] * 2.0**-25 + 2.0**-25
        assert (np.abs(x[token, place] - bound) <= room).all()
        values, differ = values + int((~outlier).sum()), differ + int(other.sum())
    assert values > 300_000
    with capsys.disabled():
        print(f"\n{bits} bits: {differ} of {values} indices differ from level 1")
    assert differ < values / 500


@pytest.mark.parametrize("parameters", suite_takes(SIZES[1:2], SIZES), ids=lambda p: p.slug())
def test_every_size(parameters, shipped_trace):
    compiled = Compiled(BLOCK, parameters)
    for data, vectors in ((None, 300), (shipped_trace, 20)):
        stimulus = testbench.stimulus(parameters, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


@pytest.mark.parametrize("vectors", suite_takes([8], [8, 64]))
def test_every_value(vectors):
    """All 65 536 values, against a table a vector: in order, out of order and special."""
    p = ClusteringUnitParameters(activation_bits=4, lanes=16)
    rng = np.random.default_rng(4)
    x = np.broadcast_to(EVERY.reshape(-1, p.lanes), (vectors, 4096, 16))
    tables = rng.choice(EVERY, (vectors, 15))
    with np.errstate(invalid="ignore"):
        tables[::2] = np.sort(tables[::2], axis=1)
    scale = np.ones(vectors, np.float16)
    stimulus = build(p, x, np.full(vectors, 4096), tables, scale, rng, [])
    outcome = Compiled(BLOCK, p).check(stimulus)
    assert len(outcome.outputs["o"]) * p.lanes == vectors << 16


def test_vectors_follow_without_a_gap():
    p = ClusteringUnitParameters.preset("small")
    rng = np.random.default_rng(6)
    compiled = Compiled(BLOCK, p)
    for beats in (1, p.setup - 1, p.setup, p.setup + 5):
        x = rng.normal(size=(6, beats, p.lanes)).astype(np.float16)
        tables = np.sort(rng.normal(size=(6, p.midpoints)), axis=1).astype(np.float16)
        scale = rng.random(6).astype(np.float16)
        stimulus = build(p, x, np.full(6, beats), tables, scale, rng, [])
        taken = compiled.check(stimulus).cycles_of["o"]
        assert taken[0] == p.setup + p.latency
        assert set(np.diff(taken[::beats])) == {max(beats, p.setup)}


def test_stream_rules():
    """Outputs keep the rules of streams for any inputs and stalls."""
    p = ClusteringUnitParameters(activation_bits=1, lanes=1)
    prove_stream_rules(ClusteringUnit(p), "clustering_unit", "o", ["midpoints", "scale", "x"])
