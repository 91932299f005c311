"""The formulas of a product's cycles: against the core's cycle model, and at known points."""

import dataclasses
from math import comb, inf

import numpy as np
import pytest

from golden.algorithms.kllm.cost import (
    MODELS,
    Core,
    Product,
    a100_bytes,
    cycles,
    decode,
    memory_words,
)
from golden.algorithms.kllm.cost.cycles import column_cycles, product_bytes, step_rows
from golden.algorithms.kllm.cost.decode import mean_token, search_cycles
from golden.kllm.cycles import SoftmaxTiming, Timing, VectorWork, Work, core_cycles, listing_of
from golden.kllm.orizuru import orizuru

PLAIN = Core(share=0.0)
SMALL = Core(lanes=4, counters=1, macs=64, entries=2, tile=64)
SOFTMAX = SoftmaxTiming(rows=1, depth=4, maximum=1, total=1, output=1, parts=1)  # not in use


@pytest.mark.parametrize(
    ("core", "k", "integer"),
    [
        (Core(), 4096, False),
        (Core(entries=1, activation_bits=3), 4096, False),
        (Core(entries=2), 576, False),
        (Core(), 2048, True),
        (SMALL, 64, False),
        (dataclasses.replace(SMALL, macs=256), 40, False),
    ],
)
def test_sets_of_columns_take_the_core_s_cycles(core, k, integer):
    """One tile: the cycle model's latencies are of the first column alone."""
    outlier = np.zeros(k, bool)
    if not integer:
        outlier[np.random.default_rng(k).choice(k, k // 50, replace=False)] = True
    _, rows = listing_of(outlier, core.word, 16, core.entries)
    (words,) = memory_words(core, k)
    starts = np.cumsum([0, *words[:-1]])
    assert step_rows(np.add.reduceat(outlier.astype(int), starts), core.entries).tolist() == rows

    groups = core.groups(integer)
    # Words of scales, a cycle each, are not in the formula.
    scales = {"scale_sets": 1 << 20, "tail": [12] * (groups + 1)}
    constants = (20, 16, 30, 9, 7, 8, 9, 3)
    timing = Timing(*constants, fetch=5, stages=1, in_flight=4, softmax=SOFTMAX, **scales)
    vector = VectorWork([1] * -(-k // 16), rows)

    def result(sets: int) -> int:
        work = Work([vector], 0, sets, groups, new_tables=True)
        return core_cycles(timing, [work])[-1].result

    counted = max(sum(rows), groups)
    assert result(45) - result(25) == 20 * counted
    if not outlier.any():
        made = [cycles(core, Product(k, sets * core.lanes, integer)) for sets in (25, 45)]
        assert made[1] - made[0] == 20 * counted


def test_the_paper_s_product():
    assert cycles(PLAIN, Product(4096, 4096)) == 2048
    assert PLAIN.word_bytes == 4096
    assert product_bytes(PLAIN, Product(4096, 4096)) == 4096 * 4096 // 2 + 2 * 4096


@pytest.mark.parametrize(
    ("change", "product", "expected"),
    [
        ({}, Product(4096, 17), 2 * 8),  # a second set for one column
        ({}, Product(4097, 16), 8 + 8),  # a tile of one value pays a whole reduction
        ({"tile": 8192}, Product(4097, 16), 9),
        ({"activation_bits": 3}, Product(11008, 16), 8 + 8 + 6),
        ({}, Product(11008, 16), 8 + 8 + 8),
        ({}, Product(128, 16), 8),
        ({}, Product(128, 16, vectors=8), 64),
        ({}, Product(128, 16, integer=True), 2),
        ({}, Product(4096, 16, integer=True), 8),
        ({"macs": 48}, Product(128, 16), 6),
        # 4096 bytes a cycle are 2.048 TB/s; a column's scale is read too.
        ({"bandwidth": 256e9}, Product(4096, 4096), (2**23 + 2**13) / 512),
        ({"bandwidth": 256e9}, Product(4096, 4096, vectors=16), 16 * 2048),
    ],
)
def test_cycles_of_a_product(change, product, expected):
    assert cycles(dataclasses.replace(PLAIN, **change), product) == expected


def test_the_mean_over_positions_of_outliers():
    """Two outliers in two words of 16, one a cycle: three cycles if they share a word, else two."""
    core = Core(counters=1, entries=1, macs=256)
    together = 2 * comb(16, 2) / comb(32, 2)
    assert column_cycles(core, 32) == pytest.approx(2 + together, abs=0.02)


def test_a_long_reduction_hides_the_outliers():
    assert column_cycles(Core(macs=8, entries=2), 4096) == 32


def test_outliers_cost_rate_unless_many_are_multiplied_in_a_cycle():
    """The losses that docs/kllm.md has for Gaussian vectors; all 42 in turn at R = 1."""
    lost = [1 - 8 / column_cycles(Core(entries=entries), 4096) for entries in (1, 2, 4, 8, 42)]
    assert lost[0] == pytest.approx(1 - 8 / 42, abs=0.002)
    assert lost[1:] == pytest.approx([0.65, 0.41, 0.06, 0], abs=0.01)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_weights_are_the_published_models(name, parameters):
    """Published are the embedding and the norms' gains as well."""
    shape = MODELS[name]
    gains = (2 * shape.layers + 1) * shape.hidden
    assert shape.weights + shape.vocabulary * shape.hidden + gains == parameters


def test_a_token_is_the_sum_of_its_products():
    shape = MODELS["mistral-7b"]
    token = decode(shape, PLAIN, context=100, batch=2)
    # Of 16 lanes and 8 cycles; 14336 are four tiles, the last of half the length.
    layer = (4096 + 1024 + 1024 + 4096 + 14336 + 14336) // 16 * 8 + 4096 // 16 * 32
    assert token.layers == 2 * 32 * layer
    assert token.head == 2 * 32000 // 16 * 8
    # Four query heads share the keys: 7 sets of 16; the values: 8 sets of 16 columns.
    assert token.keys == 2 * 32 * 8 * 4 * 7 * 8
    assert token.values == 2 * 32 * 8 * 4 * 8 * 2
    assert token.softmax == 0 and token.cycles == token.linear + token.keys + token.values
    words = 2 * 32 * 8 * (7 + 8)
    assert token.cache_bytes == words * 4096 + 2 * 32 * 8 * 2 * (100 + 128)


def test_a_fast_core_waits_for_the_softmax():
    shape = MODELS["llama-2-7b"]
    token = decode(shape, dataclasses.replace(PLAIN, macs=1024, lanes=128), context=800)
    assert token.keys + token.values + token.softmax == 32 * 32 * 100
    assert token.softmax > 0


def test_a_mean_token_lies_between_its_contexts():
    shape = MODELS["llama-2-7b"]
    mean = mean_token(shape, PLAIN, 64)
    parts = [decode(shape, PLAIN, context) for context in (16, 32, 48, 64)]
    assert mean.keys == sum(part.keys for part in parts) / 4
    assert mean.layers == parts[0].layers


def test_a_slower_memory_never_speeds_up():
    shape = MODELS["llama-2-13b"]
    made = [
        decode(shape, Core(bandwidth=bandwidth), 1024).cycles
        for bandwidth in (inf, 2e12, 460e9, 256e9)
    ]
    assert made == sorted(made) and made[0] < made[-1]


def test_bytes_of_an_a100():
    shape = MODELS["llama-2-7b"]
    assert a100_bytes(shape, 0) == 2 * shape.weights
    assert a100_bytes(shape, 10, batch=3) - a100_bytes(shape, 0) == 3 * 10 * 2 * 32 * 4096 * 2


@pytest.mark.parametrize(("k", "pops"), [(16, 3), (256, 5)])
def test_the_search_makes_the_comparisons_of_its_pops_in_turn(k, pops):
    """Of one tree, its levels side by side: what is left of Orizuru's comparisons is in turn."""
    values = np.random.default_rng(0).normal(size=k)
    in_turn = (orizuru(values, pops).comparisons - orizuru(values, 0).comparisons) // 2
    assert search_cycles(k, pops) == k.bit_length() - 1 + in_turn


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lanes": 0}, "lanes must be at least 1, not 0"),
        ({"weight_bits": 9}, "weight_bits must be 1 to 8, not 9"),
        ({"share": 1.5}, "the share of outliers must be 0 to 1, not 1.5"),
        ({"bandwidth": float("nan")}, "bandwidth must be above 0, not nan"),
    ],
)
def test_cores_that_are_refused(change, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Core(**change)
