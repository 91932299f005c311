"""The whole accelerator: its model against the algorithm, products of every kind, its rate."""

import dataclasses

import numpy as np
import pytest

from golden.arith.formats import to_bits
from golden.kllm.cycles import VectorWork, Work, core_cycles, listing_of
from golden.kllm.kllm_core import (
    fixed_tables,
    front_end,
    kllm_core,
    tables_of,
)
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.design import generate
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.drivers.harness.runner import Harness
from sim.drivers.run import run
from sim.testbenches.kllm.core.product_cycles import cycles_of, formula_work, timing_of, work_of
from sim.testbenches.kllm.core.products import (
    Product,
    results_of_all,
)
from sim.testbenches.kllm.core.random_products import random_products
from sim.testbenches.kllm.kllm_core import build, fit_memory, real_products, testbench
from sim.testbenches.kllm.layers import layers_of
from tests.support.kllm.core import BLOCK, ODD, ONE_GROUP, QUICK, SMALL, SMALLEST, check, compiled

# Compiling the core in Verilator takes minutes; the suite runs it in Icarus.
campaign = pytest.mark.campaign
RNG = np.random.default_rng


@pytest.fixture(scope="module")
def small():
    return compiled(SMALL)


@pytest.mark.parametrize("parameters", [SMALL, ODD, QUICK, ONE_GROUP], ids=lambda p: p.slug())
def test_a_result_comes_a_lane_s_latency_after_its_last_step(parameters):
    """In the cycle model, as in the lane, whose own tests hold `latency` to its RTL."""
    for groups in {1, parameters.groups}:
        work = Work([VectorWork([1], [1])], 1, sets=1, groups=groups, new_tables=True)
        times = core_cycles(timing_of(parameters), [work] * 3)
        latency = parameters.lane.latency_of(groups)
        assert {t.result - t.last_step for t in times} == {latency}


@pytest.mark.parametrize(("preset", "within"), [("small", 0.01), ("default", 0.03)])
def test_the_formula_of_cycles(preset, within, shipped_trace):
    """Near the cycle model, which the RTL takes exactly; without functions and the softmax."""
    p = KllmCoreParameters.preset(preset)
    plain = {"function": None, "softmax": False, "weighted": False}
    products = [
        dataclasses.replace(product, **plain)
        for product in real_products(p, shipped_trace, 6, columns=64)[0]
    ]
    outliers = [result.outlier for result in results_of_all(p, products)]
    pairs = zip(products, outliers, strict=True)
    work = [formula_work(product, work_of(p, product, marks)) for product, marks in pairs]
    expected = cycles_of(p, products, outliers)
    assert p.cycles(work) == pytest.approx(expected, rel=within)


@campaign
def test_one_group(shipped_trace):
    """Its cycles too, product after product."""
    assert ONE_GROUP.groups == 1
    core = compiled(ONE_GROUP)
    for data in (None, shipped_trace):
        stimulus = testbench.stimulus(ONE_GROUP, data, 24, 5)
        assert check(core, stimulus).cycles == stimulus.cycles
        check(core, stimulus, "random")


@campaign
def test_products_of_every_kind(small):
    for seed in (11, 12):
        stimulus = testbench.stimulus(SMALL, None, 80, seed)
        for stall in PATTERNS:
            outcome = check(small, stimulus, stall, seed)
            assert stall != "none" or outcome.cycles == stimulus.cycles


@campaign  # the tests of every block run it in Icarus, too
@pytest.mark.parametrize("stall", ["none", "random"])
def test_second_simulator(stall):
    result = run(BLOCK, "small", SMALL, simulator="icarus", vectors=4, stall=stall)
    assert result.passed, result.failures or result.first_mismatch
    assert result.transactions == 2 * 4
    assert stall != "none" or result.cycles == result.predicted


@pytest.mark.parametrize("simulator", ["icarus", pytest.param("verilator", marks=campaign)])
def test_reset_in_mid_product(simulator, shipped_trace):
    """Products, steps and responses in flight are discarded; the next products are right.

    The first stimulus' memory ends in the middle of its matrix, which ends the run at once.
    """
    design = generate(BLOCK, SMALL)
    timing = MemoryTiming((10, 40), reorder=True, seed=6)
    cut, clean = (
        build(SMALL, real_products(SMALL, shipped_trace, count, columns=n)[0], RNG(8), [])
        for count, n in ((2, 40), (3, 8))
    )
    whole = cut.memories["memory"]
    cut.memories["memory"] = dataclasses.replace(whole, contents=whole.contents[:90])
    if simulator == "icarus":
        simulation = CocotbSimulation(design, simulator)
        broken, outcome = simulation.run([(cut, "none"), (clean, "none")], 1, timing=timing)
    else:
        harness = Harness(design)
        # Both in one model: resetting it is what the harness does before a stimulus.
        broken, outcome = (harness.run(j, PATTERNS["none"], 1, timing) for j in (cut, clean))
    assert "memory" in broken.failure
    under_way = np.sum(broken.memories["memory"].offered < 0)
    assert 8 <= under_way <= SMALL.depth
    assert 0 < len(broken.outputs["y"]) < 40
    assert outcome.failure is None
    assert compare(clean, outcome.outputs, design.outputs, outcome.cycles_of) == []


def check_real(result, products, notes):
    """All results right; the vectors include those of attention and down projections."""
    assert result.passed, result.failures or result.first_mismatch
    assert (
        result.transactions == 2 * len(PATTERNS) * len(products)
        and result.cycles == result.predicted
    )
    assert ".attn" in notes[0] and ".down" in notes[0]
    assert len({product.weight.tobytes() for product in products}) >= 4
    assert len({product.x.tobytes() for product in products}) == len(products)


@campaign
def test_default_preset(shipped_trace):
    """K = 576, that of the attention projections; the others' vectors are cut."""
    p = KllmCoreParameters.preset("default")
    result = run(BLOCK, "default", p, driver="harness", vectors=8)
    check_real(result, *real_products(p, shipped_trace, 8))


@campaign
def test_down_projections(shipped_trace):
    """K = 1536 and all columns that the trace has of the down projections, in one lane."""
    p = KllmCoreParameters(1536, 32, 1, counters=12, outliers=8)
    products, notes = real_products(p, shipped_trace, 12, columns=32)
    whole = [shipped_trace.x[name] for name in shipped_trace.x if name.endswith("down")]
    rows = {row.astype(np.float16).tobytes() for x in whole for row in x}
    assert sum(x.tobytes() in rows for product in products for x in product.x) >= 6
    outcome = check(compiled(p), stimulus := build(p, products, RNG(10), notes))
    assert outcome.cycles == stimulus.cycles


@campaign
def test_latency_is_enough(small):
    """In an idle core no vector's first result is later than `latency`."""
    latest = 0
    for seed in range(12):
        product = random_products(SMALL, 1, np.random.default_rng(seed))[0]
        product = dataclasses.replace(product, x=product.x[:1], keep=product.keep[:1])
        stimulus = build(SMALL, [product], np.random.default_rng(seed), [])
        outcome = check(small, stimulus)
        ready = max(len(stimulus.inputs["x"]), len(stimulus.inputs["tables"]) + 1)
        latest = max(latest, outcome.cycles_of["y"][0] - ready + 1)
    assert SMALL.latency / 2 < latest <= SMALL.latency


# Lanes that multiply fixed-point centroids.
MULTIPLY = [
    dataclasses.replace(SMALL, centroid_bits=8),
    dataclasses.replace(ODD, centroid_bits=12, counter_stages=3),
]


def test_fixed_point_centroids_are_close(shipped_trace):
    """Products of real layers with 8 and 12 bits, against those of the FP16 table."""
    for layer in layers_of(shipped_trace, 576, 32, 4, 4, 3)[0]:
        index, scale = layer.weights.index, layer.weights.scale
        counted, _ = kllm_core(layer.x[:4], layer.tables, index, scale, 3)
        size = np.linalg.norm(counted.astype(np.float64))
        for bits, bound in ((8, 0.02), (12, 0.002)):
            tables, made = fixed_tables(layer.codebook, layer.weights.codebook, bits)
            y, _ = kllm_core(layer.x[:4], tables, index, made.column_scales(scale), 3)
            error = np.linalg.norm(y.astype(np.float64) - counted) / size
            assert 1e-5 < error < bound


@campaign
@pytest.mark.parametrize("parameters", [ODD, QUICK, *MULTIPLY], ids=lambda p: p.slug())
def test_other_sizes(parameters, shipped_trace):
    core = compiled(parameters)
    for data, seed in ((None, 13), (None, 24), (shipped_trace, 13)):
        stimulus = testbench.stimulus(parameters, data, 60, seed)
        for stall in PATTERNS:
            outcome = check(core, stimulus, stall)
            assert stall != "none" or stimulus.wrong_cycles(outcome) is None


def test_products_fit_the_smallest_core(shipped_trace):
    """No more columns than n, no longer than k, and all matrices within the address width."""
    for p in (
        KllmCoreParameters(2, 1, 1, **SMALLEST),
        dataclasses.replace(SMALL, n=1),
        dataclasses.replace(SMALL, address_width=3),
    ):
        real, _ = real_products(p, shipped_trace, 12)
        for products in (random_products(p, 40, RNG(3)), real):
            fitted = fit_memory(p, products)
            assert len(fitted) == len(products)
            stored = {(q.weight.tobytes(), q.scale.tobytes()): q.weight.shape for q in fitted}
            assert sum(p.words(*shape) for shape in stored.values()) <= 1 << p.address_width
            assert all(q.x.shape == q.keep.shape for q in fitted)
            assert all(q.x.shape[1] == len(q.weight) <= p.k for q in fitted)
            assert all(1 <= len(q.x) <= p.vectors for q in fitted)
            assert all(1 <= q.weight.shape[1] == len(q.scale) <= p.n for q in fitted)
            build(p, fitted, RNG(4), [])


def test_random_products_cover_what_they_should():
    products = random_products(SMALL, 500, np.random.default_rng(11))
    results = results_of_all(SMALL, products)
    finite = [np.isfinite(product.x[product.keep]).all() for product in products]
    assert 10 < finite.count(False) < 150
    clean = 0
    for product, good, result in zip(products, finite, results, strict=True):
        every = np.isfinite(np.where(product.keep, product.x, 0)).all(axis=1)
        assert result.invalid[~every].all()
        clean += good and not result.invalid.any()
    assert clean > 100
    assert sum(p.x.shape[1] % 16 > 0 for p in products) > 30
    assert sum(not p.x.any() for p in products) > 10
    assert sum(p.integer for p in products) > 10
    assert sum(p.function is not None for p in products) > 20
    assert sum(p.norm is not None for p in products) > 50
    constant = [p for p in products if p.x.shape[1] == SMALL.k and (p.x == p.x[:, :1]).all()]
    assert len(constant) > 10
    assert sum(p.outliers == 0 for p in products) > 15
    assert min(sum(p.store for p in products), sum(p.weighted for p in products)) > 30
    assert sum(len(p.x) > 1 for p in products) > 30
    assert sum(p.partial and p.add for p in products) > 5
    assert sum(p.add for p in products) > 40
    assert sum(p.used is not None for p in products) > 30
    assert sum(len(p.scale) == SMALL.n for p in products) > 3
    # A NaN that no count says, and short vectors one after another, as many as can be in flight.
    assert sum(p.integer and p.function is not None and np.isnan(p.x).any() for p in products) > 3
    short = "".join("01"[p.x.shape[1] < 10 and not p.new_tables] for p in products)
    assert short.count("111") > 3
    repeated = [len(np.unique(p.tables.centroids)) < 16 for p in products]
    assert sum(repeated) > 10


@campaign
def test_invalid_vectors_leave_the_next_product_clean(small, shipped_trace):
    good, _ = real_products(SMALL, shipped_trace, 1, columns=12)
    product = good[0]
    products = []
    for value in (np.inf, -np.inf, np.nan):
        for place in (0, SMALL.k - 1):
            x = product.x.copy()
            x[:, place] = value
            products += [dataclasses.replace(product, x=x), product]
    stimulus = build(SMALL, products, np.random.default_rng(1), [])
    outcome = check(small, stimulus, "random")
    fields = payload.unpack(SMALL.output_layout, outcome.outputs["y"])
    invalid = fields["invalid"].reshape(len(products), -1)
    y = fields["y[0]"].reshape(len(products), -1)
    assert invalid[::2].all() and not invalid[1::2].any()
    assert (y[::2] == 0x7E00).all()
    assert (y[1::2] == to_bits(product.result().y)).all()


@campaign
def test_back_to_back_rate(small, shipped_trace):
    """max(T, G) cycles a set of columns, to within 5 % over many products."""
    products, _ = real_products(SMALL, shipped_trace, 8, columns=SMALL.n)
    outcome = check(small, build(SMALL, products, np.random.default_rng(2), []))
    taken = outcome.cycles_of["y"]
    busy = 0
    for product in products:
        for marks in front_end(product.x, product.tables, product.outliers).outlier:
            rows = sum(listing_of(marks, SMALL.segment, 16, SMALL.entries)[1])
            busy += SMALL.n * max(rows, SMALL.groups)
    assert taken[-1] - taken[0] + 1 <= 1.05 * busy
    print(f"{busy} cycles of work in {taken[-1] + 1}, first result in cycle {taken[0]}")


@campaign
@pytest.mark.parametrize("latency", [(1, 1), (14, 14), (3, 14)], ids=str)
def test_memory_that_keeps_up(small, shipped_trace, latency):
    """A latency of up to `depth` - 2 cycles costs no rate, in order or reordered."""
    products, _ = real_products(SMALL, shipped_trace, 4, columns=SMALL.n)
    stimulus = build(SMALL, products, np.random.default_rng(3), [])
    outcome = check(small, stimulus, timing=MemoryTiming(latency, reorder=latency[0] != latency[1]))
    assert outcome.cycles <= stimulus.cycles + 32


@campaign
@pytest.mark.parametrize(
    ("timing", "rate"),
    [
        (MemoryTiming((5, 5), interval=3), 3),
        (MemoryTiming((4, 60), interval=2, reorder=True, seed=4), None),
        (MemoryTiming((200, 300), reorder=True, seed=5), None),
        (MemoryTiming((62, 62)), 64 / 16),
    ],
    ids=["bandwidth", "reordering", "far", "latency"],
)
def test_slow_memory(small, shipped_trace, timing, rate):
    products, _ = real_products(SMALL, shipped_trace, 4, columns=20)
    stimulus = build(SMALL, products, np.random.default_rng(4), [])
    outcome = check(small, stimulus, timing=timing)
    check(small, stimulus, "bursts", timing=timing)
    words = 4 * SMALL.words(SMALL.k, 20)
    use = outcome.memories["memory"]
    assert use.rows_read == words
    if rate is not None:
        assert words * rate <= outcome.cycles <= 1.05 * words * rate + SMALL.latency + 64


def test_functions_and_norms_are_in_the_testbench(shipped_trace):
    products, _ = real_products(SMALL, shipped_trace, 8)
    assert sum(product.norm is not None for product in products) == 2
    assert sum(product.function is not None for product in products) == 2
    assert sum(product.partial for product in products) == 1
    assert sum(len(product.x) > 1 for product in products) == 1
    assert all(isinstance(product, Product) for product in products)


def test_tables_of_real_codebooks(shipped_trace):
    layer = layers_of(shipped_trace, 64, 8, 4, 4, 1)[0][0]
    tables = tables_of(layer.codebook, layer.weights.codebook)
    assert (np.diff(tables.midpoints.astype(float)) >= 0).all()
    assert tables.products.shape == (16, 16)
