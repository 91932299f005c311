# amaranth: UnusedElaboratable=no
"""The core: whole sequences through the RTL, what it refuses, and cycles."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from golden.arith.formats import is_nan, to_bits
from golden.veda.veda_core import VedaCore
from hw.catalogue import Block, find
from hw.component import Component
from hw.ports import Ports
from hw.veda import veda_core
from hw.veda.veda_core import VedaCoreParameters
from sim.core import payload
from sim.core.design import generate
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare, compare_memories
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.drivers.harness.runner import Harness
from sim.studies.veda import growing, head_cycles
from sim.testbenches.decode import fit, layers_of
from sim.testbenches.veda.veda_core import (
    A,
    B,
    Steps,
    add_sequence,
    random_steps,
    real_steps,
    testbench,
)

BLOCK = find("veda.veda_core")
SMALL = VedaCoreParameters.preset("small")
PAPER = VedaCoreParameters.preset("paper")
RNG = np.random.default_rng
SLOW = MemoryTiming((1, 20), reorder=True, seed=3)
FAR = MemoryTiming((30, 60), interval=2, reorder=True, seed=4)


class Core:
    """The compiled core. Each stimulus runs from reset."""

    def __init__(self, parameters: VedaCoreParameters):
        self.design = generate(BLOCK, parameters)
        self.harness = Harness(self.design)

    def check(self, stimulus, stall="none", timing=FASTEST, seed=1):
        self.harness.reset()
        outcome = self.harness.run(stimulus, PATTERNS[stall], seed, timing)
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, self.design.outputs, outcome.cycles_of) == []
        assert compare_memories(stimulus, outcome) == []
        return outcome


@pytest.fixture(scope="module")
def small():
    return Core(SMALL)


# --- the bit-exact model ---


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_sequences_under_stalls(small, shipped_trace, seed):
    for data, steps in ((shipped_trace, 60), (None, 120)):
        stimulus = testbench.stimulus(SMALL, data, steps, seed)
        for stall in PATTERNS:
            for timing in (FASTEST, SLOW, FAR):
                outcome = small.check(stimulus, stall, timing, seed)
                if (stall, timing) == ("none", FASTEST):
                    assert stimulus.wrong_cycles(outcome) is None


def test_random_steps_cover_what_they_should():
    steps = random_steps(SMALL, 800, RNG(4))
    reports = [result.reports for result in steps.results]
    invalid = np.concatenate([result.invalid for result in steps.results])
    lengths = [result.p.shape[1] for result in steps.results]
    heads = {len(result.o) for result in steps.results}
    assert heads == {0, 1, 2, 3, 4}
    refused = [n for n, result in enumerate(steps.results) if result.refused]
    assert len(refused) > 20 and max(lengths[n + 1] for n in refused[:-1]) > 10
    assert 5 < invalid.sum() < len(invalid) / 2
    assert sum(r[0].invalid for r in reports) > 3
    assert any((result.p == 0).all(axis=1).any() for result in steps.results)
    assert sum(len(r) > 1 for r in reports) >= 3 and sum(r[0].evict for r in reports) > 50
    assert lengths.count(1) > 5 and lengths.count(SMALL.capacity) >= 2
    unasked = [
        r[0].evict and r[0].length == SMALL.capacity - 1 and length == SMALL.capacity
        for r, length in zip(reports, lengths, strict=True)
    ]
    assert any(unasked)


def every_length(core, p, heads):
    """A sequence that fills the cache, in the cycles and with the rows read of the formulas."""
    steps = growing(p, p.capacity, heads)
    stimulus = steps.stimulus([])
    outcome = core.check(stimulus)
    assert outcome.cycles == stimulus.cycles
    assert outcome.memories["memory"].rows_read == sum(p.rows_read(step) for step in steps.work)
    return outcome


def test_cycles_of_every_length(small):
    """At most 2 l + 64 from a head's first key to its o; then heads whose keys go together."""
    lengths, cycles = np.arange(1, SMALL.capacity + 1), head_cycles(every_length(small, SMALL, 1))
    assert cycles.tolist() == [SMALL.head_cycles(length) for length in lengths]
    assert (cycles <= 2 * lengths + 64).all()
    for heads in (2, 3, 4):
        every_length(small, SMALL, heads)


@pytest.mark.campaign
def test_cycles_of_every_length_in_a_wide_core():
    """With 128 PEs, as in the paper, up to 512 rows."""
    p = VedaCoreParameters(8, 8, 2, 512, 2, 1, 512, parallel=2)
    lengths, core = np.arange(1, 513), Core(p)
    cycles = head_cycles(every_length(core, p, 1))
    assert (cycles[7:] == 2 * lengths[7:] + 46).all() and (cycles <= 2 * lengths + 46).all()
    every_length(core, p, 2)


def test_cycles_of_a_head_in_the_paper_s_core():
    lengths = range(1, PAPER.capacity + 1)
    assert PAPER.array.lanes == 128 and PAPER.capacity == 4096
    assert all(PAPER.head_cycles(length) <= 2 * length + 46 for length in lengths)
    assert PAPER.head_cycles(4096) == 2 * 4096 + 46


@pytest.mark.parametrize("latency", [1, SMALL.depth - 3])
def test_memory_that_keeps_up(small, shipped_trace, latency):
    steps, _ = real_steps(SMALL, shipped_trace, 40)
    outcome = small.check(steps.stimulus([]), timing=MemoryTiming((latency, latency)))
    assert outcome.cycles == SMALL.cycles(steps.work, latency)


@pytest.mark.parametrize("prompt", [30, 40])
def test_protected_rows_stay_after_a_long_prompt(small, shipped_trace, prompt):
    """Without protection the first rows are evicted, as golden.algorithms.veda.voting explains.

    A prompt longer than the core's capacity is evicted row by row.
    """
    q, k, v, notes = layers_of(SMALL, shipped_trace)
    lost = []
    for protected in (0, 6):
        steps = Steps(SMALL)
        rows = (x[0] for x in (q, k, v))
        settings = {"target": 12, "prompt": prompt, "reserved": 6, "protected": protected}
        add_sequence(steps, *rows, prompt + 8, **settings)
        small.check(steps.stimulus(notes))
        kept = [set(range(6)) & set(slots) for slots in steps.kept[prompt:]]
        lost.append(6 - len(kept[-1]))
        assert len(steps.kept[-1]) == 12
        assert len(steps.kept[prompt - 1]) == min(prompt, SMALL.capacity - 1)
    assert lost[0] > 0 and lost[1] == 0


def test_what_is_in_memory(small, shipped_trace):
    """Each row is written once, read once for a group, never moved; no more rows than slots."""
    steps, _ = real_steps(SMALL, shipped_trace, 88, target=20)
    outcome = small.check(steps.stimulus([]))
    use = outcome.memories["memory"]
    kv_heads = SMALL.kv_heads
    assert use.rows_written == 88 * 2 * kv_heads
    assert use.rows_read == sum(map(SMALL.rows_read, steps.work))
    assert max(length for length, *_ in steps.work) > SMALL.depth
    contexts = use.contents.reshape(SMALL.contexts, kv_heads, 2, SMALL.capacity, -1)
    for rows, cache, used in zip(contexts, steps.core.contexts, (21, 22), strict=True):
        written = rows.any(axis=-1)
        assert (written == written[0, 0]).all() and written[0, 0].sum() == used
        for kind, expected in ((0, cache.k), (1, cache.v)):
            for head in range(kv_heads):
                live = to_bits(expected[head, : cache.length])
                kept = payload.pack(SMALL.row_layout, {"": live})
                found = {row.tobytes() for row in rows[head, kind]}
                assert all(row.tobytes() in found for row in kept)


def test_a_stray_write_is_found_in_a_row_that_no_step_reads(small, shipped_trace):
    """What the memory must hold names every row, those without a token too."""
    stimulus = real_steps(SMALL, shipped_trace, 12, target=4)[0].stimulus([])
    outcome = small.check(stimulus)
    contents = outcome.memories["memory"].contents
    row = SMALL.capacity - 1
    assert not contents[row].any()
    contents[row] = contents[0]
    [found] = compare_memories(stimulus, outcome)
    assert found.field.startswith(f"row {row}, ") and "one of 1 rows" in found.field


class WritesTwice(Component[VedaCoreParameters]):
    """The core; each row that it writes goes to the last row of its head too, and before."""

    summary, source = veda_core.VedaCore.summary, "tests"

    def ports(self) -> Ports:
        return veda_core.VedaCore(self.parameters).ports()

    def elaborate(self, platform):
        m = Module()
        m.submodules.core = core = veda_core.VedaCore(self.parameters)
        for name in ("command", "kv", "q", "response"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(core, name))
        for name in ("o", "report"):
            wiring.connect(m, getattr(core, name), wiring.flipped(getattr(self, name)))
        wanted, given, again = core.request, self.request, Signal()
        passes = ~wanted.payload.write | again
        m.d.comb += [
            given.valid.eq(wanted.valid),
            given.payload.eq(wanted.payload),
            wanted.ready.eq(given.ready & passes),
        ]
        with m.If(~passes):
            last = self.parameters.capacity - 1
            m.d.comb += given.payload.address.eq(wanted.payload.address | last)
        with m.If(given.valid & given.ready):
            m.d.sync += again.eq(~passes)
        return m


@pytest.mark.campaign
def test_a_core_that_writes_another_row_too_is_found(shipped_trace):
    stimulus = real_steps(SMALL, shipped_trace, 12, target=4)[0].stimulus([])
    faulty = generate(Block(WritesTwice), SMALL)
    [outcome] = CocotbSimulation(faulty, "icarus").run([(stimulus, "none")], 1)
    assert compare(stimulus, outcome.outputs, faulty.outputs, outcome.cycles_of) == []
    assert "row" in compare_memories(stimulus, outcome)[0].field


def test_invalid_scores_are_flagged(small):
    """NaN, plus infinity, all minus infinity; the next step is valid once the row is evicted."""
    steps = Steps(SMALL)
    fields = {"vote": True, "protected": 0, "a": A, "b": B}
    one = np.ones((1, 8), np.float16)
    kinds = [np.nan, np.inf, -np.inf]
    for kind in kinds:
        row = np.full((1, 8), kind, np.float16)
        steps.add(one, row, one, restart=True, evict=True, target=0, **fields)
        steps.add(one, one, one, restart=False, evict=False, target=0, **fields)
    small.check(steps.stimulus([]), "random", SLOW)
    bad, good = steps.results[::2], steps.results[1::2]
    assert [r.invalid.all() for r in bad] == [True] * 3
    assert [r.reports[0].invalid for r in bad] == [True, True, False]
    assert is_nan(bad[0].o).all() and is_nan(bad[1].o).all() and not bad[2].o.any()
    assert not any(r.invalid.any() or r.reports[0].invalid for r in good)
    assert all((r.o == one).all() for r in good)


THREE = VedaCoreParameters(1, 2, 1, 4, 4, 3, 4, position_bits=8, count_bits=4)


@pytest.mark.parametrize(
    "p", [SMALL, pytest.param(THREE, marks=pytest.mark.campaign)], ids=["two", "three"]
)
def test_a_command_of_too_many_heads_is_refused(p):
    """It makes no request, takes no rows and does not change the sequence.

    With 3 kv heads the next one's rows would lie beyond the cache, which ends the run.
    """
    core = Core(p)
    rows = RNG(7).standard_normal((4, 4, p.array.lanes)).astype(np.float16)
    steps, without = Steps(p), Steps(p)
    fields = {"vote": True, "protected": 0, "a": A, "b": B, "evict": True}
    for n in range(4):
        for run in (steps, without):
            settings = {"restart": n == 0, "group": 2, "target": 1}
            run.add(rows[n], rows[n - 1, :2], rows[n - 2, :2], **settings, **fields)
        heads = rows[n, : p.kv_heads + 1]
        settings = {"restart": n % 2 == 1, "group": 1, "target": 0}
        result = steps.add(heads, heads, heads, **settings, **fields)
        assert result.refused and result.reports[0].length == 1
    outcome, plain = core.check(steps.stimulus([])), core.check(without.stimulus([]))
    assert outcome.cycles == steps.stimulus([]).cycles
    for name in ("rows_read", "rows_written"):
        uses = (getattr(run.memories["memory"], name) for run in (outcome, plain))
        assert len(set(uses)) == 1
    core.check(random_steps(p, 60, RNG(8)).stimulus([]), "random", SLOW)


def test_commands_beyond_the_array_s_heads_are_refused():
    """A command's fields can hold more heads than the core has."""
    core = VedaCore(8, heads=5, kv_heads=3)
    row = np.ones((7, 4), np.float16)
    settings = {"a": A, "b": B}
    assert core.step(row[:6], row, row, group=6, **settings).refused
    assert core.step(row[:4], row, row, group=1, **settings).refused
    assert core.contexts[0].engine.tokens == 0 and core.contexts[0].k.size == 0
    assert not core.step(row[:5], row[:1], row[:1], group=5, **settings).refused


@pytest.mark.parametrize(
    "simulator", [pytest.param("verilator", marks=pytest.mark.campaign), "icarus"]
)
def test_reset_in_mid_step(simulator, shipped_trace):
    """A reset clears requests, scores, counts and the row map.

    The first stimulus's memory is too small for a later step, which ends the run at once.
    """
    timing = MemoryTiming((10, 40), reorder=True, seed=6)
    p = VedaCoreParameters(1, 2, 1, 32, 2, 2, 8, position_bits=8, count_bits=4, parallel=2)
    cut = real_steps(p, shipped_trace, 40, target=12)[0].stimulus([])
    clean = real_steps(p, shipped_trace, 16, target=6)[0].stimulus([])
    whole = cut.memories["memory"]
    rows = 3 * p.capacity + 11  # V of the second kv head, slot 11
    cut.memories["memory"] = dataclasses.replace(whole, contents=whole.contents[:rows])
    if simulator == "icarus":
        simulation = CocotbSimulation(generate(BLOCK, p), simulator)
        broken, outcome = simulation.run([(cut, "none"), (clean, "none")], 1, timing=timing)
    else:
        harness = Harness(generate(BLOCK, p))
        broken, outcome = (
            harness.run(stimulus, PATTERNS["none"], 1, timing) for stimulus in (cut, clean)
        )
    assert "memory" in broken.failure
    assert 0 < len(broken.outputs["o"]) < 40 * p.heads
    assert outcome.failure is None
    outputs = generate(BLOCK, p).outputs
    assert compare(clean, outcome.outputs, outputs, outcome.cycles_of) == []


@pytest.mark.campaign
def test_real_sequences_in_the_default_core(shipped_trace):
    """Every layer: a prompt of 64 and 256 steps with 128 rows kept, of 9 heads."""
    p = VedaCoreParameters()
    core = Core(p)
    q, k, v, notes = layers_of(p, shipped_trace)
    assert q.shape[1:] == (9, 512, 64)
    for layer in range(len(q)):
        steps = Steps(p)
        rows = (x[layer] for x in (q, k, v))
        add_sequence(steps, *rows, 320, target=128, prompt=64, reserved=32)
        stimulus = steps.stimulus(notes)
        assert len(stimulus.outputs["report"]) == 320 and len(stimulus.outputs["o"]) == 9 * 320
        assert core.check(stimulus).cycles == stimulus.cycles
        if layer == 0:
            core.check(stimulus, "random", SLOW)


@pytest.mark.campaign
def test_the_paper_s_core(shipped_trace):
    """All of it: 60 steps of 32 heads of their own, and 160 of the trace's with 100 rows kept."""
    core = Core(PAPER)
    steps, rng = Steps(PAPER), RNG(9)
    shape = 3, 60, PAPER.heads, PAPER.array.lanes
    rows = np.moveaxis(rng.standard_normal(shape).astype(np.float16), 2, 1)
    add_sequence(steps, *rows, 60, target=40, prompt=20, reserved=8)
    assert core.check(steps.stimulus([])).cycles == PAPER.cycles(steps.work)
    q, k, v, notes = layers_of(PAPER, shipped_trace)
    steps = Steps(PAPER)
    add_sequence(steps, q[0], k[0], v[0], 160, target=100, prompt=120, reserved=32, protected=4)
    assert max(length for length, *_ in steps.work) == 121
    core.check(steps.stimulus(notes), "random", SLOW)


@pytest.mark.campaign
@pytest.mark.parametrize("target", [31, 200])
def test_long_real_sequences(target, shipped_trace):
    """The suite's keep at most 24 rows."""
    p = SMALL if target < SMALL.capacity else VedaCoreParameters()
    q, k, v, notes = layers_of(p, shipped_trace)
    steps = Steps(p)
    for layer in range(len(q)):
        rows = (x[layer] for x in (q, k, v))
        tokens = min(2 * target, 1 << p.position_bits)
        add_sequence(steps, *rows, tokens, target=target, prompt=target // 2, reserved=16)
    Core(p).check(steps.stimulus(notes), "random", SLOW)


@pytest.mark.campaign
def test_capacity_of_the_paper_s_core(shipped_trace):
    """All 4096 rows with 8 PEs: a cache filled token by token, then evictions from a full one.

    The tokens of the trace's heads follow each other as one sequence.
    """
    p = VedaCoreParameters(2, 2, 2, PAPER.capacity, 1, 1, PAPER.depth, parallel=1)
    trace, d = shipped_trace, p.array.lanes
    q = fit(trace.q[:, :: trace.group].astype(np.float64) * trace.scale, d)
    q, k, v = (x.reshape(-1, 1, d) for x in (q, fit(trace.k, d), fit(trace.v, d)))
    last = p.capacity + 15
    steps = Steps(p)
    for t in range(last + 1):
        full = t >= p.capacity - 1
        fields = {"target": p.capacity - (5 if t == last else 1), "protected": 32, "a": A, "b": B}
        steps.add(q[t], k[t], v[t], restart=t == 0, vote=full or t % 32 == 31, evict=full, **fields)
    stimulus = steps.stimulus([])
    reports = [report for result in steps.results for report in result.reports]
    assert sum(report.evict for report in reports) == 17 + 4
    assert max(length for length, *_ in steps.work) == PAPER.capacity == 4096
    assert max(report.slot for report in reports) >= 32
    outcome = Core(p).check(stimulus)
    assert outcome.cycles == stimulus.cycles
    print(f"{outcome.cycles} cycles, {outcome.memories['memory'].rows_read} rows read")
