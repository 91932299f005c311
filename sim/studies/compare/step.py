"""A step of one layer on a design, and its run in the compiled harness."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sim.core.design import Design
from sim.core.dram.timing import DramTiming
from sim.core.memory import FASTEST, Memory, MemoryTiming
from sim.core.stimulus import Outcome, Stimulus, compare, compare_memories
from sim.core.tools import ToolError
from sim.drivers.harness.session import Session
from sim.drivers.run import load_testbench
from sim.studies.compare.accesses import Accesses, accesses, counted

DRAIN = 64
"""Cycles after a step's last output: more than its last writes take."""

K, V, OTHER = range(3)
KINDS = "k", "v", "other"


@dataclasses.dataclass
class LayerStep:
    """A layer's decode step, from the state that a sequence has reached.

    stimulus
        The step, compared with the bit-exact model; its `memories` say what they hold after it.
    memories
        Memories before anything, by name.
    kind_of
        Kind (K, V, OTHER) of each row of a memory.
    knob
        Settings that decide what is read, in words.
    before
        Beats and numbers of expected beats of steps that bring the design to its state, on the
        fastest memory; they are not measured.
    begin
        Values of registers at reset, of a design made by :func:`begun`.
    """

    design: Design
    stimulus: Stimulus
    memories: dict[str, Memory]
    kind_of: Callable[[np.ndarray], np.ndarray]
    knob: str
    before: list[tuple[dict[str, np.ndarray], dict[str, int]]] = dataclasses.field(
        default_factory=list
    )
    begin: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Ran:
    """A step that was run.

    accesses
        Accesses to the memories inside the design, in the step alone.
    """

    outcome: Outcome
    accesses: list[Accesses]

    @property
    def cycles(self) -> int:
        return self.outcome.cycles


def run_step(step: LayerStep, timing: MemoryTiming) -> Ran:
    """The step in the RTL, after what comes before it.

    :raises ToolError: if an output or a row of a memory differs from the bit-exact model's, or on
        the fastest memory the cycles from the predicted ones.
    """
    stimulus = step.stimulus
    design, stores = counted(step.design)
    begin: dict[str, Any] = {f"begin_{name}": value for name, value in step.begin.items()}
    session = Session(design, step.memories, FASTEST, **begin)
    for inputs, expected in step.before:
        refuse(design, session.step(inputs, expected, DRAIN).failure)
    session.retime(divided(timing, len(step.memories)))
    expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
    begun = session.observed()
    outcome = session.step(stimulus.inputs, expected, DRAIN)
    inside = accesses(stores, begun, session.observed())
    outcome.memories = session.uses()
    for use in outcome.memories.values():
        use.contents = use.contents.copy()
    session.close()
    refuse(design, outcome.failure)
    stimulus.stall, stimulus.timings = "none", session.timings
    check = getattr(load_testbench(design.block), "compare", compare)
    found = check(stimulus, outcome.outputs, design.outputs, outcome.cycles_of)
    found = found or compare_memories(stimulus, outcome)
    refuse(design, found[0] if found else None)
    if timing.is_fastest:
        refuse(design, stimulus.wrong_cycles(outcome))
    return Ran(outcome, inside)


def refuse(design: Design, what: object) -> None:
    """:raises ToolError: if there is something wrong."""
    if what is not None:
        raise ToolError(f"{design.block.name}: {what}")


def divided(timing: MemoryTiming, memories: int) -> MemoryTiming:
    """The timing of one of n memories, among which a DRAM's channels are divided."""
    if not isinstance(timing, DramTiming):
        return timing
    channels = timing.standard.channels // memories
    standard = dataclasses.replace(timing.standard, channels=channels)
    return dataclasses.replace(timing, standard=standard)


def bytes_of(step: LayerStep, outcome: Outcome) -> dict[str, int]:
    """Bytes read and written by kind; kinds without any are left out but for K and V read."""
    found = {f"{kind}_{way}": 0 for way in ("read", "written") for kind in KINDS}
    for use in outcome.memories.values():
        assert use.rows is not None
        for way, chosen in (
            ("read", use.rows[use.rows >= 0]),
            ("written", ~use.rows[use.rows < 0]),
        ):
            for kind, count in enumerate(np.bincount(step.kind_of(chosen), minlength=len(KINDS))):
                found[f"{KINDS[kind]}_{way}"] += int(count) * use.row_bits // 8
    always = "k_read", "v_read"
    return {name: count for name, count in found.items() if count or name in always}
