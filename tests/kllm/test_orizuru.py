"""Orizuru's RTL: every bit, every cycle, at every size, on both simulators."""

import numpy as np
import pytest

from golden import trace
from golden.kllm.orizuru import pop_order
from hw.catalogue import find
from hw.kllm.orizuru import OrizuruParameters
from sim.core.design import from_file, generate
from sim.drivers.run import run
from sim.testbenches.kllm.orizuru import build, testbench, vectors_of
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.orizuru")
SIMULATORS = ("verilator", "icarus")
PRESETS = OrizuruParameters.presets()
campaign = pytest.mark.campaign
# Sizes away from the presets: odd ones, two and three levels, every ratio of lanes to radix, k from
# 0 to n. One value only is among the smallest of all blocks (tests/sim/test_smallest.py).
ODD = OrizuruParameters(n=13, k=13, lanes=8, radix=4)
NARROW = OrizuruParameters(n=36, k=7, lanes=2, radix=8)
SIZES = [
    OrizuruParameters(n=5, k=5, lanes=1, radix=2),
    ODD,
    NARROW,
    pytest.param(OrizuruParameters(n=3, k=2, lanes=4, radix=4), marks=campaign),
    pytest.param(OrizuruParameters(n=20, k=0, lanes=4, radix=16), marks=campaign),
    pytest.param(OrizuruParameters(n=64, k=64, lanes=64, radix=4), marks=campaign),
    pytest.param(OrizuruParameters(n=100, k=30, lanes=32, radix=16), marks=campaign),
]


@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_every_size(parameters, shipped_trace):
    """Corner cases, random and real data under every stall pattern; the cycle formula without."""
    compiled = Compiled(BLOCK, parameters)
    for data, vectors in ((None, 400), (shipped_trace, 40)):
        stimulus = testbench.stimulus(parameters, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


@pytest.mark.parametrize(("name", "seeds"), [("small", 1), pytest.param("deep", 3, marks=campaign)])
def test_many_vectors(name, seeds):
    """Many random vectors, in the compiled harness for its speed."""
    compiled = Compiled(BLOCK, PRESETS[name])
    for seed in range(seeds):
        stimulus = testbench.stimulus(PRESETS[name], None, 8000, seed)
        compiled.check_all(stimulus, seed=seed)


@campaign
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_paper_preset(simulator):
    """N = 4096 with k = 64: 256 + 16 + 1 units for each end."""
    assert PRESETS["paper"].units == [256, 16, 1]
    result = run(BLOCK, "paper", PRESETS["paper"], simulator=simulator, vectors=3, stall="none")
    assert result.passed, (result.first_mismatch, result.failures)
    assert result.transactions == 6 and result.cycles == result.predicted


def test_a_trace_it_has_never_seen(tmp_path):
    """A user's trace of another shape, heavy-tailed, fits by itself."""
    rng = np.random.default_rng(3)
    x = (rng.standard_t(2, (9, 200)) * 100).clip(-60000, 60000).astype(np.float16)
    path = tmp_path / "mine.npz"
    trace.save(path, trace.Trace(None, None, None, None, {"mine": x}, {}, {"model": "none"}))
    result = run(BLOCK, "small", PRESETS["small"], driver="harness", trace=path, vectors=20)
    assert result.passed and "x/mine" in result.notes[0]


def one_vector(parameters, beats=None, k=None):
    """A stimulus of one random vector of `beats` beats."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1, parameters.n)).astype(np.float16)
    beats = parameters.beats if beats is None else beats
    length = min(parameters.n, beats * parameters.lanes)
    k = parameters.k if k is None else k
    keep = np.ones(x.shape, bool)
    return build(parameters, x, keep, np.array([length]), np.array([k]), rng, [])


@pytest.mark.parametrize(
    "parameters",
    [
        PRESETS["small"],
        ODD,
        NARROW,
        pytest.param(PRESETS["deep"], marks=campaign),
        pytest.param(PRESETS["default"], marks=campaign),
    ],
    ids=lambda p: p.slug(),
)
def test_latency_and_throughput(parameters):
    """First pair depth + 2 cycles after the last input beat; then a pair every cycle."""
    compiled = Compiled(BLOCK, parameters)
    for beats in {1, parameters.beats // 2 or 1, parameters.beats}:
        stimulus = one_vector(parameters, beats)
        outcome = compiled.check(stimulus)
        last_input = beats - 1  # one beat a cycle from cycle 0
        taken = outcome.cycles_of["o"]
        assert taken[0] == last_input + parameters.latency
        assert np.array_equal(np.diff(taken), np.ones(parameters.k - 1))
    # Back to back, a vector occupies the engine for B + depth + k cycles.
    rng = np.random.default_rng(6)
    vectors = 5
    x = rng.normal(size=(vectors, parameters.n)).astype(np.float16)
    full, k = np.full(vectors, parameters.n), np.full(vectors, parameters.k)
    stimulus = build(parameters, x, np.ones(x.shape, bool), full, k, rng, [])
    outcome = compiled.check(stimulus)
    firsts = outcome.cycles_of["o"][:: parameters.k]
    assert set(np.diff(firsts)) == {parameters.beats + parameters.depth + parameters.k}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("key_1 > key_0", "key_1 >= key_0"),  # ties of the max tree
        ("key_5 < key_4", "key_5 <= key_4"),  # ties of the min tree
        ("key_1 > key_0", "key_1[15:1] > key_0[15:1]"),  # one bit of one comparison
        ("key_9 < key_8", "1'b0"),
    ],
)
@pytest.mark.parametrize(
    ("simulator", "driver"),
    [("verilator", "harness"), pytest.param("icarus", "cocotb", marks=campaign)],
)
def test_hand_made_faults_are_found(before, after, simulator, driver, tmp_path):
    """A fault in the Verilog of one comparison turns the testbench red and is located."""
    verilog = generate(BLOCK, PRESETS["small"]).verilog
    assert verilog.count(before) == 1
    path = tmp_path / "fault.v"
    path.write_text(verilog.replace(before, after))
    result = run(
        BLOCK,
        "small",
        PRESETS["small"],
        simulator=simulator,
        driver=driver,
        verilog=path,
        vectors=200,
    )
    assert not result.passed and result.mismatches > 0
    assert "expected" in result.first_mismatch and "cycle" in result.first_mismatch
    assert "field max" in result.first_mismatch or "field min" in result.first_mismatch


def test_a_netlist_runs_in_the_rtl_s_place(tmp_path):
    """The generated file itself, given by name, passes."""
    path = tmp_path / "same.v"
    path.write_text(generate(BLOCK, PRESETS["small"]).verilog)
    design = from_file(BLOCK, PRESETS["small"], path)
    stimulus = testbench.stimulus(PRESETS["small"], None, 50, seed=1)
    Compiled(BLOCK, PRESETS["small"], design).check(stimulus, "random")


def test_expected_pairs_are_the_definition():
    """The testbench's expectation, spelled out for one vector by plain Python sorting."""
    rng = np.random.default_rng(8)
    x = rng.integers(-4, 5, 16).astype(np.float16)
    keep = rng.random(16) < 0.8
    popped = pop_order(x[None], keep[None], 16)
    kept = [i for i in range(16) if keep[i]]
    largest = sorted(kept, key=lambda i: (-x[i], i))
    smallest = sorted(kept, key=lambda i: (x[i], i))
    assert popped["max_index"][0, : len(kept)].tolist() == largest
    assert popped["min_index"][0, : len(kept)].tolist() == smallest
    assert popped["present"][0].tolist() == [True] * len(kept) + [False] * (16 - len(kept))


def test_real_vectors_are_the_trace(shipped_trace):
    x, notes = vectors_of(shipped_trace, 256, 10)
    first = np.asarray(next(iter(shipped_trace.x.values())), np.float16)
    assert np.array_equal(x[0], first[0, :256])
    assert "x/" in notes[0]
