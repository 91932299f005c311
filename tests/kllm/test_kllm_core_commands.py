"""What a command of KLLM's core can ask for: far memories, integers, batches, parts, attention."""

import dataclasses

import numpy as np
import pytest

from golden.arith.formats import to_bits
from golden.kllm.kllm_core import kllm_core, parts_of
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.kllm.core.products import Product, results_of_all
from sim.testbenches.kllm.core.random_products import random_products
from sim.testbenches.kllm.kllm_core import build, fit_memory
from sim.testbenches.kllm.layers import layers_of
from tests.support.kllm.core import SMALL, check, compiled

# Compiling the core in Verilator takes minutes; the suite runs it in Icarus.
campaign = pytest.mark.campaign

RNG = np.random.default_rng


@pytest.fixture(scope="module")
def small():
    return compiled(SMALL)


@pytest.fixture(scope="module")
def default():
    return compiled(KllmCoreParameters.preset("default"))


def product_of(layer, x, **options) -> Product:
    """A layer's product with vectors ``x [vectors, K]``."""
    keep, outliers = np.ones(x.shape, bool), options.pop("outliers", 3)
    index, scale = layer.weights.index, layer.weights.scale
    return Product(x, keep, layer.tables, True, index, scale, outliers, **options)


@campaign
def test_a_far_memory_costs_nothing(default, shipped_trace):
    """576 x 1536, real vectors: as fast at a latency of 80 as at 1, near the memory's rate."""
    p = default[0]
    layer = layers_of(shipped_trace, 576, 1536, 4, 4, 3)[0][0]
    products = [product_of(layer, layer.x[n : n + 1]) for n in range(2)]
    stimulus = build(p, products, RNG(1), [])
    near = check(default, stimulus)
    assert near.cycles == stimulus.cycles
    words = 2 * p.words(576, 1536)
    for timing in (MemoryTiming((80, 80)), MemoryTiming((2, 80), reorder=True, seed=3)):
        far = check(default, stimulus, timing=timing)
        assert near.cycles <= far.cycles <= near.cycles + 80
        # From the first result on, as the first vector is split and clustered before.
        taken = far.cycles_of["y"]
        rate = words / (taken[-1] - taken[0] + 8)
        print(f"{timing}: {far.cycles} cycles, {rate:.3f} words a cycle")
        assert rate >= 0.95


@campaign
def test_bins_in_use(default, shipped_trace):
    """512 keys of 64: a query of integers takes a quarter of the cycles of one of indices."""
    p = default[0]
    layer = layers_of(shipped_trace, 64, 512, 4, 4, 0)[0][0]
    lines = np.zeros_like(layer.tables.products)
    lines[:4] = np.array([1, 2, 4, -8], np.float16)[:, None] * layer.tables.centroids
    integers = dataclasses.replace(layer.tables, products=lines)
    taken = {}
    for integer in (False, True):
        tables = integers if integer else layer.tables
        product = product_of(layer, layer.x[:1], integer=integer, signed=integer, outliers=0)
        products = [dataclasses.replace(product, tables=tables)] * 3
        stimulus = build(p, products, RNG(1), [])
        outcome = check(default, stimulus)
        assert outcome.cycles == stimulus.cycles
        # The interval of products, whose vectors are split meanwhile.
        ends = outcome.cycles_of["y"].reshape(3, -1)[:, -1]
        taken[integer] = np.diff(ends).tolist()
    assert taken == {False: [2048] * 2, True: [512] * 2}


@campaign
def test_a_batch_shares_its_columns(default, shipped_trace):
    """Four vectors by one matrix: its words are read once, and a slow memory is waited for once."""
    p = default[0]
    layer = layers_of(shipped_trace, 576, 64, 4, 4, 3)[0][1]
    batch = build(p, [product_of(layer, layer.x[:4])], RNG(1), [])
    single = build(p, [product_of(layer, layer.x[n : n + 1]) for n in range(4)], RNG(1), [])
    read, cycles = {}, {}
    for name, stimulus in (("batch", batch), ("single", single)):
        timing = MemoryTiming((20, 20), interval=4)
        outcome = check(default, stimulus, timing=timing)
        read[name] = outcome.memories["memory"].rows_read
        cycles[name] = outcome.cycles
        assert check(default, stimulus).cycles == stimulus.cycles
    assert read == {"batch": p.words(576, 64), "single": 4 * p.words(576, 64)}
    print("cycles with a word every four:", cycles)
    assert cycles["batch"] < 0.4 * cycles["single"]


@campaign
def test_a_matrix_in_parts_of_its_rows(default, shipped_trace):
    """1536 rows on a core of 576, as kllm_core in parts of 512 has them."""
    p = default[0]
    layer = layers_of(shipped_trace, 1536, 40, 4, 4, 8)[0][0]
    products = [
        dataclasses.replace(
            product_of(layer, layer.x[:2, part]),
            weight=np.ascontiguousarray(layer.weights.index[part]),
            new_tables=number == 0,
            add=number > 0,
            partial=number < 2,
        )
        for number, part in enumerate(parts_of(1536, p.k))
    ]
    assert len(products) == 3
    stimulus = build(p, products, RNG(1), [])
    assert check(default, stimulus).cycles == stimulus.cycles
    check(default, stimulus, "random")
    index, scale = layer.weights.index, layer.weights.scale
    whole, _ = kllm_core(layer.x[:2], layer.tables, index, scale, 3, rows=p.k)
    parts = results_of_all(p, products)[-1].y
    np.testing.assert_array_equal(to_bits(whole), to_bits(parts))


def test_parts_of_a_vector():
    assert parts_of(576, 576) == [slice(0, 576)]
    assert parts_of(1536, 576) == [slice(0, 512), slice(512, 1024), slice(1024, 1536)]
    for length in range(1, 400):
        for most in (16, 50, 64):
            parts = parts_of(length, most)
            sizes = [part.stop - part.start for part in parts]
            assert sum(sizes) == length and max(sizes) <= most
            assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]


@campaign
def test_attention_between_other_products(small):
    """Vectors stored, scores, and vectors weighted by their softmax, stalled and not."""
    for seed in range(8):
        products = random_products(SMALL, 60, RNG(seed))
        assert sum(product.weighted for product in products) > 3
        assert sum(product.store for product in products) > 3
        stimulus = build(SMALL, fit_memory(SMALL, products), RNG(seed), [])
        for stall in PATTERNS:
            outcome = check(small, stimulus, stall, seed)
            assert stall != "none" or outcome.cycles == stimulus.cycles
