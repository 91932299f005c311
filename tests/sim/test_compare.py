"""``python -m sim compare``: a layer's step of each design."""

import json

import numpy as np
import pytest

from hw.baseline.dense_core import DenseCoreParameters
from sim.core.memory import FASTEST
from sim.studies.compare.begun import begun
from sim.studies.compare.data import Shape, layer_data, made
from sim.studies.compare.designs import DESIGNS, PORTS, choose
from sim.studies.compare.rows import limit_of
from sim.studies.compare.step import bytes_of, run_step
from sim.testbenches.baseline.dense_core import DenseSteps

SHAPE = Shape(d=8, n=24, heads=4, kv_heads=2)
# Of a preset, whose Verilog other tests have too; half of its heads are used.
ALONE = Shape(d=8, n=24, heads=2, kv_heads=2)
SMALL = "baseline.dense_core.heads=4", "baseline.dense_core.depth=8"


def step_of(name: str, shape: Shape = SHAPE, settings=()):
    return choose(name, shape, PORTS, settings).step(shape, made(shape))


@pytest.fixture(scope="module")
def dense():
    step = step_of("baseline.dense_core", ALONE, SMALL)
    assert step.design.parameters == DenseCoreParameters.preset("small")
    return step


def test_rows_of_the_dense_core_and_of_the_reference(run):
    """Its bytes equal the formula; run_step compares cycles on the ideal port with the model."""
    sets = " ".join(f"--set {setting}" for setting in SMALL)
    line = f"compare --d 8 --n 24 --heads 2 --kv-heads 2 {sets} --memory hbm2 --json"
    status, out, err = run(f"{line} --design baseline.dense_core")
    found = json.loads(out)
    ideal, dense = found["rows"]
    rows = 2 * ALONE.kv_heads * ALONE.n * ALONE.d * 2
    new = 2 * ALONE.kv_heads * ALONE.d * 2
    assert status == 0 and err.startswith("1 of 1: baseline.dense_core, 24 tokens, ")
    assert sum(dense["bytes"].values()) == ALONE.dense_bytes == rows + new
    assert dense["bytes"] == ideal["bytes"]
    assert ideal["cycles"] == dense["cycles_at_peak"] == -(-ALONE.dense_bytes // 256)
    assert ideal["cycles"] < dense["cycles_ideal_port"] < dense["cycles"]
    assert dense["seconds"] == dense["cycles"] / 1e9 and dense["activations"] >= 1
    assert dense["energy_pj"].keys() >= {"dram_activation", "dram_read"}
    assert "--design baseline.dense_core" in dense["source"]
    assert found["settings"]["n"] == [ALONE.n] and "made" in found["settings"]["data"][0]


def test_a_core_begun_late_does_what_one_does_that_ran_all_tokens(dense):
    steps, data = DenseSteps(dense.design.parameters), made(ALONE)
    for token in range(ALONE.n):
        steps.add(*data.half(token), restart=token == 0)
    alone = steps.stimulus([], since=ALONE.n - 1)
    for name, beats in dense.stimulus.outputs.items():
        assert np.array_equal(beats, alone.outputs[name])
    whole = steps.stimulus([]).memories["memory"].after
    assert np.array_equal(whole, dense.stimulus.memories["memory"].after)
    # A sequence's earlier steps leave nothing that a step's cycles would depend on.
    assert run_step(dense, FASTEST).cycles == steps.parameters.cycles([steps.work[-1]])


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "baseline.dense_core"])
def test_every_design(name):
    step = step_of(name)
    outcome = run_step(step, FASTEST).outcome
    moved = bytes_of(step, outcome)
    uses = outcome.memories.values()
    assert sum(moved.values()) == sum(use.bytes_read + use.bytes_written for use in uses)
    if name == "tsuru.tsuru_core":  # a word of a row has K and V
        assert moved["other_written"] > 0 and 0 < moved["other_read"] < moved["k_read"] * 20
        return
    if name == "kllm.kllm_core":  # the host stores a token's indices
        assert moved["k_read"] >= moved["v_read"] > 0
        return
    assert moved["k_written"] == moved["v_written"] > 0 < moved["v_read"] <= moved["k_read"]


def test_settings_are_of_knobs_or_parameters():
    settings = ["baseline.h2o_core.kept=6", "veda.veda_core.kept=7", "veda.veda_core.depth=32"]
    assert choose("baseline.h2o_core", SHAPE, PORTS, settings).knobs == {"kept": 6}
    veda = choose("veda.veda_core", SHAPE, PORTS, settings)
    assert veda.knobs == {"kept": 7} and veda.parameters.depth == 32


def test_data_are_real_where_the_model_has_such_heads():
    data = layer_data(Shape(d=64, n=500, heads=9, kv_heads=3), None)
    assert data.q.shape == (9, 500, 64) and data.k.shape == (3, 500, 64)
    assert data.about.startswith("SmolLM2") and "repeated" not in data.about
    more = layer_data(Shape(d=64, n=24, heads=32, kv_heads=8), None)
    assert more.q.shape == (32, 24, 64) and more.about.endswith("heads repeated")
    assert np.array_equal(more.k[0], more.k[3]) and np.array_equal(more.q[0], more.q[12])


def test_made_scores_are_as_stated():
    shape = Shape(d=64, n=1000, heads=4, kv_heads=2)
    data = made(shape)
    scores = data.q[0, -1] @ data.k[0].T * data.scale
    assert scores[1:].std() == pytest.approx(2, rel=0.3)
    assert scores[0] - scores[1:].mean() == pytest.approx(8, abs=3)


def test_what_limits_a_step():
    assert limit_of(100, 90, 10) == "compute" and limit_of(100, 10, 90) == "memory"
    assert limit_of(100, 50, 50) == "latency" and limit_of(100, 100, None) == "compute"


def test_registers_begin_where_they_are_told(dense):
    design = dense.design
    assert design.constants == ("begin_length",)
    assert design.verilog.count("begin_length") == 2
    with pytest.raises(ValueError):
        begun(design, ["none"])
