"""Attention of a language model on a block's RTL, one session a layer: what all such blocks share.

A block's engine is a :class:`AttentionEngine`; the attention of each layer is a
:class:`RtlAttention`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.algorithms.kllm.model import QuantizedLlama
from golden.lm.weights import Config
from hw.parameters import Parameters, require
from sim.commands.engines.difference import Difference
from sim.commands.engines.record import LayerStep
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
        The quantised model, where the same block computes its matrix products.
    """

    design: Design
    layer: int
    timing: MemoryTiming = FASTEST
    check: bool = True
    submit: Submit = at_once
    quantised: QuantizedLlama | None = None

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


class RtlAttention(DecodeAttention, Generic[P]):
    """One layer's attention, computed by RTL.

    ``cycles`` has the number of each step; ``bits`` counts the output bits compared; ``steps`` has
    what went in and out. All three are complete once everything submitted has run. ``settings`` has
    the block's options of the run by name.
    """

    block: ClassVar[str]
    """Catalogue name."""

    def __init__(self, run: LayerRun, memories: dict[str, Memory]):
        super().__init__()
        self._design, self._layer = run.design, run.layer
        self._p = cast(P, run.design.parameters)  # the design is of this block
        self._check, self._submit, self._timed = run.check, run.submit, run.timed
        self._session = open_session(run.design, memories, run.timing)
        self.settings: dict[str, float] = {}
        self.steps: list[LayerStep] = []
        self.cycles: list[int] = []
        self.bits = 0

    def _rtl(self, token: int, inputs: dict, expected: dict[str, int], drain: int = 0) -> Outcome:
        """A step of the session, on the simulated RTL or on a board.

        :raises Difference: if it stops.
        """
        outcome = self._session.step(inputs, expected, drain)
        self.cycles.append(outcome.cycles)
        if outcome.failure is not None:
            raise Difference(self.block, self._layer, token, outcome.failure)
        return outcome

    def _compared(self, token: int, stimulus: Stimulus, drain: int = 0) -> Outcome:
        """A step on the RTL, whose outputs and cycles must be as `stimulus` says.

        :raises Difference: at the first bit that differs, or if it takes a wrong number of cycles.
        """
        layouts = self._design.outputs
        expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._rtl(token, stimulus.inputs, expected, drain)
        self._refuse(token, compare(stimulus, outcome.outputs, layouts, outcome.cycles_of))
        if self._timed and (wrong := stimulus.wrong_cycles(outcome)) is not None:
            raise Difference(self.block, self._layer, token, wrong)
        self.bits += sum(len(b) * payload.width(layouts[n]) for n, b in stimulus.outputs.items())
        return outcome

    def _refuse(self, token: int, found: Sequence[Mismatch]) -> None:
        """:raises Difference: for the first mismatch, if there is any."""
        if found:
            raise Difference(self.block, self._layer, token, str(found[0]))

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the block has read from and written to its memories, all tables included."""
        uses = self._session.uses().values()
        return {
            "kv_read": sum(use.bytes_read for use in uses),
            "kv_written": sum(use.bytes_written for use in uses),
        }

    def timings(self) -> dict[str, MemoryTiming]:
        """Timings of the block's memories, by name; empty on a board."""
        return self._session.timings if isinstance(self._session, Session) else {}

    def drams(self) -> list[DramUse]:
        """What the memories did, if they are DRAMs."""
        return drams_of(self._session.uses())

    def close(self) -> None:
        self._session.close()


class Fp16Attention(RtlAttention[P]):
    """Attention by a block whose operands and outputs are FP16, heads of `width` elements."""

    def __init__(self, run: LayerRun, memories: dict[str, Memory], width: int):
        super().__init__(run, memories)
        self._width = width

    def _operands(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """``q / sqrt d``, ``k`` and ``v`` as float16, filled up by zeros."""
        d = k.shape[1]
        rows = (np.asarray(q, np.float64) / np.sqrt(d), np.asarray(k), np.asarray(v))
        return [np.pad(x, ((0, 0), (0, self._width - d))).astype(np.float16) for x in rows]

    def _outputs(self, outcome: Outcome) -> np.ndarray:
        """What the RTL gave: float16[heads, width]."""
        o = payload.unpack(self._design.outputs["o"], outcome.outputs["o"])
        bits = np.stack([o[f"o[{element}]"] for element in range(self._width)], axis=1)
        return bits.astype(np.uint16).view(np.float16)

    def _end(
        self,
        q: np.ndarray,
        operands: list[np.ndarray],
        o: np.ndarray,
        positions: np.ndarray,
        votes: np.ndarray,
        evicted: Sequence[int],
    ) -> np.ndarray:
        """Record a step, without the elements filled up; its output in float32."""
        d = q.shape[1]
        k, v, o = (x[:, :d] for x in (*operands[1:], o))
        self.steps.append(LayerStep(np.asarray(q, np.float32), k, v, o, positions, votes, evicted))
        return o.astype(np.float32)


class AttentionEngine(ABC, Generic[P]):
    """Attention of all layers of a model, each in a separate session."""

    needs_products: ClassVar[bool] = False
    """Whether the same block must compute the matrix products."""

    @abstractmethod
    def parameters(self, config: Config, rows: int) -> P:
        """A block for the model, which keeps `rows` tokens where it can choose."""

    @abstractmethod
    def require_fit(self, p: P, config: Config, rows: int, tokens: int) -> None:
        """Refuse a block that the model, the rows it keeps or all tokens do not fit.

        :raises ParameterError: naming the parameter to change.
        """

    def require_attention(self, p: P, config: Config, rows: int, tokens: int) -> None:
        """Refuse a block that fits the model's matrix products, but not its attention.

        :raises ParameterError: naming the parameter to change.
        """

    def note(self, figures: dict[str, float]) -> str:
        """What was saved, in words; empty where there is nothing to say."""
        return ""

    @abstractmethod
    def attention(self, run: LayerRun, rows: int) -> RtlAttention:
        """One layer's attention that keeps `rows` tokens, if the block evicts any."""

    def attentions(
        self,
        design: Design,
        config: Config,
        rows: int,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
        quantised: QuantizedLlama | None = None,
        **options: Any,
    ) -> Sequence[RtlAttention]:
        """One for each layer, with the same compiled design inside; `submit` gives each its own.

        options
            Options of the block's own :meth:`attention`.
        """
        runs = [
            LayerRun(design, layer, timing, check, submit(layer), quantised)
            for layer in range(config.layers)
        ]
        return [self.attention(run, rows, **options) for run in runs]


def require_heads(config: Config, heads: int, kv_heads: int) -> None:
    """Refuse a block of fewer heads than the model's.

    :raises ParameterError: naming the parameter to change.
    """
    require(config.heads <= heads, f"heads must be at least {config.heads}", heads)
    require(config.kv_heads <= kv_heads, f"kv_heads must be at least {config.kv_heads}", kv_heads)


def require_head_size(config: Config, d: int) -> None:
    """Refuse a block whose parameter d is less than the model's.

    :raises ParameterError: naming the parameter to change.
    """
    require(config.d <= d, f"d must be at least the head size, {config.d}", d)


def require_tokens(tokens: int, name: str, room: int) -> None:
    """Refuse a block with room for fewer tokens; `name` is the parameter that says how many.

    :raises ParameterError: naming the parameter to change.
    """
    rule = f"{name} must be at least {tokens}, the prompt's and those to make"
    require(tokens <= room, rule, room)
