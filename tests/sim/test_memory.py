"""The memory model: contents, timing, and the same schedule from Python and from C++."""

import dataclasses
import random

import numpy as np
import pytest

from sim.core import payload
from sim.core.dram.timing import DramTiming, parse_timing
from sim.core.memory import Memory, MemoryFault, MemoryModel, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, Stimulus, compare, compare_memories
from sim.drivers.cocotb.runner import SIMULATORS, CocotbSimulation
from sim.drivers.harness import runner as harness
from sim.drivers.harness.runner import Harness
from tests.support.sim.duts import ReaderPair, RowReader, RowReaderParameters, Spinner, design

ROWS = 50
ARRIVAL = RowReaderParameters()
IN_ORDER = RowReaderParameters(ordered=True)
TIMINGS = {
    "fastest": MemoryTiming(),
    "fixed": MemoryTiming((50, 50)),
    "varying": MemoryTiming((5, 60), seed=3),
    "reordered": MemoryTiming((5, 60), reorder=True, seed=4),
    "narrow": MemoryTiming((1, 3), interval=4, seed=5),
    "narrow, reordered": MemoryTiming((2, 100), interval=3, reorder=True, seed=6),
}
# Maps that spread the few lines of these memories over rows of one bank, over banks, over both.
DRAMS = {
    text: parse_timing(text)
    for text in (
        "hbm2",
        "hbm2,clock=400,map=channel:column:bank:row,window=3,order=in",
        "hbm2,channels=2,clock=1733.333,map=column:row:channel:bank,hash=on",
        "lpddr4_3200,clock=1600,map=channel:column:row:bank:rank",
        "ddr3_1600,clock=100,map=column:channel:bank:rank:row",
        "sdr_133,clock=133,map=row:column:bank:channel,window=1,order=in",
        "sdr_133,channels=2,clock=50,map=column:row:channel:bank",
    )
}


def contents(p: RowReaderParameters, seed: int = 1) -> np.ndarray:
    source = random.Random(seed)
    rows = [source.getrandbits(p.row_bits) for _ in range(ROWS)]
    return payload.from_ints(rows, p.row_layout()["data"].shape)


def memory_of(p: RowReaderParameters) -> Memory:
    return Memory(contents(p), "request", "response", write="write", write_data="data")


def operation(p: RowReaderParameters, row: int, new: int | None) -> int:
    """Input beat that reads a row, or that writes it if there is new contents."""
    layout = p.input_layout()
    beat = row << layout["row"].offset
    if new is not None:
        beat |= 1 << layout["write"].offset | new << layout["data"].offset
    return beat


def requests_of(p: RowReaderParameters, operations: list[tuple[int, int | None]]) -> list[int]:
    """Request beats that a reader makes of its inputs; the reads have their tags counted."""
    layout, beats, tag = p.request_layout(), [], 0
    for row, new in operations:
        beat = tag % (1 << p.tag_bits) << layout["tag"].offset | row << layout["address"].offset
        if new is None:
            tag += 1
        else:
            beat |= 1 << layout["write"].offset | new << layout["data"].offset
        beats.append(beat)
    return beats


def stimulus_of(p: RowReaderParameters, operations: list[tuple[int, int | None]]) -> Stimulus:
    """Reads (row, None) and writes (row, new contents) and, in order, what the reads return."""
    store, answers = payload.to_ints(contents(p)), []
    layout = p.row_layout()
    for row, new in operations:
        if row >= ROWS:
            break
        if new is None:
            tag = len(answers) % (1 << p.tag_bits) << layout["tag"].offset
            answers.append(store[row] << layout["data"].offset | tag)
        else:
            store[row] = new
    return Stimulus(
        inputs={"i": payload.from_ints([operation(p, *o) for o in operations], p.input_layout())},
        outputs={"o": payload.from_ints(answers, layout)},
        transaction_of={"o": np.arange(len(answers))},
        transactions=len(answers),
        cycles=0,
        memories={"rows": memory_of(p)},
    )


def reads(count: int, seed: int = 1) -> list[tuple[int, None]]:
    source = random.Random(seed)
    return [(source.randrange(ROWS), None) for _ in range(count)]


def mixed(p: RowReaderParameters, count: int, rows: int = 6) -> list[tuple[int, int | None]]:
    """Reads and writes of few rows, so that many have equal addresses."""
    source, new = random.Random(7), payload.to_ints(contents(p, seed=8))
    return [
        (source.randrange(rows), new[k % ROWS] if source.random() < 0.4 else None)
        for k in range(count)
    ]


def run(p: RowReaderParameters, stimulus: Stimulus, timing: MemoryTiming, stall: str = "none"):
    return Harness(design(RowReader, p)).run(stimulus, PATTERNS[stall], 1, timing)


def mismatches(p: RowReaderParameters, stimulus: Stimulus, outcome) -> list:
    return compare(stimulus, outcome.outputs, design(RowReader, p).outputs, outcome.cycles_of)


@pytest.mark.parametrize("stall", PATTERNS)
@pytest.mark.parametrize("timing", TIMINGS)
def test_rows_in_order_through_a_reorder_buffer(timing, stall):
    stimulus = stimulus_of(IN_ORDER, reads(300))
    outcome = run(IN_ORDER, stimulus, TIMINGS[timing], stall)
    assert outcome.failure is None
    assert not mismatches(IN_ORDER, stimulus, outcome)
    use = outcome.memories["rows"]
    assert use.rows_read == 300 and use.rows_written == 0
    assert use.bytes_read == 300 * 70 // 8
    assert (use.contents == contents(IN_ORDER)).all()


@pytest.mark.parametrize("stall", PATTERNS)
@pytest.mark.parametrize("timing", TIMINGS)
def test_rows_as_they_arrive(timing, stall):
    """Each read is answered once, even with equal tags outstanding."""
    stimulus = stimulus_of(ARRIVAL, reads(300))
    outcome = run(ARRIVAL, stimulus, TIMINGS[timing], stall)
    assert outcome.failure is None
    if TIMINGS[timing].reorder:
        assert mismatches(ARRIVAL, stimulus, outcome)
    else:
        assert not mismatches(ARRIVAL, stimulus, outcome)
    assert sorted(payload.to_ints(outcome.outputs["o"])) == sorted(
        payload.to_ints(stimulus.outputs["o"])
    )


@pytest.mark.parametrize("p", [ARRIVAL, IN_ORDER], ids=["arrival", "in order"])
@pytest.mark.parametrize("timing", TIMINGS.values(), ids=list(TIMINGS))
def test_same_schedule_in_python_and_in_c(timing, p):
    same_schedule(p, timing, mixed(p, 400))


@pytest.mark.parametrize("timing", DRAMS.values(), ids=list(DRAMS))
def test_same_schedule_of_a_dram(timing):
    """Over more than a refresh, with requests that stall and responses that wait."""
    for p, rows, stall in (
        (ARRIVAL, ROWS, "none"),
        (ARRIVAL, 6, "bursts"),
        (IN_ORDER, ROWS, "none"),
    ):
        drawn = dataclasses.replace(timing, reorder=p is ARRIVAL and timing.reorder)
        use = same_schedule(p, drawn, mixed(p, 900, rows), stall)
        assert use.dram.counts.reads + use.dram.counts.writes > 0


def same_schedule(p, timing, operations, stall: str = "none"):
    """The harness' schedule of reads and writes is the model's; what its memory did."""
    stimulus = stimulus_of(p, operations)
    outcome = run(p, stimulus, timing, stall)
    use = outcome.memories["rows"]
    port = stimulus.memories["rows"].port(design(RowReader, p).outputs, design(RowReader, p).inputs)
    requests = requests_of(p, operations)
    model = MemoryModel(stimulus.memories["rows"].contents, timing, row_bits=p.row_bits)
    accepted = iter([*zip(use.accepted.tolist(), requests, strict=True), (-1, None)])
    offered = set(use.offered.tolist())  # where the stream waits, the model is not asked
    cycle, beat = next(accepted)
    answered, refused = [], 0
    for now in range(outcome.simulated):
        asked = stall == "none" or now in offered
        if asked and (response := model.response(now)) is not None:
            answered.append(port.response(*response))
        refused += not model.ready(now)
        if now == cycle:
            assert model.ready(now)
            model.request(now, *port.request(beat))
            cycle, beat = next(accepted)
    if isinstance(timing, DramTiming) and timing.window == 1:
        assert refused
    assert (model.use.offered == use.offered).all()
    assert (model.use.accepted == use.accepted).all()
    assert (model.use.rows == use.rows).all()
    assert (model.use.contents == use.contents).all()
    assert model.use.rows_read == use.rows_read
    assert model.use.rows_written == use.rows_written > 0
    if use.dram is not None and stall == "none":
        assert model.use.dram == use.dram
    if not p.ordered:
        assert answered == payload.to_ints(outcome.outputs["o"])
    return use


@pytest.mark.parametrize("reorder", [False, True])
def test_latency_is_within_its_bounds(reorder):
    timing = MemoryTiming((7, 40), reorder=reorder, seed=9)
    use = run(ARRIVAL, stimulus_of(ARRIVAL, reads(3000)), timing).memories["rows"]
    took = use.offered - use.accepted
    assert took.min() >= 7 and took.max() == 40
    drawn = np.array([timing.draw(number) for number in range(3000)])
    assert (took >= drawn).all()
    ordered = (np.diff(use.offered) > 0).all()
    assert ordered != reorder
    if reorder:  # one that falls due with an older one, or behind such, is late
        assert (took == drawn).mean() > 0.25


def test_a_request_alone_takes_what_was_drawn():
    for reorder in (False, True):
        timing = MemoryTiming((7, 40), interval=40, reorder=reorder, seed=9)
        model = MemoryModel(contents(ARRIVAL), timing)
        for number in range(200):
            model.request(1000 * number, 0, 0)
            due = 1000 * number + timing.draw(number)
            assert model.response(due - 1) is None and model.response(due) is not None


@pytest.mark.parametrize("latency", [1, 2, 50])
def test_fixed_latency(latency):
    outcome = run(ARRIVAL, stimulus_of(ARRIVAL, reads(100)), MemoryTiming((latency, latency)))
    use = outcome.memories["rows"]
    # One request a cycle from the first on; the reader adds nothing.
    assert (use.accepted == np.arange(100)).all()
    assert (outcome.cycles_of["o"] == np.arange(100) + latency).all()


@pytest.mark.parametrize("stall", PATTERNS)
@pytest.mark.parametrize("interval", [1, 2, 7])
def test_bandwidth_is_limited(interval, stall):
    timing = MemoryTiming((1, 30), interval=interval, reorder=True, seed=2)
    outcome = run(ARRIVAL, stimulus_of(ARRIVAL, reads(500)), timing, stall)
    offered = np.sort(outcome.memories["rows"].offered)
    assert (np.diff(offered) >= interval).all()
    if stall == "none" and interval > 1:
        assert np.median(np.diff(offered)) == interval  # and the limit is used


@pytest.mark.parametrize("p", [ARRIVAL, IN_ORDER], ids=["arrival", "in order"])
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("stall", ["none", "random"])
def test_a_read_sees_every_earlier_write_and_no_later_one(stall, timing, p):
    stimulus = stimulus_of(p, mixed(p, 400))
    outcome = run(p, stimulus, TIMINGS[timing], stall)
    assert outcome.failure is None
    if p.ordered:
        assert not mismatches(p, stimulus, outcome)
    else:
        assert sorted(payload.to_ints(outcome.outputs["o"])) == sorted(
            payload.to_ints(stimulus.outputs["o"])
        )
    after = payload.to_ints(contents(p))
    for row, new in mixed(p, 400):
        after[row] = after[row] if new is None else new
    assert payload.to_ints(outcome.memories["rows"].contents) == after
    assert payload.to_ints(stimulus.memories["rows"].contents) == payload.to_ints(contents(p))


def test_writes_alone():
    stimulus = stimulus_of(ARRIVAL, [(row, row + 1) for row in range(ROWS)])
    use = run(ARRIVAL, stimulus, MemoryTiming()).memories["rows"]
    assert payload.to_ints(use.contents) == list(range(1, ROWS + 1))
    assert (use.rows_read, use.rows_written, use.bytes_written) == (0, ROWS, ROWS * 70 // 8)
    assert (use.offered == -1).all()


@pytest.mark.parametrize("write", [False, True])
def test_address_out_of_range_is_reported(write):
    operations = [*reads(5), (ROWS, 3 if write else None), *reads(5)]
    outcome = run(ARRIVAL, stimulus_of(ARRIVAL, operations), MemoryTiming())
    does = "writes" if write else "reads"
    sentence = f"request 5 {does} row 50 in cycle 5, but there are 50 rows"
    assert outcome.failure == f"memory rows: {sentence}"
    model = MemoryModel(contents(ARRIVAL), MemoryTiming(), name="rows")
    for cycle in range(5):
        model.request(cycle, 0, 0)
    with pytest.raises(MemoryFault, match=f"^memory rows: {sentence}$"):
        model.request(5, 0, ROWS, 3 if write else None)


def test_a_memory_slower_than_the_patience_is_no_hang():
    stimulus = stimulus_of(ARRIVAL, reads(3))
    assert run(ARRIVAL, stimulus, MemoryTiming((9000, 9000))).failure is None


def test_memory_traffic_without_end_is_a_hang(monkeypatch):
    monkeypatch.setattr(harness, "MEMORY_ONLY", 1000)
    subject = design(Spinner, ARRIVAL)
    memory = dataclasses.replace(memory_of(ARRIVAL), write=None, write_data=None)
    nothing = payload.from_ints([0], ARRIVAL.row_layout())
    stimulus = Stimulus({}, {"o": nothing}, {"o": np.arange(1)}, 1, 0, memories={"rows": memory})
    outcome = Harness(subject).run(stimulus, PATTERNS["none"], 1)
    cycles = 1000 + harness.MEMORY_ONLY_PER_ROW * ROWS
    assert outcome.failure == f"only memories transferred for {cycles} cycles before cycle {cycles}"


def test_two_memories_each_with_its_timing():
    subject = design(ReaderPair, IN_ORDER)
    stimuli = [stimulus_of(IN_ORDER, reads(200, seed)) for seed in (1, 2)]
    other = payload.to_ints(contents(IN_ORDER, seed=3))
    stimulus = Stimulus(
        inputs={f"i__{k}": stimuli[k].inputs["i"] for k in range(2)},
        outputs={f"o__{k}": stimuli[k].outputs["o"] for k in range(2)},
        transaction_of={f"o__{k}": np.arange(200) for k in range(2)},
        transactions=400,
        cycles=0,
        memories={
            name: Memory(rows, f"request__{k}", f"response__{k}", write="write", write_data="data")
            for k, (name, rows) in enumerate(
                {"near": contents(IN_ORDER), "far": contents(IN_ORDER, seed=3)}.items()
            )
        },
    )
    layout = IN_ORDER.row_layout()
    answers = [
        other[row] << layout["data"].offset | k % 16 << layout["tag"].offset
        for k, (row, _) in enumerate(reads(200, 2))
    ]
    stimulus.outputs["o__1"] = payload.from_ints(answers, layout)
    timing = {"near": MemoryTiming((2, 2)), "far": MemoryTiming((30, 90), reorder=True)}
    outcome = Harness(subject).run(stimulus, PATTERNS["none"], 1, timing)
    assert outcome.failure is None
    assert not compare(stimulus, outcome.outputs, subject.outputs, outcome.cycles_of)
    took = {name: use.offered - use.accepted for name, use in outcome.memories.items()}
    assert (took["near"] == 2).all()
    assert took["far"].min() >= 30


def test_a_memory_without_tags():
    stimulus = stimulus_of(ARRIVAL, reads(40))
    stimulus.memories["rows"] = dataclasses.replace(stimulus.memories["rows"], tag=None)
    tag = ARRIVAL.row_layout()["tag"].offset
    untagged = [beat & (1 << tag) - 1 for beat in payload.to_ints(stimulus.outputs["o"])]
    outcome = run(ARRIVAL, stimulus, MemoryTiming((3, 9)))
    assert payload.to_ints(outcome.outputs["o"]) == untagged


@pytest.mark.parametrize("rows", [None, 0, 3])
def test_a_memory_that_a_run_does_not_return_is_a_mismatch(rows):
    p = RowReaderParameters()
    stimulus = stimulus_of(p, reads(2))
    whole = contents(p)
    memories = {"rows": dataclasses.replace(memory_of(p), after=whole)}
    stimulus = dataclasses.replace(stimulus, memories=memories)
    use = MemoryModel(whole, MemoryTiming()).use

    def found(memories: dict) -> list:
        return compare_memories(stimulus, Outcome({}, {}, 0, 0, memories=memories))

    assert found({"rows": use}) == []
    some = {} if rows is None else {"rows": dataclasses.replace(use, contents=whole[:rows])}
    [mismatch] = found(some)
    assert (mismatch.stream, mismatch.field) == ("rows", "contents")
    assert (mismatch.expected, mismatch.got) == (f"{len(whole)} rows", f"{rows or 0} rows")


def test_a_stream_belongs_to_one_memory():
    for change in ("another memory", "an output of the job"):
        stimulus = stimulus_of(ARRIVAL, reads(3))
        if change == "another memory":
            stimulus.memories["more"] = memory_of(ARRIVAL)
        else:
            stimulus.outputs["request"] = stimulus.outputs["o"]
        with pytest.raises(ValueError, match="stream request must belong to one memory alone"):
            run(ARRIVAL, stimulus, MemoryTiming())


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_cocotb_gives_the_harness_schedule(simulator):
    subject, stimulus = design(RowReader, IN_ORDER), stimulus_of(IN_ORDER, mixed(IN_ORDER, 120))
    timing = TIMINGS["narrow, reordered"]
    wanted = run(IN_ORDER, stimulus, timing).memories["rows"]
    simulation = CocotbSimulation(subject, simulator)
    outside = stimulus_of(IN_ORDER, [*reads(5), (ROWS + 9, None)])
    outcome, stalled, refused = simulation.run(
        [(stimulus, "none"), (stimulus, "random"), (outside, "none")], 1, timing=timing
    )
    assert outcome.failure is None
    assert not mismatches(IN_ORDER, stimulus, outcome)
    use = outcome.memories["rows"]
    assert (use.accepted == wanted.accepted).all() and (use.offered == wanted.offered).all()
    assert (use.contents == wanted.contents).all()
    assert stalled.failure is None and not mismatches(IN_ORDER, stimulus, stalled)
    assert refused.failure.startswith("memory rows: request 5 reads row 59 in cycle ")
