"""A part of a language model on a block's RTL, attention or products of a layer: its session, whose
steps are compared with the bit-exact model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar, cast

import numpy as np

from golden.lm.model import Llama
from hw.parameters import Parameters
from sim.commands.engines.difference import Difference
from sim.commands.engines.workers import Submit, at_once
from sim.core import payload
from sim.core.design import Design
from sim.core.dram.timing import DramUse, drams_of
from sim.core.memory import FASTEST, Memory, MemoryTiming
from sim.core.stimulus import Mismatch, Outcome, Stimulus, compare
from sim.drivers.board.shared import DesignOnBoard, open_session
from sim.drivers.harness.session import Session

P = TypeVar("P", bound=Parameters)


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """Which layer runs on which design, and how.

    design
        Design of the block; layers share its compiled code.
    layer
        Its number, for messages.
    timing
        Timing of all memories.
    check
        False: what the RTL gives goes on unchecked.
    submit
        Runs what the language model need not wait for: a step's RTL, or the checks of its outputs.
    quantised
        The model in the block's arithmetic, where the same block computes its matrix products.
    beside
        Another layer's part, which runs on the same instance of the block; None: this one has its
        own.
    """

    design: Design
    layer: int
    timing: MemoryTiming = FASTEST
    check: bool = True
    submit: Submit = at_once
    quantised: Llama | None = None
    beside: "RtlPart | None" = None

    def parameters(self, kind: type[P]) -> P:
        """The design's parameters, which are of the engine's block."""
        found = self.design.parameters
        assert isinstance(found, kind)
        return found

    @property
    def timed(self) -> bool:
        """Whether a step takes the cycles of the block's formula: not with slow memories, nor on a
        board, whose memories have the timing of its cable."""
        return self.timing.is_fastest and not isinstance(self.design, DesignOnBoard)


class RtlPart(Generic[P]):
    """A part of one layer, computed by RTL.

    ``bits`` counts the output bits compared; it is complete once everything submitted has run.
    """

    block: ClassVar[str]
    """Catalogue name."""

    def __init__(self, run: LayerRun, memories: dict[str, Memory]):
        self._design, self._layer = run.design, run.layer
        self._p = cast(P, run.design.parameters)  # the design is of this block
        self._check, self._submit, self._timed = run.check, run.submit, run.timed
        self._opened = run.beside is None
        if run.beside is None:
            self._session = open_session(run.design, memories, run.timing)
            self._turns: list[np.ndarray] = []  # that a rotary encoding in the block has
        else:
            self._session, self._turns = run.beside._session, run.beside._turns
        self.bits = 0

    def _rtl(
        self, token: int, inputs: dict, expected: dict[str, int], drain: int = 0, where: str = ""
    ) -> Outcome:
        """A step of the session, on the simulated RTL or on a board.

        where
            What of the layer the step is, for the message.
        :raises Difference: if it stops.
        """
        outcome = self._session.step(inputs, expected, drain)
        if outcome.failure is not None:
            raise Difference(self.block, self._layer, token, where + outcome.failure)
        return outcome

    def _compared(
        self,
        token: int,
        stimulus: Stimulus,
        drain: int = 0,
        where: str = "",
        place: Callable[[Mismatch], str] = lambda found: "",
    ) -> Outcome:
        """A step on the RTL, whose outputs and cycles must be as `stimulus` says.

        place
            Where in the step a mismatch is, for the message.
        :raises Difference: at the first bit that differs, or if it takes a wrong number of cycles.
        """
        layouts = self._design.outputs
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._rtl(token, stimulus.inputs, expected, drain, where)
        self._refuse(token, self._mismatches(stimulus, outcome), place)
        if self._timed and (wrong := stimulus.wrong_cycles(outcome)) is not None:
            raise Difference(self.block, self._layer, token, where + wrong)
        self.bits += sum(len(b) * payload.width(layouts[n]) for n, b in stimulus.outputs.items())
        return outcome

    def _mismatches(self, stimulus: Stimulus, outcome: Outcome) -> Sequence[Mismatch]:
        """Beats that differ; a block whose beats come in any order puts them in order first."""
        return compare(stimulus, outcome.outputs, self._design.outputs, outcome.cycles_of)

    def _refuse(
        self,
        token: int,
        found: Sequence[Mismatch],
        place: Callable[[Mismatch], str] = lambda found: "",
    ) -> None:
        """:raises Difference: for the first mismatch, if there is any."""
        if found:
            raise Difference(self.block, self._layer, token, f"{place(found[0])}{found[0]}")

    def _half(self, outcome: Outcome, stream: str, field: str, elements: int) -> np.ndarray:
        """An array of FP16 numbers in a stream's beats: float16[beats, elements]."""
        fields = payload.unpack(self._design.outputs[stream], outcome.outputs[stream])
        bits = np.stack([fields[f"{field}[{element}]"] for element in range(elements)], axis=1)
        return bits.astype(np.uint16).view(np.float16)

    def timings(self) -> dict[str, MemoryTiming]:
        """Timings of the block's memories, by name; empty on a board."""
        return self._session.timings if isinstance(self._session, Session) else {}

    def drams(self) -> list[DramUse]:
        """What the memories did, if they are DRAMs; nothing beside another layer's part."""
        return drams_of(self._session.uses(contents=False)) if self._opened else []

    def close(self) -> None:
        if self._opened:
            self._session.close()
