"""The tile: sequences of tokens, what it reads and writes, resets, latency, error of its output."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from golden.algorithms.lad.caches import definition
from golden.lad.lad_tile import LadTile
from hw.catalogue import find
from hw.lad.tile_parameters import LadTileParameters
from sim.core.memory import FASTEST, MemoryTiming
from sim.drivers.run import run
from sim.testbenches.decode import layers_of
from sim.testbenches.lad.jobs import random_memory, sizes_of
from sim.testbenches.lad.lad_tile import Tokens
from tests.support.campaign import suite_takes
from tests.support.sim.checked import Checked

BLOCK = find("lad.lad_tile")
SMALL = LadTileParameters.preset("small")
VARIANTS = {
    "small": SMALL,
    "centres": dataclasses.replace(SMALL, identification="centres"),
    "slack 0": dataclasses.replace(SMALL, slack=0),
    "centres, slack 0": dataclasses.replace(SMALL, identification="centres", slack=0),
    "neither prefetch nor weights": dataclasses.replace(SMALL, prefetch=0, weights=0),
    "kv heads": dataclasses.replace(SMALL, heads=3, kv_heads=2),
    "centres, kv heads": dataclasses.replace(SMALL, identification="centres", heads=3, kv_heads=2),
}
PIPELINES = {
    "d": 16,
    "multiply_stages": 2,
    "add_stages": 3,
    "depth": 4,
    "code_bits": 5,
    "window": 7,
    "counter_bits": 3,
}
VARIANTS |= {
    "other pipelines": dataclasses.replace(SMALL, prefetch=5, **PIPELINES),
    "centres, other pipelines": dataclasses.replace(
        SMALL, identification="centres", prefetch=0, heads=3, kv_heads=2, **PIPELINES
    ),
}
SFM = {"vector_lanes": 3, "rotary_pairs": 4, "normed": 33}
VARIANTS |= {
    "special functions": dataclasses.replace(SMALL, **SFM),
    "norms alone": dataclasses.replace(SMALL, normed=16),
}
FAR = MemoryTiming((1, 100), reorder=True, seed=3)


def compiled(parameters: LadTileParameters) -> Checked:
    """A stimulus begins with a reset during random traffic."""
    return Checked(BLOCK, parameters, reset=False)


@pytest.fixture(scope="module")
def tiles():
    made: dict[str, Checked] = {}

    def tile_of(name: str) -> Checked:
        if name not in made:
            made[name] = compiled(VARIANTS[name])
        return made[name]

    return tile_of


def ceiling(a: int, b: int) -> int:
    return -(-a // b)


class Counted(Tokens):
    """Jobs, and the rows that they read and write, by region."""

    def __init__(self, parameters: LadTileParameters, memory: np.ndarray | None = None):
        super().__init__(parameters, memory)
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def add(self, q, k, v, n, *, restart=False, heads=None, group=None):
        p = self.parameters
        found = super().add(q, k, v, n, restart=restart, heads=heads, group=group)
        if not found:
            return found
        kv_heads = len(k)
        offset, old, tables = (n - 1) * p.code_bits, max(n - p.window, 0), ceiling(n - 1, p.d)
        self.written["k and v"] += 2 * kv_heads
        if p.identification == "codes":
            # A new code is merged into the rows of those before it.
            self.read["code"] += kv_heads * (offset % 16 != 0)
            self.read["unit"] += kv_heads * ((n - 1) % p.d != 0)
            self.written["code"] += kv_heads * ceiling(offset % 16 + p.code_bits, 16)
            self.written["unit"] += kv_heads
        else:
            # Norms, factors and centres are in rows that its first query head reads.
            self.written["centre"] += 3 * kv_heads
        for step in found:
            report = step.report
            self.read["reported"] += report["rows"]
            estimates = 3 * tables + report["centres"]
            if p.identification == "codes":
                estimates = ceiling(old * p.code_bits, 16) + ceiling(old, p.d)
            exact = report["large"] + min(n, p.window)
            rows_of_j = 2 * (report["active"] - report["hits"])
            caches = 0 if restart else p.cache_rows
            # Rows of counters that are read are written.
            counters = report["rows"] - tables - estimates - exact - rows_of_j - caches
            self.written["counters"] += counters
            self.written["g"] += ceiling(n, p.d)
            changes = step.discrepancies.changed.any()
            self.written["caches"] += p.cache_rows if changes or restart else 0
        return found

    def prefetch(self, n, heads, group, most):
        p, left = self.parameters, self.parameters.prefetch
        for head in range(heads if self.model.fits(n, heads, group) else 0):
            words = self.model.rows("g", head).reshape(-1)[:n]
            active = np.flatnonzero(words >> 15)[: min(most, left)]
            full = len(active) == min(most, left)
            last = active[-1] // p.d + 1 if len(active) else 0
            # Rows of G up to the last position that there is room for.
            self.read["prefetch"] += 2 * len(active) + (last if full else ceiling(n, p.d))
            left -= len(active)
        super().prefetch(n, heads, group, most)

    def multiply(self, vectors, row, rows):
        self.read["weights"] += rows * vectors.shape[1]
        return super().multiply(vectors, row, rows)


def sequences(p: LadTileParameters, seed: int, lengths: tuple[int, ...]) -> Counted:
    """Sequences of drifting queries; with prefetch jobs and linear layers if the tile has them."""
    rng = np.random.default_rng(seed)
    tokens = Counted(p, random_memory(p, rng))
    for length in lengths:
        drift = rng.standard_normal((p.heads, p.d))
        for t in range(length):
            q = (drift + 0.3 * rng.standard_normal(drift.shape)).astype(np.float16)
            k, v = rng.standard_normal((2, p.kv_heads, p.d)).astype(np.float16)
            tokens.add(q, k, v, t + 1, restart=t == 0)
            if p.prefetch and t % 3 == 1:
                tokens.prefetch(t + 1, p.heads, -(-p.heads // p.kv_heads), 1 + t % p.prefetch)
            if p.weights and t % 7 == 3:
                vectors = rng.standard_normal((2, 3, p.d)).astype(np.float16)
                tokens.multiply(vectors, int(rng.integers(4)), int(rng.integers(1, 11)))
    return tokens


NAMES = suite_takes(("small",), VARIANTS)


@pytest.mark.parametrize("name", NAMES)
def test_under_every_stall(name):
    """Random and real sequences; memories answer late and in any order."""
    vectors = 10 if name == "small" else 30
    for memory in (None, FAR):
        options = {"driver": "harness", "vectors": vectors, "memory": memory}
        result = run(BLOCK, "small", VARIANTS[name], **options)
        assert result.passed, result.failures or result.first_mismatch


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_and_written(tiles, name):
    """What the memory counts is what is reported, and rows that no head reports."""
    tile = tiles(name)
    p = tile.parameters
    tokens = sequences(p, 1, (20, 2, 25))
    for stall, timing in (("none", FASTEST), ("random", FAR)):
        use = tile.run(tokens.stimulus([]), stall, timing).memories["memory"]
        assert use.rows_read == tokens.read.total()
        assert use.rows_written == tokens.written.total()
    print(dict(tokens.read), dict(tokens.written))
    hits = sum(step.report["hits"] for found in tokens.results for step in found)
    assert bool(hits) == bool(p.prefetch)


@pytest.mark.parametrize("name", NAMES)
def test_reset_in_the_middle_of_a_step(tiles, name):
    """A new sequence begins on the memory that a reset left, with requests in flight.

    A request for a row that its memory lacks ends the first run at once: one of the seventh token's
    second head, the first that has the caches of that head.
    """
    tile = tiles(name)
    p, rng = tile.parameters, np.random.default_rng(2)
    first = Tokens(p)
    for t, heads in enumerate([1] * 6 + [2] * 2):
        q = rng.standard_normal((heads, p.d)).astype(np.float16)
        k, v = rng.standard_normal((2, 1, p.d)).astype(np.float16)
        first.add(q, k, v, t + 1, restart=t == 0)
    whole = first.stimulus([])
    memory = whole.memories["memory"]
    for row in (1, p.cache_rows - 1):
        end = p.regions["cache"].address_of(1, row)
        short = dataclasses.replace(memory, contents=memory.contents[:end], after=None)
        cut = dataclasses.replace(whole, memories={"memory": short})
        outcome = tile.simulate(cut, "random", FAR)
        assert outcome.failure is not None and f"there are {end} rows" in outcome.failure
        assert 6 <= len(outcome.outputs["o"]) <= 7
        left = np.concatenate([outcome.memories["memory"].contents, memory.contents[end:]])
        tokens = Counted(p, left.view(np.uint16))
        for t in range(8):
            q = rng.standard_normal((p.heads, p.d)).astype(np.float16)
            k, v = rng.standard_normal((2, p.kv_heads, p.d)).astype(np.float16)
            tokens.add(q, k, v, t + 1, restart=t == 0)
        tile.run(tokens.stimulus([]), "none")


def test_caches_of_integers_are_exact(tiles):
    """After each step they are the sum of the terms of all positions older than the window.

    With elements of K and V of -1, 0 and 1, all products and, of up to six terms, all sums are
    exact. The modes are those that the RTL left in memory, the sums are made anew.
    """
    tile = tiles("small")
    p = tile.parameters
    changed = set()
    for seed, n in enumerate((5, 6, 7, 8, 9, 10) * 4):
        rng = np.random.default_rng(seed)
        tokens = Tokens(p)
        k, v = rng.integers(-1, 2, (2, n, p.kv_heads, p.d)).astype(np.float16)
        q = rng.normal(scale=3, size=(n, p.heads, p.d)).astype(np.float16)
        for t in range(n):
            tokens.add(q[t], k[t], v[t], t + 1, restart=t == 0)
        outcome = tile.run(tokens.stimulus([]), "none")
        left = LadTile(sizes_of(p), outcome.memories["memory"].contents.view(np.uint16))
        for head in range(p.heads):
            changed |= set(left.modes(head, n)[0].tolist())
            found = vars(left.caches(head))
            for name, expected in cache_sums(left, head, n).items():
                np.testing.assert_array_equal(found[name], expected)
    assert changed == set(range(p.intervals)), "every mode has terms"


def test_heads_are_invalid_before_the_first_clear(tiles):
    tile = tiles("small")
    p, rng = tile.parameters, np.random.default_rng(4)
    tokens = Tokens(p, random_memory(p, rng))
    for n, restart in ((1, False), (2, False), (3, False), (3, True), (2, False)):
        q = rng.standard_normal((p.heads, p.d)).astype(np.float16)
        k, v = rng.standard_normal((2, p.kv_heads, p.d)).astype(np.float16)
        tokens.add(q, k, v, n, restart=restart)
    invalid = [[step.invalid for step in found] for found in tokens.results]
    assert invalid == [[True] * p.heads] * 3 + [[False] * p.heads] * 2
    tile.run(tokens.stimulus([]))


def test_jobs_that_do_not_fit_are_refused(tiles):
    """Each rule broken alone, after rows were loaded ahead: nothing read, written or forgotten."""
    tile = tiles("small")
    p, rng = tile.parameters, np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, p.d)).astype(np.float16) for n in (2, 1, 1))
    uses = []
    for refused in (False, True):
        tokens = sequences(p, 6, (20,))
        tokens.prefetch(20, p.heads, p.heads, p.prefetch)
        if refused:
            steps = ((0, 1, 1), (p.positions + 1, 1, 1), (21, 0, 1), (21, 3, 3), (21, 1, 0))
            for n, heads, group in (*steps, (21, p.kv_heads + 1, 1)):
                tokens.add(q, k, v, n, heads=heads, group=group, restart=n == 21)
                tokens.prefetch(n, heads, group, 3)
            layer = {"heads": 1, "pieces": 2, "row": 0, "rows": p.weights // 2}
            for broken in ({"heads": 0}, {"heads": 3}, {"pieces": 17}, {"rows": 0}, {"row": 1}):
                tokens.refuse_layer(**(layer | broken))
        assert any(step.report["hits"] for step in tokens.add(q, k, v, 21))
        use = tile.run(tokens.stimulus([]), "random", FAR).memories["memory"]
        uses.append((use.rows_read, use.rows_written))
    assert uses[0] == uses[1]


def first_output(p: LadTileParameters, tile: Checked) -> int:
    """Cycle of the first token's output."""
    tokens = Tokens(p)
    tokens.add(*np.ones((3, 1, p.d), np.float16), 1, restart=True)
    return int(tile.run(tokens.stimulus([])).cycles_of["o"][0])


def test_latency(tiles):
    assert first_output(SMALL, tiles("small")) == SMALL.latency


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    [
        {"identification": "centres"},
        {"d": 16, "multiply_stages": 2, "add_stages": 3},
        {"d": 32, "prefetch": 0, "weights": 0},
    ],
    ids=str,
)
def test_latency_of_other_sizes(settings):
    p = dataclasses.replace(SMALL, **settings)
    assert first_output(p, compiled(p)) == p.latency


@pytest.mark.campaign
@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
@pytest.mark.parametrize("identification", ["codes", "centres"])
def test_many_tokens(identification, simulator):
    """400 jobs, half of them real, in both simulators; stalls in Verilator only."""
    p = dataclasses.replace(SMALL, identification=identification)
    stall = "none" if simulator == "icarus" else None
    result = run(BLOCK, "small", p, simulator=simulator, vectors=200, seed=5, stall=stall)
    assert result.passed, result.failures or result.first_mismatch


@pytest.fixture(scope="module")
def default_tile():
    """The default preset's arithmetic and layout for one kv head and its three query heads."""
    return compiled(dataclasses.replace(LadTileParameters(), heads=3, kv_heads=1))


@pytest.mark.campaign
@pytest.mark.parametrize("layer", range(3))
def test_real_layers(default_tile, shipped_trace, layer):
    """256 tokens by the model; the RTL joins it three times, on the model's memory.

    Eight intervals are 1.1 to 1.5 % off dense attention, the caches 3e-4 off their definition.
    """
    p = default_tile.parameters
    q, k, v, _ = layers_of(p, shipped_trace)
    q, k, v = (np.moveaxis(x[layer], 0, 1) for x in (q, k, v))
    count = min(256, len(q))
    model, outputs = LadTile(sizes_of(p)), []
    for t in range(count):
        if t in (0, 120, count - 4):
            joined = Tokens(p, model.memory)
            for number in range(t, t + 4):
                step = joined.add(q[number], k[number], v[number], number + 1, restart=number == 0)
                # After a reset, heads are invalid up to the first restart; nothing else differs.
                assert all(one.invalid == (t > 0) for one in step)
            default_tile.run(joined.stimulus([]), "random", FAR)
        found = model.step(t + 1, p.heads, p.heads, t == 0, q[t], k[t], v[t])
        outputs.append([step.o for step in found])
    error = output_error(np.array(outputs, np.float64), q[:count], k[:count], v[:count])
    drift = max(cache_error(model, head, count) for head in range(p.heads))
    print(f"layer {layer}: {count} tokens, error of o {error:.4%}, of the caches {drift:.2e}")
    assert error < 0.016
    assert drift < 1e-3


def output_error(o: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> float:
    """Relative to dense attention, in the mean square; arrays [token, head, d]."""
    keys, values = (x[:, 0].astype(np.float64) for x in (k, v))
    scores = np.einsum("thd,sd->hts", q.astype(np.float64), keys)
    scores[:, ~np.tri(len(q), dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = np.einsum("hts,sd->thd", weights / weights.sum(axis=-1, keepdims=True), values)
    return float(np.linalg.norm(o - expected) / np.linalg.norm(expected))


def cache_sums(model: LadTile, head: int, n: int) -> dict[str, np.ndarray]:
    """A to F by their definition, in float64, from the modes and rows in memory."""
    mode, _ = model.modes(head, n)
    tables = model.sizes.tables
    a, b = (x[mode].astype(np.float64)[None] for x in (tables.a, tables.b))
    keys, values = (model.numbers(name, 0)[:n].astype(np.float64)[None] for name in ("k", "v"))
    return {name: value[0] for name, value in definition(a, b, keys, values).items()}


def cache_error(model: LadTile, head: int, n: int) -> float:
    """Of A to F against their definition, relative to the largest element."""
    expected, found = cache_sums(model, head, n), vars(model.caches(head))
    return max(
        float(np.abs(found[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
    )
