"""Attention on a block whose memories are compared with the model's after each step."""

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

DRAIN = 8
"""Cycles after a step's last output: more than a write spends on its way to the memory."""

P = TypeVar("P", bound=Parameters)


class StoredAttention(Fp16Attention[P]):
    """One layer's attention, whose outputs and memories are compared on every bit.

    sums
        Names of the figures that :meth:`count` adds up.
    """

    drain = DRAIN
    """Cycles after a step's last output, more of a block that is busy longer."""

    def __init__(self, run: LayerRun, memories: dict[str, Memory], width: int, sums: Sequence[str]):
        super().__init__(run, memories, width, sums)
        self._memories = memories
        # What each must hold after the step whose RTL ran last, and after the model's.
        self._expected, self._modelled_rows = (
            {name: memory.contents.copy() for name, memory in memories.items()} for _ in range(2)
        )

    @abstractmethod
    def count(self, report: dict[str, np.ndarray], o: dict[str, np.ndarray]) -> None:
        """Add a step to the figures, from the fields of its reports and outputs."""

    def _later(self, token: int, stimulus: Stimulus) -> None:
        """Submit a step by the RTL, compared."""
        changes = {}
        for name, held in self._modelled_rows.items():
            after = stimulus.memories[name].after
            assert after is not None, "a block that writes has its memory compared"
            changed = np.flatnonzero((after != held).any(axis=1))
            changes[name] = changed, after[changed]
            held[changed] = after[changed]
        # Whole images of the memories would wait with the stimulus; the changed rows are enough.
        stimulus = dataclasses.replace(stimulus, memories={})
        self._submit(partial(self._run, token, stimulus, changes))

    def _run(
        self, token: int, stimulus: Stimulus, changes: dict[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        outcome = self._compared(token, stimulus, self.drain)
        wanted = {}
        for name, (changed, rows) in changes.items():
            self._expected[name][changed] = rows
            wanted[name] = dataclasses.replace(self._memories[name], after=self._expected[name])
        found = compare_memories(
            dataclasses.replace(stimulus, memories=wanted),
            dataclasses.replace(outcome, memories=self._session.uses()),
        )
        self._refuse(token, found)
        self._count(outcome)

    def _alone(self, token: int, inputs: dict, beats: dict[str, int]) -> Outcome:
        """A step by the RTL, compared with nothing; `beats` are its outputs'."""
        outcome = self._rtl(token, inputs, beats, self.drain)
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
        uses = self._session.uses(contents=False).values()
        rows = {
            "rows read": sum(use.rows_read for use in uses),
            "rows written": sum(use.rows_written for use in uses),
        }
        return self._sums | rows | {"cycles": sum(self.cycles)}
