"""Contexts whose state is in the memory: fetched before a job, written back before another's."""

import dataclasses

import numpy as np
import pytest

from golden.veda.state_places import Move, StatePlaces
from hw.parameters import ParameterError
from hw.veda.core_work import MovedWork, StepWork
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare, compare_memories
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.testbenches.veda.veda_core import Steps, random_steps, real_steps
from tests.veda.test_veda_core import RNG, Core

FIVE = dataclasses.replace(VedaCoreParameters.preset("small"), contexts=5, resident=2)
FAR = MemoryTiming((1, 100), reorder=True, seed=3)


@pytest.fixture(scope="module")
def five():
    return Core(FIVE)


def step_rows(steps: Steps) -> int:
    """Rows of K and V that the steps read."""
    work = [step.work if isinstance(step, MovedWork) else step for step in steps.work]
    return sum(steps.parameters.rows_read(step) for step in work if isinstance(step, StepWork))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_contexts_in_any_order_under_stalls(five, shipped_trace, seed):
    """Every bit, of the memory's words of state too; rows read by kind, and cycles."""
    for steps in (random_steps(FIVE, 120, RNG(seed)), real_steps(FIVE, shipped_trace, 60)[0]):
        stimulus = steps.stimulus([])
        for stall in PATTERNS:
            for timing in (FASTEST, FAR):
                outcome = five.check(stimulus, stall, timing, seed)
                assert (
                    outcome.memories["memory"].rows_read == step_rows(steps) + steps.state_rows[1]
                )
                if (stall, timing) == ("none", FASTEST):
                    assert stimulus.wrong_cycles(outcome) is None


def test_a_few_steps_of_each_context(five):
    steps = random_steps(FIVE, 40, RNG(1))
    stimulus = steps.stimulus([])
    outcome = five.check(stimulus, "none", FAR)
    assert steps.state_rows[0] > 4 and steps.state_rows[1] > 4
    assert outcome.memories["memory"].rows_read == step_rows(steps) + steps.state_rows[1]
    assert stimulus.wrong_cycles(five.check(stimulus)) is None


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["products", "prompts"])
def test_beside_products_and_blocks(preset):
    p = dataclasses.replace(VedaCoreParameters.preset(preset), contexts=5, resident=2)
    core = Core(p)
    for seed in range(4):
        stimulus = random_steps(p, 60, RNG(seed)).stimulus([])
        assert stimulus.wrong_cycles(core.check(stimulus)) is None
        for stall in PATTERNS:
            core.check(stimulus, stall, FAR, seed)


def test_a_place_is_given_in_turn_but_not_the_latest():
    places = StatePlaces(2)
    moves = [places.command(context) for context in (3, 1, 1, 2, 3)]
    assert moves == [Move(None, False), Move(None, False), None, Move(3, False), Move(1, True)]


def test_results_do_not_depend_on_where_state_is():
    """The same commands by a core with all state on the chip, and the words that are compared."""
    whole = dataclasses.replace(FIVE, resident=0)
    one, other = (random_steps(p, 60, RNG(3)) for p in (FIVE, whole))
    assert all(
        np.array_equal(a.o, b.o, equal_nan=True) and a.reports == b.reports
        for a, b in zip(one.results, other.results, strict=True)
    )
    assert one._state.any()


@pytest.mark.parametrize(
    "simulator", ["harness", pytest.param("icarus", marks=pytest.mark.campaign)]
)
def test_reset_in_mid_move(five, simulator):
    """A reset forgets which contexts have places, and which have state in the memory.

    The first stimulus's memory ends within a context's state, so its write-back ends the run.
    """
    cut, clean = (random_steps(FIVE, 40, RNG(seed)).stimulus([]) for seed in (1, 2))
    whole = cut.memories["memory"]
    rows = FIVE.mover.first_row + 2 * FIVE.mover.rows + 1
    cut.memories["memory"] = dataclasses.replace(whole, contents=whole.contents[:rows])
    if simulator == "icarus":
        simulation = CocotbSimulation(five.design, simulator)
        broken, outcome = simulation.run([(cut, "none"), (clean, "none")], 1, timing=FAR)
    else:
        five.harness.reset()
        broken, outcome = (
            five.harness.run(stimulus, PATTERNS["none"], 1, FAR) for stimulus in (cut, clean)
        )
    assert "memory" in broken.failure
    assert 0 < len(broken.outputs["report"]) < len(cut.outputs["report"])
    assert outcome.failure is None
    assert compare(clean, outcome.outputs, five.design.outputs, outcome.cycles_of) == []
    assert compare_memories(clean, outcome) == []


@pytest.mark.parametrize("resident", [1, 6, -1])
def test_resident_contexts_that_are_refused(resident):
    with pytest.raises(ParameterError, match="^resident must be 0, or 2 to the contexts, 5"):
        dataclasses.replace(FIVE, resident=resident)
