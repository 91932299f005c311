"""What a run offers unless told otherwise: the cases that the papers are about, of any trace."""

import numpy as np
import pytest

from golden.topick.topick_core import must_keep
from golden.trace import Trace
from hw.catalogue import find
from sim.drivers.run import load_testbench
from sim.testbenches.baseline import h2o_core
from sim.testbenches.kllm import kllm_core
from sim.testbenches.lad import lad_tile
from sim.testbenches.topick import core_random as topick_jobs
from sim.testbenches.unicaim import core_jobs as unicaim_jobs
from sim.testbenches.veda import veda_core

Counts = dict[str, int]


def kllm(p, vectors: int, rng, trace: Trace | None) -> Counts:
    random = kllm_core.random_products
    made = kllm_core.real_products(p, trace, vectors)[0] if trace else random(p, vectors, rng)
    names = ("softmax", "weighted", "store")
    return {name: sum(getattr(product, name) for product in made) for name in names}


def lad(p, vectors: int, rng, trace: Trace | None) -> Counts:
    random = lad_tile.random_tokens
    made = lad_tile.real_tokens(p, trace, vectors, rng)[0] if trace else random(p, vectors, rng)
    heads = [head.report for found in made.results for head in found]
    inactive = sum(report["n"] - report["active"] for report in heads)
    return {"inactive": inactive, "updated": sum(report["updated"] for report in heads)}


def topick(p, vectors: int, rng, trace: Trace | None) -> Counts:
    random = topick_jobs.random_jobs
    made = topick_jobs.real_jobs(p, trace, vectors, rng)[0] if trace else random(p, vectors, rng)
    heads = [head for job in made.work for head in job]
    return {"may be pruned": sum(int((~must_keep(h.head, h.k, made.sizes)).sum()) for h in heads)}


def unicaim(p, vectors: int, rng, trace: Trace | None) -> Counts:
    random = unicaim_jobs.random_jobs
    made = unicaim_jobs.real_jobs(p, trace, vectors, rng)[0] if trace else random(p, vectors, rng)
    steps = [result for result in made.results if result is not None and result.heads]
    several = sum(len(head.selected) > 1 for result in steps for head in result.heads)
    return {"evicted": sum(result.evicts for result in steps), "softmax of rows": several}


def veda(p, vectors: int, rng, trace: Trace | None) -> Counts:
    random = veda_core.random_steps
    made = veda_core.real_steps(p, trace, vectors)[0] if trace else random(p, vectors, rng)
    return {"evicted": sum(report.evict for step in made.results for report in step.reports)}


def h2o(p, vectors: int, rng, trace: Trace | None) -> Counts:
    made = h2o_core.made(p, trace, vectors, rng)[0]
    written = [tuple(r.reports[0].rows) for r in made.results if not r.refused]
    return {"evicted": len(written) - len(set(written))}


CORES = {
    "baseline.h2o_core": h2o,
    "kllm.kllm_core": kllm,
    "lad.lad_tile": lad,
    "topick.topick_core": topick,
    "unicaim.unicaim_core": unicaim,
    "veda.veda_core": veda,
}


@pytest.mark.parametrize("data", ["real", "random"])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("preset", ["small", "default"])
def test_a_run_offers_what_the_paper_is_about(core, preset, data, shipped_trace):
    block = find(core)
    p = block.parameters_class.preset(preset)
    vectors = load_testbench(block).default_vectors(p)
    trace = shipped_trace if data == "real" else None
    counts = CORES[core](p, vectors, np.random.default_rng(1), trace)
    assert all(counts.values()), counts


FACTORS = {
    "kllm.centroid_lane": (0, 1e-9),
    "kllm.codebook_replacement": (1,),
    "kllm.functional_unit": (1e12,),
    "kllm.softmax": (1e12,),
    "unicaim.unicaim_core": (1,),
    "veda.voting_engine": (0,),
}


@pytest.mark.parametrize("block", FACTORS)
def test_zeros_small_and_large_values_and_few_vectors(block, shipped_trace):
    """Warnings are errors here, of an overflow too."""
    testbench, p = load_testbench(find(block)), find(block).parameters_class.preset("first")
    for factor in FACTORS[block]:
        factor = np.float32(factor)
        x = {name: array * factor for name, array in list(shipped_trace.x.items())[:1]}
        parts = {name: getattr(shipped_trace, name) * factor for name in "qkv"}
        for trace in (Trace(**parts, scale=shipped_trace.scale, x=x), Trace(x=x), None):
            for vectors in (1, 2):
                stimulus = testbench.stimulus(p, trace, vectors, 3)
                assert stimulus.transactions >= vectors
                assert sum(len(beats) for beats in stimulus.outputs.values()) > 0
