"""A simulated accelerator that keeps its state from step to step: registers, memories, clock."""

import numpy as np

from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, Memory, MemoryTiming, MemoryUse, timings_of
from sim.core.stalls import PATTERNS, Stall
from sim.core.stimulus import Outcome
from sim.drivers.harness.runner import EXTRA_BEATS, Harness


class Session:
    """One instance of a design, reset once, then driven step by step.

    A step offers beats to the inputs and ends with the cycle in which the last expected output beat
    and the last input beat have been transferred. What the design still does then, such as writing
    to its memory, goes on in the next step, as on a chip. Sessions of one design share its compiled
    code; each has its own model, so that threads may step different sessions at once.

    memories
        Name to :class:`sim.core.memory.Memory`, bound for the whole session; ``contents`` holds
        their present rows.
    timing
        Timing of all memories, as far as they may answer out of order; ``timings`` has each one's.
    stall
        Stall pattern of every stream; none by default.
    """

    def __init__(
        self,
        design: Design,
        memories: dict[str, Memory] | None = None,
        timing: MemoryTiming = FASTEST,
        stall: Stall = PATTERNS["none"],
        seed: int = 1,
        **constants: int,
    ):
        self._harness, self._design, self._stall = Harness(design), design, stall
        self._harness.reset(**constants)
        self._harness.seed(seed, stall)
        self._memories = memories = memories or {}
        self.contents = {name: np.array(m.contents, np.uint32) for name, m in memories.items()}
        self._offer(design.inputs, {})
        self._collect(design.outputs, {})
        self.timings = timings_of(memories, timing)
        self._harness.bind(memories, self.contents, self.timings)
        bound = {stream for m in memories.values() for stream in (m.request, m.response)}
        self._inputs = {name: s for name, s in design.inputs.items() if name not in bound}
        self._outputs = {name: s for name, s in design.outputs.items() if name not in bound}
        self.cycle = 0

    def step(
        self, inputs: dict[str, np.ndarray], expected: dict[str, int], drain: int = 0
    ) -> Outcome:
        """Offer packed beats, name to ``uint32[beats, words]``; collect that many of each output.

        Streams left out have none. Cycles of the outcome count from the step's first.

        drain
            Cycles that the step goes on after the last beat and the last transfer of a memory, so
            that the design's writes are done; the outcome's `cycles` are without them.
        """
        held = self._offer(self._inputs, inputs)
        received, cycles_of = self._collect(self._outputs, expected)
        limits = self._harness.limits(self.contents, self.timings, drain)
        outcome = self._harness.go_on(self.cycle, limits)
        del held  # the model read them until here
        for name in self._outputs:
            count = self._harness.received(name)
            outcome.outputs[name] = received[name][:count]
            outcome.cycles_of[name] = cycles_of[name][:count] - self.cycle
        self.cycle += outcome.simulated
        return outcome

    def retime(self, timing: MemoryTiming) -> None:
        """From here on the memories have another timing; no response may be outstanding.

        They begin anew at cycle 0, with the rows that they hold.
        """
        self.timings = timings_of(self._memories, timing)
        self._harness.unbind()
        self._harness.bind(self._memories, self.contents, self.timings)
        self.cycle = 0

    def write_rows(self, memory: str, first: int, rows: np.ndarray) -> None:
        """The host writes rows of a memory from `first` on, whatever the design wrote there."""
        self.contents[memory][first : first + len(rows)] = rows

    def _offer(self, streams: dict, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        held = []
        for name, shape in streams.items():
            beats = inputs.get(name, np.zeros((0, payload.words(shape)), np.uint32))
            held.append(np.ascontiguousarray(beats, np.uint32))
            self._harness.source(name, held[-1], self._stall)
        return held

    def _collect(self, streams: dict, expected: dict[str, int]) -> tuple[dict, dict]:
        """Room for each stream's beats and the cycles in which they come."""
        received, cycles_of = {}, {}
        for name, shape in streams.items():
            count = expected.get(name, 0)
            received[name] = np.zeros((count + EXTRA_BEATS, payload.words(shape)), np.uint32)
            cycles_of[name] = np.zeros(count + EXTRA_BEATS, np.int64)
            self._harness.sink(name, received[name], cycles_of[name], count, self._stall)
        return received, cycles_of

    def uses(self, contents: bool = True) -> dict[str, MemoryUse]:
        """What each memory did so far, by name; cycles of requests are of the last step.

        contents
            Whether rows are wanted, which a board takes long to tell.
        """
        return self._harness.uses()

    def observed(self) -> dict[str, int]:
        """Present values of the design's observed ports, by name."""
        return self._harness.observed()

    def close(self) -> None:
        self._harness.close()
