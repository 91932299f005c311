"""Sessions: the same design, driven step by step without a reset between."""

import dataclasses

import numpy as np
import pytest

from hw.catalogue import find
from sim.core import payload
from sim.core.design import generate
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.drivers.harness.runner import Harness
from sim.drivers.harness.session import Session
from tests.sim.test_memory import IN_ORDER, memory_of, mixed, operation, stimulus_of
from tests.support.sim.duts import RowReader, design

SIZES = (1, 7, 30, 2, 60)
TIMINGS = {
    "fastest": MemoryTiming(),
    "slow": MemoryTiming((5, 60), interval=3, seed=3),
}


@pytest.fixture(scope="module")
def reader():
    return design(RowReader, IN_ORDER)


def in_steps(session: Session, operations: list) -> tuple[np.ndarray, list[int]]:
    """Answers to reads and writes, offered in steps of different sizes, and each step's cycles."""
    answers, cycles, first = [], [], 0
    while first < len(operations):
        part = operations[first : first + SIZES[len(cycles) % len(SIZES)]]
        beats = payload.from_ints([operation(IN_ORDER, *o) for o in part], IN_ORDER.input_layout())
        reads = sum(new is None for _, new in part)
        outcome = session.step({"i": beats}, {"o": reads})
        assert outcome.failure is None
        answers.append(outcome.outputs["o"])
        cycles.append(outcome.cycles)
        first += len(part)
    return np.concatenate(answers), cycles


@pytest.mark.parametrize("timing", TIMINGS.values(), ids=list(TIMINGS))
@pytest.mark.parametrize("stall", PATTERNS)
def test_steps_make_what_one_run_makes(reader, timing, stall):
    """Registers, reorder slots and memory rows live on from step to step."""
    operations = mixed(IN_ORDER, 300)
    session = Session(reader, {"rows": memory_of(IN_ORDER)}, timing, PATTERNS[stall])
    answers, cycles = in_steps(session, operations)
    assert np.array_equal(answers, stimulus_of(IN_ORDER, operations).outputs["o"])
    assert session.cycle >= sum(cycles) > 300
    whole = Harness(reader).run(stimulus_of(IN_ORDER, operations), PATTERNS["none"], 1, timing)
    use = session.uses()["rows"]
    assert np.array_equal(use.contents, whole.memories["rows"].contents)
    assert use.rows_read == whole.memories["rows"].rows_read == len(answers)
    # Of the last step alone: a session of millions of requests does not list them all.
    assert len(use.accepted) <= max(SIZES) < use.rows_read and use.accepted.min() > 0


def test_memories_may_get_another_timing(reader):
    """They keep their rows and count from nothing, as in a run that begins with those rows."""
    session = Session(reader, {"rows": memory_of(IN_ORDER)})
    before, after = (mixed(IN_ORDER, count) for count in (60, 90))
    in_steps(session, before)
    rows = session.contents["rows"].copy()
    slow = MemoryTiming((9, 9))
    session.retime(slow)
    assert session.timings["rows"] == slow and session.cycle == 0
    answers, _ = in_steps(session, after)
    written = [row for row, new in after if new is not None]
    use = session.uses()["rows"]
    assert use.rows_written == len(written) and use.rows_read == len(answers) == 90 - len(written)
    fresh = Session(reader, {"rows": dataclasses.replace(memory_of(IN_ORDER), contents=rows)}, slow)
    # The last word is the number of the response since the reset.
    assert np.array_equal(in_steps(fresh, after)[0][:, :2], answers[:, :2])


def test_sessions_are_apart(reader):
    """Two of one design share its code and nothing else."""
    one, other = (Session(reader, {"rows": memory_of(IN_ORDER)}) for _ in range(2))
    operations = mixed(IN_ORDER, 100)
    in_steps(other, [(row, 5) for row in range(6)])
    answers, _ = in_steps(one, operations)
    assert np.array_equal(answers, stimulus_of(IN_ORDER, operations).outputs["o"])


def test_cycles_count_from_the_step():
    block = find("stream.skid_buffer")
    session = Session(generate(block, block.parameters_class.preset("small")))
    for first in (0, 10, 20):
        beats = np.arange(first, first + 5, dtype=np.uint32)[:, None]
        outcome = session.step({"i": beats}, {"o": 5})
        assert outcome.outputs["o"].tolist() == beats.tolist() and outcome.cycles == 6
        assert outcome.cycles_of["o"].tolist() == [1, 2, 3, 4, 5]


def test_a_step_may_go_on_after_its_last_beat():
    block = find("stream.skid_buffer")
    session = Session(generate(block, block.parameters_class.preset("small")))
    for steps in (1, 2):
        outcome = session.step({"i": np.arange(5, dtype=np.uint32)[:, None]}, {"o": 4}, drain=10)
        # The beat that was not expected arrives in the cycles after the last one.
        assert outcome.outputs["o"][:, 0].tolist() == [0, 1, 2, 3, 4]
        assert outcome.cycles == 5 and session.cycle == steps * (5 + 10)


def test_a_beat_too_few_is_a_hang_and_one_too_many_is_seen():
    block = find("stream.skid_buffer")
    session = Session(generate(block, block.parameters_class.preset("small")))
    beats = np.arange(3, dtype=np.uint32)[:, None]
    assert "no transfer for" in session.step({"i": beats}, {"o": 4}).failure
    outcome = session.step({"i": beats}, {"o": 2})
    assert outcome.failure is None and len(outcome.outputs["o"]) == 3
