"""Parts of the accelerator: outlier split, index buffer, RMS factor, product table."""

import itertools

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.algorithms.kllm.kmeans import midpoints
from golden.algorithms.kllm.nonlinear import rms_norm
from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    dynamic_outliers,
    inlier_scale,
)
from golden.kllm.outlier_split import outlier_split
from golden.kllm.rms_factor import rms_factor
from hw.catalogue import find
from hw.kllm.codebook_replacement import CodebookReplacementParameters
from hw.kllm.index_buffer import IndexBufferParameters
from hw.kllm.outlier_split import OutlierSplitParameters
from hw.kllm.product_table import ProductTable, ProductTableParameters
from hw.kllm.rms_factor import RmsFactorParameters
from sim.drivers.run import load_testbench
from sim.testbenches.kllm.batches import random_batches
from sim.testbenches.kllm.index_buffer import build as build_index_buffer
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.kllm.outlier_split import build as build_outlier_split
from tests.support.kllm.compiled import Compiled

campaign = pytest.mark.campaign
CONFIGURATIONS = [
    ("outlier_split", OutlierSplitParameters(k=22, outliers=2, lanes=4)),
    ("outlier_split", OutlierSplitParameters(k=5, outliers=4, lanes=2)),
    ("index_buffer", IndexBufferParameters.preset("small")),
    pytest.param(
        "index_buffer",
        IndexBufferParameters(k=16, bits=3, lanes=2, segment=2, columns=9, vectors=4),
        marks=campaign,
    ),
    # These take longer to compile; the tests of every block run them as well.
    pytest.param("rms_factor", RmsFactorParameters.preset("small"), marks=campaign),
    pytest.param(
        "codebook_replacement", CodebookReplacementParameters.preset("small"), marks=campaign
    ),
]


@pytest.mark.parametrize(
    ("name", "parameters"), CONFIGURATIONS, ids=lambda v: v if isinstance(v, str) else v.slug()
)
def test_part(name, parameters, shipped_trace):
    block = find(f"kllm.{name}")
    compiled = Compiled(block, parameters)
    for data, vectors in ((None, 300), (shipped_trace, 24)):
        stimulus = load_testbench(block).stimulus(parameters, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


def test_all_vectors_of_a_small_index_buffer():
    """Every length, index, mask and number of columns, in batches of one to three vectors."""
    p = IndexBufferParameters(k=4, bits=1, lanes=1, segment=2, columns=2, vectors=3)
    rows = [
        (index, keep, length, columns)
        for length in range(1, p.k + 1)
        for index in itertools.product((0, 1), repeat=length)
        for keep in itertools.product((0, 1), repeat=length)
        for columns in range(p.columns + 1)
    ]
    rng = np.random.default_rng(1)
    rows = [rows[n] for n in rng.permutation(len(rows))] + [rows[-1]]
    assert len(rows) == 3 * (4 + 16 + 64 + 256) + 1
    index = np.array([row[0] + (0,) * (p.k - row[2]) for row in rows])
    keep = np.array([row[1] + (0,) * (p.k - row[2]) for row in rows], bool)
    lengths, columns = (np.array([row[n] for row in rows]) for n in (2, 3))
    compiled = Compiled(find("kllm.index_buffer"), p)
    alone = np.ones(len(rows), bool)
    compiled.check(build_index_buffer(p, index, keep, lengths, alone, columns, rng, []))
    ends = random_batches(p.vectors, len(rows), rng)
    stimulus = build_index_buffer(p, index, keep, lengths, ends, columns[ends], rng, [])
    compiled.check_all(stimulus)


def test_all_orders_of_a_small_outlier_split():
    """Every vector of up to four of these values, every mask: all orders, ties and ends.

    With no outliers, one at each end, and two.
    """
    p = OutlierSplitParameters(k=4, outliers=2, lanes=2)
    numbers = np.array([-2, -0.0, 1, 2, np.nan], np.float16)
    rows = [
        (values, keep, length)
        for length in range(1, p.k + 1)
        for values in itertools.product(numbers, repeat=length)
        for keep in itertools.product((False, True), repeat=length)
    ]
    rng = np.random.default_rng(1)
    rows = [rows[n] for n in rng.permutation(len(rows))]
    assert len(rows) == 10 + 100 + 1000 + 10000
    x = np.array([row[0] + (0,) * (p.k - row[2]) for row in rows], np.float16)
    keep = np.array([row[1] + (False,) * (p.k - row[2]) for row in rows])
    lengths = np.array([row[2] for row in rows])
    compiled = Compiled(find("kllm.outlier_split"), p)
    for wanted in range(p.outliers + 1):
        each = np.full(len(rows), wanted)
        compiled.check(build_outlier_split(p, x, keep, lengths, each, rng, []))
    mixed = rng.integers(0, p.outliers + 2, len(rows))
    compiled.check_all(build_outlier_split(p, x, keep, lengths, mixed, rng, []))


def test_outlier_split_is_the_algorithm_s(shipped_trace):
    """Real vectors: outliers and scale are those of golden.algorithms.kllm.quantize."""
    x = shipped_trace.x["layer3.attn"].astype(np.float16)
    _, outlier, scale = outlier_split(x, np.ones(x.shape, bool), 3)
    np.testing.assert_array_equal(outlier, dynamic_outliers(x, 3))
    np.testing.assert_array_equal(scale, inlier_scale(x, outlier))


def test_outlier_split_s_corners():
    x = np.zeros((4, 8), np.float16)
    x[1, 3] = np.nan
    x[2] = [5, -7, 3, 2, -1, 0, 1, -6]
    keep = np.ones(x.shape, bool)
    keep[3] = False
    pairs, outlier, scale = outlier_split(x, keep, 2)
    assert scale[0] == 1 and np.isnan(scale[1]) and scale[2] == 2 and scale[3] == 1
    assert np.flatnonzero(outlier[2]).tolist() == [0, 1, 2, 7]
    assert not pairs["present"][3].any() and not outlier[3].any()
    pairs, outlier, scale = outlier_split(x, keep, 0)
    assert scale[0] == 1 and np.isnan(scale[1]) and scale[2] == 7 and scale[3] == 1
    assert not outlier.any()
    for name, array in pairs.items():
        assert name == "invalid" or (array.shape == (4, 1) and not array.any()), name


def test_rms_factor_is_the_algorithm_s(shipped_trace):
    """Within a thousandth of 1 / RMS in float64 of the same indices and outliers."""
    worst = 0.0
    for layer in layers_of(shipped_trace, 576, 8, 4, 4, 3)[0]:
        x = layer.x
        pairs, outlier, scale = outlier_split(x, np.ones(x.shape, bool), 3)
        index = np.zeros(x.shape, np.uint8)
        for middle in midpoints(layer.codebook):
            index += x / scale[:, None].astype(np.float64) > middle
        constants = (np.float32(1 / 576), np.float32(1e-5))
        r = rms_factor(index, ~outlier, pairs, layer.tables.squares, scale, *constants)
        for token in range(len(x)):
            zero = np.float16(0)
            value = np.where(outlier[token], x[token], zero)
            arguments = (index[token], layer.codebook, scale[token], zero, outlier[token], value)
            a = QuantizedActivations(*arguments)
            exact = np.float64(rms_norm(a, 1e-5).scale) / np.float64(a.scale)
            worst = max(worst, abs(float(r[token]) / exact - 1))
    print(f"at most {worst:.2e} off")
    assert 1e-4 < worst < 1.5e-3


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 12])
@pytest.mark.parametrize("equal", [False, True])
def test_every_element_of_a_short_vector_counts_once(length, equal):
    """Also where the same elements are among the largest and the smallest, as of equal values."""
    x = np.full((1, 12), 3, np.float16)
    if not equal:
        x[0] = [5, -7, 3, 2, -1, 0.5, 1, -6, 4, 8, -2, 9]
    keep = np.arange(12)[None] < length
    pairs, outlier, scale = outlier_split(x, keep, 3)
    counted = outlier.sum() + (keep & ~outlier).sum()
    distinct = (
        pairs["present"].sum() * 2 - pairs["max_repeated"].sum() - pairs["min_repeated"].sum()
    )
    assert counted == length and distinct == outlier.sum()
    # Centroids equal to the inliers, so that rounding is the only error.
    index = np.zeros(x.shape, np.uint8)
    inliers = x[keep & ~outlier]
    index[keep & ~outlier] = np.arange(len(inliers))
    squares = np.zeros(16, np.float16)
    squares[: len(inliers)] = np.square(inliers / scale[0])
    constants = (np.float32(1 / length), np.float32(0))
    r = rms_factor(index, keep & ~outlier, pairs, squares, scale, *constants)
    exact = 1 / np.sqrt(np.square(x[keep].astype(np.float64)).mean())
    assert abs(float(r[0]) / exact - 1) < 2**-9


@pytest.mark.parametrize(
    "parameters",
    [
        ProductTableParameters.preset("small"),
        ProductTableParameters(2, 1, macs=8, columns=3),
        ProductTableParameters(2, 2, macs=4, columns=3),
    ],
    ids=lambda p: p.slug(),
)
def test_product_table(parameters):
    """Both banks, written in any order; any groups read for any number of columns under stalls."""
    p = parameters
    rng = np.random.default_rng(1)
    dut = ProductTable(p)
    tables = rng.integers(0, 1 << 16, (2, p.rows, 1 << p.weight_bits))
    seen = []
    every = [(0, 2, p.groups), (1, 1, p.groups), (0, p.columns, p.groups)]
    fewer = [(n % 2, 2, n) for n in (*range(1, p.groups + 1), 1)]
    replays = [*every, *fewer, (1, p.columns, -(-p.groups // 2)), (1, 1, 1)]

    async def testbench(ctx):
        async def write(bank):
            for row in rng.permutation(p.rows):
                ctx.set(dut.write.payload.bank, bank)
                ctx.set(dut.write.payload.row, int(row))
                for column, value in enumerate(tables[bank, row]):
                    ctx.set(dut.write.payload.values[column], int(value))
                ctx.set(dut.write.valid, 1)
                await ctx.tick()
            ctx.set(dut.write.valid, 0)

        await write(0)
        await write(1)
        for bank, columns, groups in replays:
            ctx.set(dut.replay.payload.bank, bank)
            ctx.set(dut.replay.payload.columns, columns)
            ctx.set(dut.replay.payload.groups, groups)
            ctx.set(dut.replay.valid, 1)
            got = []
            taken = False
            for _ in range(200):
                ctx.set(dut.o.ready, int(rng.integers(0, 2)))
                if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                    got.append([ctx.get(value) for value in dut.o.payload])
                taken |= bool(ctx.get(dut.replay.valid) and ctx.get(dut.replay.ready))
                await ctx.tick()
                ctx.set(dut.replay.valid, int(not taken))
            lines = tables[bank].reshape(-1, p.macs)[:groups]
            assert got == np.tile(lines, (columns, 1)).tolist()
            seen.append(len(got))

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert seen == [columns * groups for _, columns, groups in replays]
