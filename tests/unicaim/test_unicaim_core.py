"""UniCAIM's core: every option under stalls, its cycles, resets, memories, what it refuses."""

import dataclasses
import re

import numpy as np
import pytest

from golden.unicaim.core_cycles import CoreCycles
from golden.unicaim.divisors import code_units, query_divisors
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.command import CommandOp, CommandWork
from hw.unicaim.level_converter import RowKind
from hw.unicaim.unicaim_core import UnicaimCoreParameters
from sim.core.design import generate
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.drivers.run import Simulation
from sim.testbenches.unicaim.core_jobs import (
    CoreJobs,
    cycles_of,
    random_jobs,
    real_jobs,
    timing_of,
)
from sim.testbenches.unicaim.unicaim_core import testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.unicaim_core")
SMALL = UnicaimCoreParameters.preset("small")
VARIANTS = {
    "cell with spread": {"array": "cell", "spread_mv": 54},
    "serial, from 0, without fill": {
        "array": "serial",
        "parallel": 2,
        "fill": False,
        "start": "zero",
    },
    "cells by the clock, measured": {
        "array": "cell",
        "exact": "cells",
        "spread_mv": 90,
        "time_steps": 64,
        "late": 20,
        "line_error": 20,
        "calibrate": True,
    },
    "cells of a cell array": {"array": "cell", "exact": "cells", "kv_heads": 1, "spread_mv": 30},
    "not rotated, one head": {"rotate": False, "kv_heads": 1, "group": 1, "d": 8, "rows": 12},
    "few bits of codes": {"exact": "cells", "converters": 12, "adc_bits": 5, "query_bits": 3},
    "other sizes": {"group": 3, "rows": 6, "depth": 4, "kv_heads": 3, "key_bits": 1, "share": 2},
    "accumulations in a memory": {"accumulators": 4, "group": 1, "fraction": 0, "share": 0},
    "few accumulators": {"accumulators": 2, "rows": 24, "start": "zero", "kv_heads": 3},
    "not observed": {"observe": False, "rows": 9, "key_bits": 4, "query_bits": 1},
}


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def test_three_hundred_jobs_of_any_kind(small):
    jobs = random_jobs(SMALL, 300, np.random.default_rng(11))
    results = [result for result in jobs.results if result is not None]
    heads = [head for result in results for head in result.heads]
    assert sum(result.evicts for result in results) > 40
    assert sum(head.invalid for head in heads) > 5
    assert sum(not head.selected for head in heads) > 20
    small.check_all(jobs.stimulus([]))


def test_cycles_are_exact_where_rows_are_not_read_and_written_at_once(small, shipped_trace):
    """On real data, and on all jobs but for a few cycles, while a row more waits for another."""
    real = testbench.stimulus(SMALL, shipped_trace, 80, 1)
    assert small.check(real).cycles == real.cycles
    for seed in range(4):
        stimulus = testbench.stimulus(SMALL, None, 200, seed)
        assert stimulus.cycles <= small.check(stimulus).cycles <= stimulus.cycles + 8


def some(names, *kept: str) -> list:
    """Names as parameters of a test; those not kept are for the campaign."""
    return [
        name if name in kept else pytest.param(name, marks=pytest.mark.campaign) for name in names
    ]


@pytest.mark.parametrize("name", some(VARIANTS, "few bits of codes"))
def test_options(name, shipped_trace):
    p = dataclasses.replace(SMALL, **VARIANTS[name])
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 90, seed=4))


def test_a_reset_in_mid_job(small):
    long, short = (testbench.stimulus(SMALL, None, 60, seed) for seed in (5, 6))
    for beats, stall in ((1, "none"), (17, "random"), (30, "bursts")):
        small.check_after_a_cut(long, beats, stall, short)


def jobs_of(p: UnicaimCoreParameters, k: int, steps: int, preset: int, heads: int = 4) -> CoreJobs:
    """Steps of all kv heads in turn, each with `preset` rows and `k` selected ones."""
    rng, jobs = np.random.default_rng(1), CoreJobs(p)

    def rows(count: int) -> np.ndarray:
        return rng.standard_normal((count, p.d)).astype(np.float16)

    for kv_head in range(p.kv_heads):
        jobs.load(kv_head, np.zeros(p.d, np.float16), 2.4)
        for _ in range(preset):
            jobs.preset(kv_head, *rows(2))
    for _ in range(steps):
        for kv_head in range(p.kv_heads):
            q = rows(heads)
            divisors = query_divisors(p, q)
            jobs.step(kv_head, *rows(2), q, divisors, k, code_units(p, 2.4, divisors))
    return jobs


TIMED = UnicaimCoreParameters(rows=32, d=16, kv_heads=2, query_bits=3)
SIZES: dict[str, dict] = {
    "digital": {},
    "serial": {"array": "serial", "parallel": 4, "rows": 64},
    "large": {"d": 128, "query_bits": 1},
    "accumulations in a memory": {"accumulators": 2, "d": 8},
    "serial, too": {"array": "serial", "parallel": 4, "rows": 64, "accumulators": 4},
    "cells": {"exact": "cells"},
    "few converters": {"exact": "cells", "adc_bits": 6, "converters": 6, "d": 8, "group": 8},
}


@pytest.mark.parametrize("name", some(SIZES, "digital"))
def test_cycles_of_queries(name):
    """From a query to its result, and from one result to the next, between steps too."""
    p = dataclasses.replace(TIMED, **SIZES[name])
    compiled, converter = Compiled(BLOCK, p), p.converter
    alone = compiled.check(jobs_of(p, 1, 1, 0, 1).stimulus([]))
    means = p.kv_heads * converter.row_cycles(RowKind.MEAN)
    query = 1 + means + converter.row_cycles(RowKind.KEY)
    assert alone.cycles_of["o"][0] == query + p.head_cycles(1)
    for k in (8, 13, 32):
        stimulus = jobs_of(p, k, 2, p.rows).stimulus([])
        gaps = np.diff(compiled.check(stimulus).cycles_of["o"])
        allowed = {p.head_interval(k)}
        if p.exact_interval(k) <= p.selection_interval(k):
            allowed.add(p.head_interval(k) + 2)  # from step to step
        assert set(gaps.tolist()) <= allowed, k
    if name != "digital":
        return
    # Memory latency to 50 is hidden for 16 rows and more.
    for k in (16, 32):
        stimulus, gaps = jobs_of(p, k, 2, p.rows).stimulus([]), []
        for latency in (1, 50):
            compiled._harness.reset()
            timing = MemoryTiming((latency, latency))
            outcome = compiled._harness.run(stimulus, PATTERNS["none"], 1, timing)
            assert outcome.failure is None
            gaps.append(np.diff(outcome.cycles_of["o"]).tolist())
        assert gaps[0] == gaps[1], k


@pytest.mark.campaign
def test_cycles_of_rows_that_are_measured():
    """A row waits for the measurement of the one before; its V is written after its report."""
    p = dataclasses.replace(SMALL, array="cell", spread_mv=54, calibrate=True)
    compiled, rng = Compiled(BLOCK, p), np.random.default_rng(1)
    reports = []
    for rows in (1, 7):
        jobs = CoreJobs(p)
        for kv_head in range(2):
            jobs.load(kv_head, np.zeros(p.d, np.float16), 1.0)
            for _ in range(rows):
                jobs.preset(kv_head, *rng.standard_normal((2, p.d)).astype(np.float16))
        model = CoreCycles(timing_of(p))
        for work in jobs.work:
            model.add(work)
        outcome = compiled.check(jobs.stimulus([]))
        assert outcome.cycles == model.end + 1
        reports = outcome.cycles_of["report"].tolist()
        assert reports == model.reports
    assert reports[-1] - reports[-2] == p.cells.write_cycles == p.query_bits + p.adc_bits + 3


@pytest.mark.parametrize(
    ("preset", "accumulators", "within"),
    [("small", 0, 0.03), ("small", 2, 0.03), ("default", 0, 0.01)],
)
def test_the_formula_of_cycles(preset, accumulators, within, shipped_trace):
    """Near the cycle model, which the RTL takes exactly; further off if commands have no order."""
    p = dataclasses.replace(UnicaimCoreParameters.preset(preset), accumulators=accumulators)
    for jobs, share in (
        (real_jobs(p, shipped_trace, 120, np.random.default_rng(1))[0], within),
        (random_jobs(p, 200, np.random.default_rng(1)), 0.15),
    ):
        work = [
            CommandWork(CommandOp[job.op], job.kv_head, job.full, [rows for rows, _ in job.queries])
            for job in jobs.work
        ]
        expected, _ = cycles_of(p, jobs.work)
        assert p.cycles(work) == pytest.approx(expected, rel=share)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"array": "analog"}, "array must be one of digital, serial, cell"),
        ({"exact": "row"}, "exact must be one of rows, cells"),
        ({"start": "one"}, "start must be one of mean, zero"),
        ({"d": 12}, "d must be a power of two from 2, not 12"),
        ({"group": 0}, "group must be between 1 and 256, not 0"),
        ({"depth": 6}, "depth must be a power of two from 4, not 6"),
        ({"adc_bits": 12}, "adc_bits must be between 2 and 11, not 12"),
        ({"array": "serial", "parallel": 3}, "parallel must be a power of two from 2"),
        ({"accumulators": 3}, "accumulators must be 0, or a power of two from 2 that divides"),
        ({"accumulators": 8}, "accumulators must be 0, or a power of two from 2 that divides"),
        ({"kv_heads": 0}, "contexts must be between 1 and 256, not 0"),
        ({"array": "cell", "spread_mv": 300}, "spread_mv must be between 0 and 200, not 300"),
    ],
)
def test_refused_parameters(change, message):
    with pytest.raises(ParameterError, match=message):
        dataclasses.replace(SMALL, **change)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "serial"])
def test_large_presets(preset, shipped_trace):
    p = UnicaimCoreParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(p, trace, 3 * p.rows, seed=6)
        compiled.check(stimulus, "none")
        compiled.check(stimulus, "random")


@pytest.mark.campaign
def test_a_wait_that_is_missing_shows_under_long_stalls_alone():
    """A core that does not wait for a kv head's rows to be read before its next job begins."""
    design = generate(BLOCK, SMALL)
    verilog, count = re.subn(
        r"(wire \[1:0\] sequence_busy = \w+) \| unread;", r"\1;", design.verilog
    )
    assert count == 1
    simulation = Simulation(dataclasses.replace(design, verilog=verilog), "verilator", "harness")
    stimulus = testbench.stimulus(SMALL, None, testbench.default_vectors(SMALL), 17)
    runs = simulation.run([(stimulus, stall) for stall in PATTERNS], seed=17)
    failed = [stall for stall, (_, found) in zip(PATTERNS, runs, strict=True) if found]
    assert failed == ["long"]
