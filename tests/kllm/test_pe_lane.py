"""The lane: its twin against the algorithm, every size, its rate."""

import dataclasses

import numpy as np
import pytest

from golden.arith.formats import to_bits
from golden.kllm.matvec import matvec
from golden.kllm.pe_lane import pe_lane, pe_lane_matrix
from golden.kllm.quantize import QuantizedActivations, QuantizedWeights
from hw.catalogue import Block
from hw.kllm.pe_lane import PeLaneParameters
from hw.parameters import ParameterError
from sim.bench import compare
from sim.benches.kllm.pe_lane import bench, build, random_products, real_products
from sim.design import generate
from sim.harness import Harness
from sim.stall import PATTERNS

# Blocks in work, not yet in the catalogue; minutes.
pytestmark = pytest.mark.campaign

BLOCK = Block("kllm", "PeLane", "Indices and outliers of columns in, results out", "KLLM, Fig. 5")
TINY = PeLaneParameters.presets()["tiny"]
SIZES = [
    TINY,
    dataclasses.replace(TINY, k=16, macs=8, counter_stages=0, scale_stages=1, ports=3),  # one group
    dataclasses.replace(TINY, k=50, counters=2, macs=1, counter_stages=3),
]


@pytest.fixture(scope="module", params=SIZES, ids=lambda p: p.slug())
def compiled(request):
    design = generate(BLOCK, request.param)
    return request.param, design, Harness(design)


def check(compiled, job, stall, seed=1):
    _, design, harness = compiled
    harness.reset()
    played = harness.play(job, PATTERNS[stall], seed)
    assert played.failure is None
    assert compare(job, played.outputs, design.outputs, played.cycles_of) == []
    assert stall != "none" or played.cycles == job.cycles
    return played


def test_every_size(compiled):
    job = bench.job(compiled[0], None, 600, seed=3)
    for stall in PATTERNS:
        assert len(check(compiled, job, stall).outputs["o"]) == 600


def test_rate(compiled):
    """max(T, G) cycles a column of T steps, from the first on."""
    p = compiled[0]
    rng = np.random.default_rng(4)
    for share in (0, 0.1, 1):
        product = random_products(p, 1, rng)[0]
        outlier = rng.random(p.k) < share
        columns = 9
        many = dataclasses.replace(
            product,
            activation=rng.integers(0, 1 << p.activation_bits, p.k),
            weight=rng.integers(0, 1 << p.weight_bits, (columns, p.k)),
            outlier=outlier,
            keep=~outlier,
            value=rng.standard_normal(p.k).astype(np.float16),
            s_b=np.ones(columns, np.float16),
        )
        job = build(p, [many], rng, [])
        taken = check(compiled, job, "none").cycles_of["o"]
        steps = len(job.inputs["i"]) // columns
        assert set(np.diff(taken)) == {max(steps, p.groups)}
        assert taken[0] == steps - 1 + p.latency


def test_twin_s_forms_agree():
    """By columns and counts, and by matrices of indices; integers too."""
    p = PeLaneParameters.presets()["small"]
    rng = np.random.default_rng(5)
    compared = 0
    for number in range(60):
        a = random_products(p, 6, rng)[0]
        y, invalid = a.results()
        one = (a.activation[None], a.weight.T, a.keep[None], a.value[None], a.outlier[None])
        scales = (a.s_a[None], a.r[None], a.s_b)
        whole, bad = pe_lane_matrix(*one, a.table, a.codebook, *scales, a.integer)
        assert to_bits(whole[0]).tolist() == to_bits(y).tolist(), number
        assert bad[0].tolist() == invalid.tolist()
        compared += np.count_nonzero(~invalid & (y != 0))
    assert compared > 50


def test_twin_is_close_to_the_algorithm(shipped_trace):
    """Within half a unit of FP16, but for products of centroids that are FP16 themselves."""
    p = PeLaneParameters()
    products, _ = real_products(p, shipped_trace, 36)
    worst = 0.0
    for a in products:
        y, invalid = a.results()
        zero = np.float16(0)
        vector = QuantizedActivations(a.activation, None, a.s_a, zero, a.outlier, a.value)
        matrix = QuantizedWeights(a.weight.T, a.codebook, a.s_b, zero * a.s_b)
        table = a.table.astype(np.float64).reshape(-1)
        levels = np.arange(a.table.shape[0])
        exact = matvec(dataclasses.replace(vector, codebook=levels), matrix, table)
        assert not invalid.any()
        worst = max(worst, (np.abs(y - exact) / np.spacing(np.abs(y))).max())
    print(f"at most {worst:.4f} units in the last place from the float64 sum")
    assert 0.3 < worst <= 0.501


def test_largest_counts(compiled):
    """All K indices equal, at several indices, and all K values outliers."""
    p = compiled[0]
    rng = np.random.default_rng(6)
    products = []
    for outliers in (False, True):
        product = random_products(p, 1, rng)[0]
        for index in (0, (1 << p.activation_bits) - 1):
            products.append(
                dataclasses.replace(
                    product,
                    activation=np.full(p.k, index),
                    weight=np.full((2, p.k), [[0], [(1 << p.weight_bits) - 1]]),
                    keep=np.full(p.k, not outliers),
                    outlier=np.full(p.k, outliers),
                    value=np.full(p.k, 65504, np.float16),
                    table=np.full_like(product.table, 65504),
                    codebook=np.full_like(product.codebook, 65504),
                    s_a=np.float16(2.0**-14),
                    r=np.float16(2.0**-14),
                    s_b=np.full(2, 2.0**-14, np.float16),
                    integer=False,
                )
            )
    job = build(p, products, rng, [])
    check(compiled, job, "random")
    y = np.concatenate([product.results()[0] for product in products])
    assert np.isfinite(y).all() and (y > 0).all()


def test_twin_refuses_nothing_finite():
    """A NaN or infinity anywhere gives NaN and is flagged; overflow gives an infinity."""
    base = {
        "activation": np.zeros((1, 4), int),
        "weight": np.zeros((1, 4), int),
        "keep": np.array([[1, 1, 0, 0]], bool),
        "value": np.ones((1, 4), np.float16),
        "outlier": np.array([[0, 0, 1, 0]], bool),
        "table": np.ones((2, 2), np.float16),
        "codebook": np.ones(2, np.float16),
        "s_a": np.ones(1, np.float16),
        "r": np.ones(1, np.float16),
        "s_b": np.ones(1, np.float16),
    }
    assert [a[0] for a in pe_lane(**base)] == [3, False]
    for name, at in (("value", (0, 2)), ("table", (0, 0)), ("codebook", 0), ("s_a", 0), ("r", 0)):
        changed = base[name].copy()
        changed[at] = np.nan
        y, invalid = pe_lane(**base | {name: changed})
        assert np.isnan(y[0]) and invalid[0], name
    large = {"table": np.full((2, 2), 60000, np.float16)}
    y, invalid = pe_lane(**base | large)
    assert np.isposinf(y[0]) and not invalid[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"macs": 3}, "macs must be a power of two up to 256, not 3"),
        ({"ports": 0}, "ports must be at least 1, not 0"),
        ({"counter_stages": 4}, "stages must be between 0 and 3, not 4"),
        ({"scale_stages": 0}, "scale_stages must be between 1 and 4, not 0"),
    ],
)
def test_limits(settings, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        PeLaneParameters(**settings)
