"""The model of LAD's tile, against the algorithm in float64 and against dense attention."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.lad import EIGHT_BOUNDS, PAPER_BOUNDS, LocalityAwareAttention
from golden.algorithms.lad.caches import definition
from golden.lad.centres import COLLINEAR
from golden.lad.codes import decode
from golden.lad.lad_tile import LadTile, TileSizes
from golden.lad.md import discrepancies
from golden.lad.timing.tile import TileCycles, TileTiming
from hw.lad.tile_parameters import LadTileParameters
from sim.testbenches.lad.jobs import timing_of
from sim.testbenches.lad.lad_tile import random_tokens

SMALL = TileSizes(
    d=8,
    positions=60,
    bounds=PAPER_BOUNDS,
    slack=0,
    identification="codes",
    code_bits=6,
    near=-3.0,
    window=4,
    heads=2,
    kv_heads=1,
    counter_bits=4,
    updates=4,
)
LONG = dataclasses.replace(
    SMALL, positions=320, heads=4, kv_heads=2, identification="centres", updates=320
)
"""For comparison with the algorithm, in which any number of positions may change their mode."""


def sequence(size: TileSizes, n: int, seed: int, *, directions: int = 6):
    """q float64[n, heads, d], k and v [n, kv heads, d] that are FP16 numbers.

    Queries drift slowly, so that most positions keep their mode. Every second key is nearly
    collinear with one of a few directions, so that it joins a centre.
    """
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(scale=0.05, size=(n, size.heads, size.d)), axis=0)
    q = drift + rng.normal(size=(size.heads, size.d)) + rng.normal(scale=0.1, size=drift.shape)
    k, v = rng.normal(size=(2, n, size.kv_heads, size.d))
    common = rng.normal(size=(directions, size.d))[rng.integers(0, directions, k.shape[:2])]
    common *= rng.uniform(-1.5, 1.5, k.shape[:2])[..., None]
    collinear = (np.arange(n) % 2 == 0)[:, None, None]
    k = np.where(collinear, common * (1 + rng.normal(scale=0.05, size=k.shape)), k)
    return tuple(x.astype(np.float16).astype(np.float64) for x in (q, k, v))


def random_memory(size: TileSizes, seed: int) -> np.ndarray:
    shape = size.memory_rows, size.d
    return np.random.default_rng(seed).integers(0, 1 << 16, shape).astype(np.uint16)


def run(tile: LadTile, q, k, v):
    """Results of every token and head: ``[token][head]``."""
    half = [x.astype(np.float16) for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    return [
        tile.step(t + 1, q.shape[1], group, t == 0, *(x[t] for x in half)) for t in range(len(q))
    ]


@pytest.mark.parametrize(
    "bounds, near, counter_bits, window",
    [(PAPER_BOUNDS, -1.0, 4, 4), (EIGHT_BOUNDS, -3.0, 11, 16)],
)
def test_without_rounding_it_is_the_algorithm(bounds, near, counter_bits, window):
    """Active positions, modes, counters, centres, |U| and outputs of each of 300 steps."""
    size = dataclasses.replace(
        LONG, bounds=bounds, near=near, counter_bits=counter_bits, window=window
    )
    lad = LocalityAwareAttention(
        bounds=bounds,
        window=window,
        identification="centres",
        collinear=float(COLLINEAR),
        near=near,
        counter_bits=counter_bits,
        scale=1.0,
    )
    tile = LadTile(size, arithmetic="float64")
    q, k, v = sequence(size, 300, seed=1)
    joined = inactive = large = above_m = 0
    for t in range(len(q)):
        n, updates, above = t + 1, lad.statistics.updates, lad.statistics.above
        expected = lad.step(q[t], k[t], v[t])
        found = tile.step(n, size.heads, 2, t == 0, q[t], k[t], v[t])
        assert np.array_equal([step.active for step in found], lad.active)
        for head, step in enumerate(found):
            mode, count = tile.modes(head, n)
            assert np.array_equal(mode, lad.modes.mode[head])
            kept = lad.modes.counters[head, np.arange(n), mode]
            assert np.array_equal(count, kept)
            assert count.max() < 2**counter_bits - 1  # halved before they are full
            assert not step.invalid
            np.testing.assert_allclose(step.m, lad.m[head], rtol=1e-12)
            np.testing.assert_allclose(step.o, expected[head], rtol=1e-9, atol=1e-9)
        assert sum(step.report["updated"] for step in found) == lad.statistics.updates - updates
        assert sum(step.report["above"] for step in found) == lad.statistics.above - above
        centres = lad.identification.centres
        for kv_head in range(size.kv_heads):
            cid = tile.rows("cid", kv_head).reshape(-1)[:n]
            assert np.array_equal(cid, centres.cid[kv_head])
            dnorm = tile.numbers("dnorm", kv_head).reshape(-1)[:n]
            np.testing.assert_allclose(dnorm, centres.dnorm[kv_head], rtol=1e-12)
            joined += cid[-1] != t
        inactive += sum(n - step.report["active"] for step in found)
        large += sum(step.report["large"] for step in found)
        above_m += sum(step.report["above"] for step in found)
    assert min(joined, inactive, large) > 50 and above_m > 0


def dense(q, k, v):
    """Softmax attention of every token: float64[n, heads, d]."""
    heads = q.shape[1]
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("thd,shd->hts", q, k)
    scores[:, ~np.tri(len(q), dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), v)


def relative_error(results, q, k, v) -> float:
    o = np.array([[step.o for step in token] for token in results], np.float64)
    expected = dense(q, k, v)
    return float(np.linalg.norm(o - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("identification", ["codes", "centres"])
@pytest.mark.parametrize("slack", [0, 13])
def test_error_of_the_output(identification, slack):
    """200 tokens with eight intervals are 1.4 to 1.6 % off dense attention, in the mean square."""
    size = dataclasses.replace(
        LONG, d=16, bounds=EIGHT_BOUNDS, identification=identification, slack=slack, updates=16
    )
    operands = sequence(size, 200, seed=2)
    results = run(LadTile(size), *operands)
    assert not any(step.invalid for token in results for step in token)
    assert relative_error(results, *operands) < 0.02


def test_caches_are_the_sum_of_their_terms():
    """Terms are removed as they were added: only the FP32 sums' roundings remain."""
    size = dataclasses.replace(LONG, identification="codes", slack=13, updates=4)
    q, k, v = sequence(size, 300, seed=3)
    tile = LadTile(size)
    run(tile, q, k, v)
    tables = size.tables
    for head in range(size.heads):
        mode, _ = tile.modes(head, len(q))
        keys, values = k[:, head // 2], v[:, head // 2]
        a, b = (x[mode].astype(np.float64)[None] for x in (tables.a, tables.b))
        expected = definition(a, b, keys[None], values[None])
        # Two products of relative error 2^-11 each; subnormal ones of absolute error 2^-25.
        bound = definition(a, np.abs(b), np.abs(keys)[None], np.abs(values)[None])
        for name, value in vars(tile.caches(head)).items():
            limit = bound[name][0] * 2.0**-10 + len(q) * 2.0**-23
            assert (np.abs(value - expected[name][0]) < limit).all(), name


def test_codes_in_memory():
    """A key's code times its unit is within half a unit of the key, whatever row it lies in."""
    size = dataclasses.replace(SMALL, code_bits=5)
    tile = LadTile(size, random_memory(size, 4))
    q, k, v = sequence(size, 60, seed=4)
    for n in range(1, 61):
        tile.step(n, 2, 2, n == 1, *(x[n - 1].astype(np.float16) for x in (q, k, v)))
        codes = decode(tile.rows("code", 0), n, 5)
        units = tile.numbers("unit", 0).reshape(-1)[:n].astype(np.float64)
        assert (np.abs(codes * units[:, None] - k[:n, 0]) <= 0.52 * units[:, None]).all()
        # Later positions' bits of the last rows are zero.
        bit = n * 5
        assert not (tile.rows("code", 0)[bit // 16] >> bit % 16).any() or bit % 16 == 0
        assert not tile.rows("unit", 0)[(n - 1) // 8, (n - 1) % 8 + 1 :].any()


@pytest.mark.parametrize("identification", ["codes", "centres"])
def test_a_sequence_does_not_depend_on_the_memory_before(identification):
    """After random contents, or after another sequence: the same outputs, reports and caches."""
    size = dataclasses.replace(SMALL, identification=identification, slack=13)
    operands, others = sequence(size, 50, seed=5), sequence(size, 60, seed=6)
    used = LadTile(size, random_memory(size, 7))
    run(used, *others)
    expected, found = (run(tile, *operands) for tile in (LadTile(size), used))
    fresh = LadTile(size)
    run(fresh, *operands)
    for token, other in zip(expected, found, strict=True):
        for a, b in zip(token, other, strict=True):
            assert np.array_equal(a.o, b.o) and a.report == b.report and not b.invalid
    for head in range(size.heads):
        for name, value in vars(fresh.caches(head)).items():
            assert np.array_equal(value, getattr(used.caches(head), name))


def test_only_a_cleared_sequence_is_valid():
    tile = LadTile(SMALL)
    q, k, v = (x[0].astype(np.float16) for x in sequence(SMALL, 1, seed=8))
    assert all(step.invalid for step in tile.step(1, 2, 2, False, q, k, v))
    assert not any(step.invalid for step in tile.step(5, 2, 2, True, q, k, v))
    assert not any(step.invalid for step in tile.step(2, 2, 2, False, q, k, v))


def test_a_word_that_a_missed_step_left_counts_as_wide_as_a_counter():
    """The tile cuts what was in the memory to its counters' width."""
    memory = random_memory(SMALL, 14)
    tile = LadTile(SMALL, memory)
    tile.rows("g", 0)[:] |= 0x7FF
    q, k, v = (x.astype(np.float16) for x in sequence(SMALL, 2, seed=14))
    for token, n in ((0, 1), (1, 10)):  # the ninth position begins a row, and has no word
        tile.step(n, 2, 2, n == 1, q[token], k[token], v[token])
    assert (tile.modes(0, 10)[1] < 1 << SMALL.counter_bits).all()


def test_full_counters_that_a_missed_step_left_wrap_around():
    """As the tile's adders do; no step leaves a counter full."""
    counters = np.full((1, len(SMALL.tables)), 15)
    made = discrepancies(
        *(np.float16([-7]), np.float16(0), np.array([2]), np.array([4]), np.array([15]), counters),
        n=20,
        window=4,
        updates=4,
        counter_bits=4,
        tables=SMALL.tables,
    )
    assert made.interval == 1 and not made.changed
    assert made.counters.tolist() == [[7, 0, 7, 7, 7]]


def test_a_job_that_does_not_fit_is_refused():
    """It has no results, and a tile that had it is as one that had not; n is not used at first."""
    tile, other = (LadTile(dataclasses.replace(SMALL, prefetch=8)) for _ in range(2))
    q, k, v = (x[0].astype(np.float16) for x in sequence(SMALL, 1, seed=9))
    steps = ((9, 1, 3, True), (2, 2, 2, False))
    broken = ((0, 1, 1), (61, 1, 1), (2, 0, 1), (2, 3, 3), (2, 1, 0), (2, 2, 1))  # one kv head
    for step in steps:
        for n, heads, group in broken:
            assert tile.step(n, heads, group, n == 2, q, k, v) == []
            assert tile.prefetch(n, heads, group, 4) == 0
        for a, b in zip(tile.step(*step, q, k, v), other.step(*step, q, k, v), strict=True):
            assert np.array_equal(a.o, b.o) and a.report == b.report and a.invalid == b.invalid
        assert a.report["n"] == 1 + (not step[3])
        assert tile.prefetch(2, 2, 2, 4) == other.prefetch(2, 2, 2, 4) > 0
    np.testing.assert_array_equal(tile.memory, other.memory)


def test_the_first_token_outputs_its_value():
    tile = LadTile(SMALL)
    q, k, v = (x[0].astype(np.float16) for x in sequence(SMALL, 1, seed=10))
    for step in tile.step(1, 2, 2, True, q, k, v):
        np.testing.assert_allclose(step.o, v[0], rtol=2**-9)
        # Rows: the window's key, K and V of the active position, counters. No caches after restart.
        zeros = dict.fromkeys(("centres", "large", "updated", "above"), 0)
        expected = {"n": 1, "active": 1, "fresh": 1, "rows": 1 + 2 + 1} | zeros
        assert expected.items() <= step.report.items()
    rows = tile.step(2, 2, 2, False, q, k, v)[0].report["rows"]
    assert rows == 1 + 2 + 2 * 2 + 1 + (2 * SMALL.d + 7)  # and a row of G
    assert type(rows) is int


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("operand", range(3))
def test_values_that_are_not_finite_make_the_head_invalid(operand, bad):
    tile = LadTile(SMALL)
    operands = [x.astype(np.float16) for x in sequence(SMALL, 9, seed=11)]
    operands[operand][8, 0, 3] = bad
    results = run(tile, *operands)
    assert not any(step.invalid for token in results[:8] for step in token)
    both = operand > 0  # heads share K and V
    assert [step.invalid for step in results[8]] == [True, both]


def test_changes_of_modes_are_limited():
    """At most updates - 1 old positions and the one that leaves the window change their mode.

    The output does not suffer: the correction of an active position is exact in any mode.
    """
    errors = {}
    for updates in (2, 64):
        size = dataclasses.replace(SMALL, bounds=EIGHT_BOUNDS, counter_bits=11, updates=updates)
        operands = sequence(size, 60, seed=12)
        results = run(LadTile(size), *operands)
        most = max(step.report["updated"] for token in results for step in token)
        assert most <= updates and (updates == 2 or most > 2)
        errors[updates] = relative_error(results, *operands)
    assert max(errors.values()) < 0.03


def test_slack_leaves_fewer_positions_active():
    counts = []
    for slack in (0, 13, 128):
        size = dataclasses.replace(SMALL, bounds=EIGHT_BOUNDS, slack=slack)
        results = run(LadTile(size), *sequence(size, 60, seed=13))
        counts.append(sum(step.report["active"] for token in results for step in token))
    assert counts[0] > counts[1] > counts[2]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="arithmetic must be fp16 or float64, not fp8"):
        LadTile(SMALL, arithmetic="fp8")
    with pytest.raises(ValueError, match=r"memory must be uint16\[\d+, 8\], not uint16\[3, 8\]"):
        LadTile(SMALL, np.zeros((3, 8), np.uint16))


@pytest.mark.parametrize("identification", ["codes", "centres"])
def test_tables_of_the_memory_do_not_overlap(identification):
    size = dataclasses.replace(LONG, identification=identification)
    parts = {"k": 2, "v": 2, "code": 2, "unit": 2, "norm": 2, "dnorm": 2, "cid": 2}
    tile, end = LadTile(size), 0
    for table in size.regions:
        for part in range(parts.get(table, size.heads)):
            rows = tile.rows(table, part)
            assert not rows.any() and len(rows) & len(rows) - 1 == 0
            rows[...] = 1
            end += len(rows)
    assert end == len(tile.memory) and tile.memory.all()


@pytest.mark.parametrize(
    ("preset", "identification"), [("small", "codes"), ("small", "centres"), ("default", "codes")]
)
def test_cycles_that_are_left_out_change_nothing(preset, identification, monkeypatch):
    """The walk leaves out cycles in which only rows of the caches come, or time goes by."""
    parameters = dataclasses.replace(
        LadTileParameters.preset(preset), identification=identification
    )
    work = random_tokens(parameters, 40, np.random.default_rng(1)).work
    clock, skip, skipped = TileCycles(timing_of(parameters)), TileTiming.skip, []

    def noted(self, cycles):
        skipped.append(cycles)
        skip(self, cycles)

    monkeypatch.setattr(TileTiming, "skip", noted)
    leaving_out = [clock.run([job]) for job in work]
    monkeypatch.setattr(TileTiming, "still_for", lambda self, grant, reader: 0)
    clock = TileCycles(timing_of(parameters))
    assert [clock.run([job]) for job in work] == leaving_out
    assert sum(skipped) > 100
