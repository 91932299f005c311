"""Tiles on one memory port or one each: sequences, stalls, memories, and how heads divide."""

import dataclasses

import numpy as np
import pytest

from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import LadTile
from hw.catalogue import find
from hw.lad.lad_system import LadSystemParameters
from hw.parameters import ParameterError
from sim.core import payload
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.drivers.run import run
from sim.testbenches.lad.jobs import random_memory, sizes_of
from sim.testbenches.lad.lad_system import Jobs, random_jobs, testbench
from tests.support.sim.checked import Checked

BLOCK = find("lad.lad_system")
SMALL = LadSystemParameters.preset("small")
RNG = np.random.default_rng
ANY = MemoryTiming((1, 99), reorder=True, seed=3)
SLOW = MemoryTiming((1, 20), interval=3, reorder=True, seed=4)
TIMINGS = (FASTEST, MemoryTiming((50, 50)), ANY, SLOW)


class System(Checked):
    """The compiled tiles."""

    def heads(self, outcome) -> list[int]:
        """Numbers of the heads in the order of their outputs."""
        return payload.unpack(self.design.outputs["o"], outcome.outputs["o"])["head"].tolist()


@pytest.fixture(scope="module")
def small():
    return System(BLOCK, SMALL)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_any_stalls_and_any_memory(small, shipped_trace, seed):
    for data, jobs in ((shipped_trace, 12), (None, 40)):
        for stall in PATTERNS:
            for timing in TIMINGS:
                stimulus = testbench.stimulus(SMALL, data, jobs, seed)
                small.run(stimulus, stall, timing, seed)


@pytest.fixture(scope="module")
def apart():
    """The same with a port for each tile."""
    return System(BLOCK, dataclasses.replace(SMALL, memory_ports=2))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [3, 4])
def test_separate_ports_with_any_stalls_and_any_memory(apart, shipped_trace, seed):
    """Each memory is its tile's alone, and each bit and cycle the model's."""
    for data, jobs in ((shipped_trace, 12), (None, 40)):
        for stall in PATTERNS:
            for timing in TIMINGS:
                stimulus = testbench.stimulus(apart.design.parameters, data, jobs, seed)
                assert list(stimulus.memories) == ["memory_0", "memory_1"]
                apart.run(stimulus, stall, timing, seed)


@pytest.mark.campaign
def test_separate_ports_take_less_time(small, apart):
    """Requests wait for no turn and no register."""
    jobs = tokens(SMALL, 12, heads=4, group=2)
    other = tokens(apart.design.parameters, 12, heads=4, group=2)
    shared, separate = small.run(jobs.stimulus([])), apart.run(other.stimulus([]))
    assert separate.cycles < 0.9 * shared.cycles
    read = [use.rows_read for use in separate.memories.values()]
    assert sum(read) == shared.memories["memory"].rows_read and min(read) > 0.4 * sum(read)


def test_random_jobs_cover_what_they_should():
    jobs = random_jobs(SMALL, 1500, RNG(2))
    shares = [
        [len(share) for share in job]
        for job, found in zip(jobs.shares, jobs.results, strict=True)
        if found
    ]
    assert {tuple(share) for share in shares} == {(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
    assert sum(not found for found in jobs.results) > 100  # prefetch jobs
    hits = [step.report["hits"] for found in jobs.results for step in found]
    assert max(hits) > 4
    invalid = [[step.invalid for step in found] for found in jobs.results if len(found) == 4]
    assert any(flags == [False] * 4 for flags in invalid)


def tokens(p, count, heads, group, seed=1) -> Jobs:
    """A sequence of `count` tokens."""
    jobs, rng = Jobs(p, random_memory(p, RNG(seed))), RNG(seed)
    for n in range(1, count + 1):
        q = rng.standard_normal((heads, p.d)).astype(np.float16)
        k, v = rng.standard_normal((2, -(-heads // group), p.d)).astype(np.float16)
        jobs.add(q, k, v, n, heads=heads, group=group, restart=n == 1)
    return jobs


def test_tiles_run_side_by_side(small):
    """A tile does not wait until the other has accepted all its queries or finished its heads."""
    jobs = tokens(SMALL, 12, heads=4, group=2)
    outcome = small.run(jobs.stimulus([]))
    both = outcome.cycles
    order = np.reshape(small.heads(outcome), (12, 4))
    assert set(order[:, :2].ravel()) == {0, 2}  # the first head of each tile
    one = small.run(tokens(SMALL, 12, heads=2, group=2).stimulus([])).cycles
    assert both < 1.7 * one


def test_requests_carry_their_tile_and_stay_in_its_rows(small):
    jobs = tokens(SMALL, 6, heads=4, group=2)
    stimulus = jobs.stimulus([])
    before = stimulus.memories["memory"].contents
    after = small.run(stimulus).memories["memory"].contents
    changed = np.flatnonzero((before != after).any(axis=1))
    used = SMALL.tile.memory_rows
    assert set(changed // SMALL.tile_rows) == {0, 1}
    assert (changed % SMALL.tile_rows < used).all()


def test_a_port_reads_what_the_reports_say(small):
    jobs = tokens(SMALL, 20, heads=4, group=2)
    use = small.run(jobs.stimulus([]), timing=ANY).memories["memory"]
    rows = sum(step.report["rows"] for found in jobs.results for step in found)
    # Merging the new key's code and unit reads up to two rows for each kv head.
    assert rows <= use.rows_read <= rows + 2 * 2 * 20


@pytest.mark.parametrize("identification", ["codes", "centres"])
def test_the_model_is_one_tile_of_all_heads(identification):
    """The same outputs and reports; heads come back in order however they are divided."""
    p = dataclasses.replace(
        SMALL, heads=6, kv_heads=3, tiles=2, identification=identification, prefetch=0
    )
    system = LadSystem(sizes_of(p), p.tiles)
    tile = LadTile(sizes_of(p))
    rng = RNG(1)
    for n in range(1, 30):
        q = rng.standard_normal((6, p.d)).astype(np.float16)
        k, v = rng.standard_normal((2, 3, p.d)).astype(np.float16)
        found, wanted = (x.step(n, 6, 2, n == 1, q, k, v) for x in (system, tile))
        for have, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(have.o, want.o)
            assert have.report == want.report and have.invalid == want.invalid
    for table in ("k", "v"):
        for kv_head in range(3):
            place, number = kv_head % 2, kv_head // 2
            have = system.tiles[place].rows(table, number)
            np.testing.assert_array_equal(have, tile.rows(table, kv_head))
    assert system.memory.shape == (p.memory_rows, p.d)


@pytest.mark.parametrize(
    ("n", "heads", "group", "shares"),
    [
        (1, 9, 3, [[0, 1, 2, 6, 7, 8], [3, 4, 5]]),
        (1, 3, 1, [[0, 2], [1]]),
        (1, 8, 5, [[0, 1, 2, 3, 4], [5, 6, 7]]),
        (1, 9, 6, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        (1, 4, 1, None),  # four kv heads
        (1, 7, 0, None),
        (1, 2, 7, None),  # a group larger than a tile's heads
        (1, 10, 3, None),
        (1, 0, 3, None),
        (0, 3, 1, None),
        (1025, 3, 1, None),
    ],
)
def test_shares(n, heads, group, shares):
    p = LadSystemParameters(tiles=2, heads=9, kv_heads=3)
    system = LadSystem(sizes_of(p), 2)
    assert system.fits(n, heads, group) == (shares is not None)
    assert shares is None or system.shares(heads, group) == shares


def test_more_heads_than_a_tile_has_are_refused():
    p = LadSystemParameters(tiles=6, heads=32, kv_heads=32)
    system = LadSystem(sizes_of(p), 6)
    assert p.tile.heads == p.tile.kv_heads == 6
    assert [len(share) for share in system.shares(32, 1)] == [6, 6, 5, 5, 5, 5]
    assert system.fits(1, 32, 1) and system.fits(1, 32, 3)
    assert not system.fits(1, 32, 4)  # 8 in the first tile
    assert [len(share) for share in system.shares(32, 3)] == [6, 6, 6, 6, 5, 3]


def test_every_job_of_equal_groups_fits():
    for tiles, heads, kv_heads in ((1, 9, 3), (2, 9, 3), (3, 9, 3), (2, 4, 2), (3, 7, 5)):
        p = LadSystemParameters(tiles=tiles, heads=heads, kv_heads=kv_heads)
        system = LadSystem(sizes_of(p), tiles)
        for group in range(1, heads // kv_heads + 1):
            for count in range(1, min(heads, group * kv_heads) + 1):
                assert system.fits(1, count, group)
                shares = system.shares(count, group)
                assert [len(share) for share in shares] == [
                    sum(h // group % tiles == t for h in range(count)) for t in range(tiles)
                ]


def test_refusals():
    with pytest.raises(ParameterError, match="tiles must be between 1 and kv_heads, not 4"):
        LadSystemParameters(tiles=4)
    with pytest.raises(ParameterError, match="memory_ports must be 1 or as many as tiles, not 2"):
        LadSystemParameters(heads=6, kv_heads=3, tiles=3, memory_ports=2)
    with pytest.raises(ParameterError, match="weights must be 0"):
        LadSystemParameters(weights=4)
    sizes = sizes_of(SMALL)
    with pytest.raises(ValueError, match="tiles must be between 1 and 2, not 3"):
        LadSystem(sizes, 3)
    with pytest.raises(ValueError, match=r"memory must be uint16\[\d+, 8\], not uint16\[3, 8\]"):
        LadSystem(sizes, 2, np.zeros((3, 8), np.uint16))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "changes",
    [
        {"tiles": 1},
        {"tiles": 3, "heads": 5, "kv_heads": 3},
        {"tiles": 2, "heads": 6, "kv_heads": 3, "identification": "centres"},
        {"tiles": 6, "heads": 12, "kv_heads": 6, "prefetch": 0, "multiply_stages": 2},
        {"tiles": 3, "heads": 5, "kv_heads": 3, "memory_ports": 3},
        {"tiles": 2, "memory_ports": 2, "identification": "centres"},
        {"tiles": 2, "heads": 8, "kv_heads": 4},  # groups of 3 may be too many heads for a tile
    ],
    ids=["one", "three", "centres", "six", "three ports", "two ports, centres", "uneven"],
)
def test_other_numbers_of_tiles(changes):
    """With random stalls, and in the cycles of the formula without."""
    system = System(BLOCK, dataclasses.replace(SMALL, **changes))
    for timing in (FASTEST, ANY):
        stimulus = testbench.stimulus(system.parameters, None, 50, 5)
        system.run(stimulus, "random", timing)
    for seed in range(3):
        stimulus = testbench.stimulus(system.parameters, None, 50, seed)
        assert stimulus.wrong_cycles(system.run(stimulus)) is None


@pytest.mark.campaign
def test_small_in_icarus():
    result = run(BLOCK, "small", SMALL, simulator="icarus", stall="none", vectors=6)
    assert result.passed, result.failures or result.first_mismatch
