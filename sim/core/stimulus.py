"""What a testbench states of a run: input beats, expected output beats, predicted cycles.

A testbench knows nothing of simulators. It turns a configuration and real or random operands into a
:class:`Stimulus`; the cocotb driver and the compiled harness both run any stimulus.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sim.core import payload

if TYPE_CHECKING:
    from golden.trace import Trace
    from hw.parameters import Parameters
    from sim.core.design import Design

SESSION_PAUSE = 2
"""Cycles from the last beat of a session's step to the first offer of the next."""


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One difference between RTL and golden model."""

    stream: str
    transaction: int
    beat: int
    field: str
    expected: int | str
    got: int | str
    cycle: int | None = None

    def __str__(self) -> str:
        when = "" if self.cycle is None else f", cycle {self.cycle}"
        return (
            f"transaction {self.transaction}, stream {self.stream}, beat {self.beat}, "
            f"field {self.field}{when}: expected {self.expected}, got {self.got}"
        )


@dataclasses.dataclass
class Stimulus:
    """A block's stimulus and its expected response.

    inputs, outputs
        Stream name to ``uint32[beats, words]``, packed little end first by :mod:`sim.core.payload`.
    transaction_of
        Output stream name to ``int[beats]``: the transaction each output beat belongs to.
    transactions
        Transactions compared, as the block's users count them (vectors, products, beats).
    cycles
        Cycles that the block's formula predicts from the first input beat offered to the last
        output beat accepted, both included, when nothing stalls.
    band
        Fewest and most cycles of such a run, for a block whose cycles depend on what it decides by
        timing; `cycles` is then an estimate. None: exactly `cycles`.
    notes
        How the testbench changed the trace to make it fit, one sentence each.
    memories
        Name to :class:`sim.core.memory.Memory`: request and response streams served by a memory
        model instead of `inputs` and `outputs`.
    stall
        Name of the stall pattern, set by the driver: a testbench whose output order depends on the
        order of arrival compares accordingly.
    room
        Output stream name to the most beats that it may have, for streams whose number of beats
        depends on timing; they have no beats in `outputs`, and none ends a run.
    timings
        Name to :class:`sim.core.memory.MemoryTiming` of each memory, set by the driver likewise.
    strays
        Input stream name to beats that the block must not accept after the run, such as responses
        that it did not request; the compiled harness offers each of them for a cycle.
    serves
        Whether copies of the memories answer in the random traffic before the run's reset, too, so
        that the reset comes in the middle of what the block does with responses.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    transaction_of: dict[str, np.ndarray]
    transactions: int
    cycles: int
    notes: list[str] = dataclasses.field(default_factory=list)
    memories: dict = dataclasses.field(default_factory=dict)
    stall: str = "none"
    band: tuple[int, int] | None = None
    room: dict[str, int] = dataclasses.field(default_factory=dict)
    timings: dict = dataclasses.field(default_factory=dict)
    strays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    serves: bool = False

    def cycle_range(self, outcome: "Outcome") -> tuple[int, int]:
        """Fewest and most cycles of a run where nothing stalls and memories are the fastest.

        outcome
            Outcome of the run: a subclass may see from its outputs what the block decided.
        """
        return self.band or (self.cycles, self.cycles)

    def wrong_cycles(self, outcome: "Outcome") -> str | None:
        """What is wrong with the cycles of such a run; None if nothing is."""
        fewest, most = self.cycle_range(outcome)
        if fewest <= outcome.cycles <= most:
            return None
        formula = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"took {outcome.cycles} cycles where the formula says {formula}"


@dataclasses.dataclass
class Outcome:
    """What a simulator returned for a stimulus.

    outputs
        Stream name to ``uint32[beats, words]`` as received.
    cycles_of
        Stream name to ``int64[beats]``: the cycle in which each beat was accepted. Cycle 0 is the
        first in which inputs are offered.
    cycles
        Cycles up to the last transfer, that one included.
    simulated
        All cycles simulated, for measurements of speed.
    failure
        Why the run ended early: a broken stream rule or a hang; None if it did not.
    memories
        Name to :class:`sim.core.memory.MemoryUse`: what each memory did, and its contents
        afterwards.
    """

    outputs: dict[str, np.ndarray]
    cycles_of: dict[str, np.ndarray]
    cycles: int
    simulated: int
    failure: str | None = None
    memories: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class ShownRun:
    """A run on real data whose outputs equal the model's, decoded, for a picture of it.

    inputs, outputs
        Stream name to its beats' leaf fields, ``uint64[beats]`` by dotted path; outputs are those
        that the simulator returned.
    """

    parameters: Any
    inputs: dict[str, dict[str, np.ndarray]]
    outputs: dict[str, dict[str, np.ndarray]]

    @classmethod
    def of(cls, design: "Design", stimulus: Stimulus, outcome: Outcome) -> "ShownRun":
        """From a stimulus and what the simulator returned for it."""

        def decoded(layouts: dict, beats: dict) -> dict:
            return {name: payload.unpack(layouts[name], of) for name, of in beats.items()}

        return cls(
            design.parameters,
            decoded(design.inputs, stimulus.inputs),
            decoded(design.outputs, outcome.outputs),
        )


class Testbench(Protocol):
    """A module's ``testbench`` object, in ``sim.testbenches.<folder>.<block>``.

    One whose runs are worth a picture also has ``shown(run, figure)``, which draws a
    :class:`ShownRun` into a matplotlib figure and returns the caption.
    """

    def default_vectors(self, parameters: "Parameters") -> int:
        """Transactions of each kind that Icarus simulates in seconds."""
        ...

    def stimulus(
        self, parameters: "Parameters", trace: "Trace | None", vectors: int, seed: int
    ) -> Stimulus:
        """`vectors` transactions from `trace`, or from corner cases and random data without one."""
        ...


def compare(
    stimulus: Stimulus, got: dict[str, np.ndarray], layouts: dict, cycles_of: dict
) -> list[Mismatch]:
    """Every output beat that differs from the expected one, in stream order.

    got
        Stream name to ``uint32[beats, words]`` as received; missing and extra beats are mismatches.
    layouts
        Stream name to payload shape.
    cycles_of
        Stream name to ``int[beats]``, the cycle in which each beat was accepted.
    """
    found = []
    for stream, expected in stimulus.outputs.items():
        received, transactions = got[stream], stimulus.transaction_of[stream]
        common = min(len(expected), len(received))
        differs = np.flatnonzero((expected[:common] != received[:common]).any(axis=1))
        for beat in differs:
            field, want, have = payload.first_difference(
                layouts[stream], expected[beat], received[beat]
            )
            cycle = int(cycles_of[stream][beat])
            found.append(
                Mismatch(stream, int(transactions[beat]), int(beat), field, want, have, cycle)
            )
        if len(expected) > common:
            first = int(transactions[common])
            found.append(Mismatch(stream, first, common, "beat", "a beat", "nothing"))
        elif len(received) > common:
            cycle = int(cycles_of[stream][common])
            found.append(
                Mismatch(stream, stimulus.transactions, common, "beat", "nothing", "a beat", cycle)
            )
    return found


def compare_memories(stimulus: Stimulus, outcome: Outcome) -> list[Mismatch]:
    """The first row of each memory that differs from what the run must leave.

    A memory whose rows the outcome lacks is a mismatch too: every driver returns them, a board by
    reading them back.
    """
    found = []
    for name, memory in stimulus.memories.items():
        if memory.after is None:
            continue
        use = outcome.memories.get(name)
        contents = memory.after[:0] if use is None else use.contents
        if len(contents) != len(memory.after):
            want, got = f"{len(memory.after)} rows", f"{len(contents)} rows"
            found.append(Mismatch(name, stimulus.transactions, 0, "contents", want, got))
            continue
        differs = np.flatnonzero((contents != memory.after).any(axis=1))
        if len(differs):
            row = int(differs[0])
            words = np.flatnonzero(contents[row] != memory.after[row])
            want, got = (f"{rows[row, words[0]]:#010x}" for rows in (memory.after, contents))
            field = f"row {row}, word {words[0]}, one of {len(differs)} rows that differ"
            found.append(Mismatch(name, stimulus.transactions, 0, field, want, got))
    return found
