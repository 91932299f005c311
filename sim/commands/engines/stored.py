"""Attention on a block whose memory is compared with the model's after each step."""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from hw.parameters import Parameters
from sim.commands.engines.attention import Fp16Attention
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Outcome, Stimulus, compare_memories
from sim.testbenches.memory import NAME

DRAIN = 8
"""Cycles after a step's last output: more than a write spends on its way to the memory."""

P = TypeVar("P", bound=Parameters)


class StoredAttention(Fp16Attention[P]):
    """One layer's attention, whose outputs and memory are compared on every bit.

    sums
        Names of the figures that :meth:`count` adds up.
    """

    def __init__(self, run: LayerRun, memory: Memory, width: int, sums: Sequence[str]):
        super().__init__(run, {NAME: memory}, width, sums)
        self._memory = memory
        # What the memory must hold after the step whose RTL ran last, and after the model's.
        self._expected, self._modelled_rows = memory.contents.copy(), memory.contents.copy()

    @abstractmethod
    def count(self, report: dict[str, np.ndarray], o: dict[str, np.ndarray]) -> None:
        """Add a step to the figures, from the fields of its reports and outputs."""

    def _later(self, token: int, stimulus: Stimulus) -> None:
        """Submit a step by the RTL, compared."""
        after = stimulus.memories[NAME].after
        changed = np.flatnonzero((after != self._modelled_rows).any(axis=1))
        rows = after[changed]
        self._modelled_rows[changed] = rows
        # Whole images of the memory would wait with the stimulus; the changed rows are enough.
        stimulus = dataclasses.replace(stimulus, memories={})
        self._submit(partial(self._run, token, stimulus, changed, rows))

    def _run(self, token: int, stimulus: Stimulus, changed: np.ndarray, rows: np.ndarray) -> None:
        outcome = self._compared(token, stimulus, DRAIN)
        self._expected[changed] = rows
        wanted = {NAME: dataclasses.replace(self._memory, after=self._expected)}
        found = compare_memories(
            dataclasses.replace(stimulus, memories=wanted),
            dataclasses.replace(outcome, memories=self._session.uses()),
        )
        self._refuse(token, found)
        self._count(outcome)

    def _alone(self, token: int, inputs: dict, beats: dict[str, int]) -> Outcome:
        """A step by the RTL, compared with nothing; `beats` are its outputs'."""
        outcome = self._rtl(token, inputs, beats, DRAIN)
        self._count(outcome)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        report, o = (
            payload.unpack(self._design.outputs[name], outcome.outputs[name])
            for name in ("report", "o")
        )
        self.count(report, o)

    def figures(self) -> dict[str, float]:
        """The sums; rows read from and written to memory; cycles."""
        use = self._session.uses(contents=False)[NAME]
        rows = {"rows read": use.rows_read, "rows written": use.rows_written}
        return self._sums | rows | {"cycles": sum(self.cycles)}
