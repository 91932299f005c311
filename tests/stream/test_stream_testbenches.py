"""The stream testbenches and models against the hardware in Amaranth's own simulator.

A stimulus is run here by a few lines that share no code with the drivers of `sim`.
"""

import types

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from golden.stream import arbiter, buffer
from hw.catalogue import find
from sim.core import payload
from sim.core.stimulus import compare
from sim.testbenches.stream import arbiter as arbiter_testbench
from sim.testbenches.stream import beats as words
from sim.testbenches.stream import queue as queue_testbench
from sim.testbenches.stream import skid_buffer as skid_buffer_testbench

TESTBENCHES = {
    "stream.queue": queue_testbench.testbench,
    "stream.skid_buffer": skid_buffer_testbench.testbench,
    "stream.arbiter": arbiter_testbench.testbench,
}
CONFIGURATIONS = [
    ("stream.queue", {"width": 8, "depth": 1}),
    ("stream.queue", {"width": 8, "depth": 2}),
    ("stream.queue", {"width": 70, "depth": 5}),
    ("stream.skid_buffer", {"width": 33}),
    ("stream.arbiter", {"width": 8, "inputs": 1}),
    ("stream.arbiter", {"width": 31, "inputs": 3}),
    ("stream.arbiter", {"width": 70, "inputs": 5}),
]


def run(dut, inputs, arrives, takes, limit=2000):
    """Offer each input's next beat from the cycle it `arrives`; take when `takes` says so.

    Returns the output beats, their cycles, and the cycles of acceptance of each input's beats.
    """
    ports = {"i": dut.i} if "i" in inputs else {f"i__{s}": dut.i[s] for s in range(len(inputs))}
    total = sum(len(queue) for queue in inputs.values())
    got, taken, accepted = [], [], {name: [] for name in inputs}

    async def testbench(ctx):
        sent = dict.fromkeys(inputs, 0)
        for cycle in range(limit):
            if len(got) == total:
                return
            for name, port in ports.items():
                due = sent[name] < len(inputs[name]) and arrives(name, sent[name], cycle)
                ctx.set(port.valid, bool(due))
                if due:
                    ctx.set(Value.cast(port.payload), inputs[name][sent[name]])
            ctx.set(dut.o.ready, bool(takes(cycle)))
            values = [dut.o.valid & dut.o.ready, Value.cast(dut.o.payload)]
            moved = [port.valid & port.ready for port in ports.values()]
            _, _, out, beat, *went = await ctx.tick().sample(*values, *moved)
            for name, moves in zip(ports, went, strict=True):
                sent[name] += moves
                accepted[name] += [cycle] * moves
            if out:
                got.append(beat)
                taken.append(cycle)
        raise TimeoutError(f"{len(got)} of {total} beats after {limit} cycles")

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return got, taken, accepted


def prepared(name, settings, vectors, trace=None):
    parameters = find(name).parameters_class(**settings)
    dut = find(name).create(parameters)
    stimulus = TESTBENCHES[name].stimulus(parameters, trace, vectors, seed=3)
    return (
        dut,
        stimulus,
        {stream: payload.to_ints(packed) for stream, packed in stimulus.inputs.items()},
    )


def bursts(cycles: int, patterns: int, seed: int) -> np.ndarray:
    """``bool[patterns, cycles]``: runs of ones and zeros of geometric length."""
    random = np.random.default_rng(seed)
    lengths = random.geometric(0.15, (patterns, cycles))
    return np.array([np.repeat(np.arange(cycles) % 2 == 0, row)[:cycles] for row in lengths])


def result(dut, stimulus, got, taken):
    shape = dut.o.payload.shape()
    return {"o": payload.from_ints(got, shape)}, {"o": shape}, {"o": np.array(taken)}


@pytest.mark.parametrize("name, settings", CONFIGURATIONS)
@pytest.mark.parametrize("vectors", [1, 40])
def test_unstalled(name, settings, vectors):
    """Every beat, in the predicted order, in exactly the cycles of the formula."""
    dut, stimulus, inputs = prepared(name, settings, vectors)
    got, taken, _ = run(dut, inputs, lambda *_: True, lambda _: True)
    assert compare(stimulus, *result(dut, stimulus, got, taken)) == []
    assert len(got) == stimulus.transactions == vectors
    assert taken[-1] + 1 == stimulus.cycles


@pytest.mark.parametrize("name, settings", CONFIGURATIONS)
def test_stalled(name, settings):
    dut, stimulus, inputs = prepared(name, settings, 60)
    stalls = bursts(1000, len(inputs) + 1, seed=5)
    rows = {stream: stalls[k] for k, stream in enumerate(inputs)}
    offering = dict.fromkeys(inputs, -1)

    def arrives(stream, beat, cycle):
        # Once offered, a beat stays on offer.
        if offering[stream] != beat and rows[stream][cycle]:
            offering[stream] = beat
        return offering[stream] == beat

    got, taken, _ = run(dut, inputs, arrives, lambda cycle: stalls[-1][cycle])
    stimulus.stall = "both"
    checker = getattr(TESTBENCHES[name], "compare", compare)
    assert checker(stimulus, *result(dut, stimulus, got, taken)) == []
    assert taken[-1] + 1 > stimulus.cycles


def test_arbiter_comparison_sees_order_within_a_source_only_when_stalled():
    parameters = find("stream.arbiter").parameters_class(width=8, inputs=2)
    testbench, shape = TESTBENCHES["stream.arbiter"], parameters.output_layout()
    stimulus = testbench.stimulus(parameters, None, 20, seed=3)
    expected, layouts, cycles = stimulus.outputs["o"], {"o": shape}, {"o": np.arange(20)}
    source = payload.unpack(shape, expected)["source"]
    other = np.flatnonzero(source != source[0])[0]
    same = np.flatnonzero(source == source[0])[1]

    def mismatches(stall, permuted):
        stimulus.stall = stall
        return testbench.compare(stimulus, {"o": permuted}, layouts, cycles)

    def swapped(k):
        order = np.arange(20)
        order[[0, k]] = order[[k, 0]]
        return expected[order]

    assert mismatches("none", expected) == mismatches("both", expected) == []
    assert mismatches("none", swapped(other)) != []
    assert {m.field for m in mismatches("both", swapped(same))} == {"data"}
    assert {m.got for m in mismatches("both", expected[:-1])} == {"nothing"}
    doubled = np.concatenate([expected, expected[-1:]])
    cycles["o"] = np.arange(21)
    assert {m.got for m in mismatches("both", doubled)} == {"a beat"}


@pytest.mark.parametrize("depth", [1, 2, 3, 5, "skid"])
def test_buffer_model_has_the_hardware_s_cycles(depth):
    if depth == "skid":
        dut, _, _ = prepared("stream.skid_buffer", {"width": 8}, 1)
    else:
        dut, _, _ = prepared("stream.queue", {"width": 8, "depth": depth}, 1)
    arrivals, takes = bursts(200, 2, seed=7)
    due = np.flatnonzero(arrivals)
    activity = buffer.simulate(2 if depth == "skid" else depth, arrivals, takes)
    count = activity.output.sum()
    inputs = {"i": list(range(count))}
    got, taken, accepted = run(dut, inputs, lambda _, b, c: c >= due[b], lambda c: takes[c])
    assert got == inputs["i"]
    assert taken == np.flatnonzero(activity.output).tolist()
    assert accepted["i"] == np.flatnonzero(activity.accepted)[:count].tolist()


def test_arbiter_model_has_the_hardware_s_cycles():
    dut, _, _ = prepared("stream.arbiter", {"width": 8, "inputs": 3}, 1)
    *arrivals, takes = bursts(200, 4, seed=7)
    arrivals = np.array(arrivals, int)
    arrivals[:, 100:] = 0
    takes[-100:] = True
    inputs = {f"i__{s}": [s] * row.sum() for s, row in enumerate(arrivals)}
    due = {f"i__{s}": np.flatnonzero(row) for s, row in enumerate(arrivals)}
    activity = arbiter.simulate(arrivals.T, takes)
    _, taken, accepted = run(dut, inputs, lambda n, b, c: c >= due[n][b], lambda c: takes[c])
    for s in range(3):
        assert accepted[f"i__{s}"] == np.flatnonzero(activity.accepted == s).tolist()
    assert taken == np.flatnonzero((activity.output >= 0) & takes).tolist()


def test_merge_order_by_hand():
    assert arbiter.merge([3, 1, 2]).tolist() == [0, 1, 2, 0, 2, 0]
    assert arbiter.merge([0, 2]).tolist() == [1, 1]


def trace(**arrays):
    return types.SimpleNamespace(**{"k": None, "x": {}, "w": {}} | arrays)


def test_beats_are_the_trace_s_bits():
    keys = np.array([1.0, -2.0, 0.5, 3.0], np.float32).reshape(1, 1, 2, 2)
    got, notes = words.beats(trace(k=keys), 32, 2, seed=0)
    assert got[:, 0].tolist() == [0xC000_3C00, 0x4200_3800]
    assert notes == ["k is read as FP16 bits, cut into payloads of 32 bits."]
    got, notes = words.beats(trace(k=keys), 8, 3, seed=0)
    assert got[:, 0].tolist() == [0x00, 0x3C, 0x00]
    assert notes[1] == "Of its 4 values the first 2 are used."
    got, notes = words.beats(trace(x={"b": keys[0, 0], "a": keys[0, 0] + 1}), 48, 2, seed=0)
    assert got.tolist() == [[0xBC00_4000, 0x3E00], [0x4000_4400, 0xBC00]]
    assert notes[0].startswith("x/a is read") and "repeated" in notes[1]
    got, _ = words.beats(trace(w={"up": keys[0, 0]}), 16, 1, seed=0)
    assert got.tolist() == [[0x3C00]]


def test_beats_without_a_trace_start_with_corners():
    got, notes = words.beats(None, 8, 20, seed=0)
    assert got[:5, 0].tolist() == [0, 255, 0xAA, 0x55, 1] and notes == []
    again, _ = words.beats(None, 8, 20, seed=0)
    other, _ = words.beats(None, 8, 20, seed=1)
    assert (got == again).all() and (got[12:] != other[12:]).any()
