"""Attention of a language model on a block's RTL: what all such blocks share.

A block's engine is a :class:`AttentionEngine`; the attention of each layer is a
:class:`RtlAttention`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.model import Llama
from golden.lm.weights import Config
from hw.parameters import Parameters, require
from sim.commands.engines.part import LayerRun, RtlPart
from sim.commands.engines.record import LayerStep
from sim.commands.engines.workers import Submit, at_once
from sim.core.design import Design
from sim.core.memory import FASTEST, Memory, MemoryTiming
from sim.core.stimulus import Outcome

P = TypeVar("P", bound=Parameters)


class RtlAttention(RtlPart[P], DecodeAttention):
    """One layer's attention, computed by RTL.

    ``cycles`` has the number of each step; ``steps`` has what went in and out. Both are complete
    once everything submitted has run. ``settings`` has the block's options of the run by name.

    sums
        Names of figures that the block's own class adds up.
    """

    def __init__(self, run: LayerRun, memories: dict[str, Memory], sums: Sequence[str] = ()):
        DecodeAttention.__init__(self)
        RtlPart.__init__(self, run, memories)
        self.settings: dict[str, float | str] = {}
        self.steps: list[LayerStep] = []
        self.cycles: list[int] = []
        self._sums: dict[str, float] = dict.fromkeys(sums, 0)

    def _rtl(
        self, token: int, inputs: dict, expected: dict[str, int], drain: int = 0, where: str = ""
    ) -> Outcome:
        outcome = super()._rtl(token, inputs, expected, drain, where)
        self.cycles.append(outcome.cycles)
        return outcome

    def steps_of(
        self, others: "Sequence[RtlAttention]", q: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """A step of this text and one of each of `others`, of the same layer: [heads, text, d]."""
        texts = enumerate([self, *others])
        return np.stack([of.step(q[:, n], k[:, n], v[:, n]) for n, of in texts], axis=1)

    def _record(
        self,
        rows: Sequence[np.ndarray],
        positions: np.ndarray,
        votes: np.ndarray | None = None,
        evicted: Sequence[int] = (),
    ) -> None:
        """Record a step: its q, k, v and o, [heads, d] each, and the cache after it.

        Without `votes` none is known, without `evicted` no token is evicted.
        """
        q, *others = rows
        k, v, o = (x.astype(np.float16) for x in others)
        votes = np.full(positions.shape, -1) if votes is None else votes
        evicted = list(evicted) or [-1] * len(positions)
        step = LayerStep(np.asarray(q, np.float32), k, v, o, positions, votes, evicted)
        self.steps.append(step)

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the block has read from and written to its memories, all tables included.

        None beside another layer's attention, which counts the bytes of both.
        """
        uses = self._session.uses(contents=False).values() if self._opened else ()
        return {
            "kv_read": sum(use.bytes_read for use in uses),
            "kv_written": sum(use.bytes_written for use in uses),
        }


class Fp16Attention(RtlAttention[P]):
    """Attention by a block whose operands and outputs are FP16, heads of `width` elements."""

    def __init__(
        self, run: LayerRun, memories: dict[str, Memory], width: int, sums: Sequence[str] = ()
    ):
        super().__init__(run, memories, sums)
        self._width = width

    def _operands(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """``q / sqrt d``, ``k`` and ``v`` as float16, filled up by zeros."""
        d = k.shape[-1]
        rows = (np.asarray(q, np.float64) / np.sqrt(d), np.asarray(k), np.asarray(v))
        missing = [(0, 0)] * (k.ndim - 1) + [(0, self._width - d)]
        return [np.pad(x, missing).astype(np.float16) for x in rows]

    def _outputs(self, outcome: Outcome) -> np.ndarray:
        """What the RTL gave: float16[heads, width]."""
        return self._half(outcome, "o", "o", self._width)

    def _end(self, q: np.ndarray, operands: list[np.ndarray], o: np.ndarray, *cache) -> np.ndarray:
        """Record a step, without the elements filled up; its output in float32.

        cache
            Positions, and what else :meth:`_record` takes.
        """
        d = q.shape[1]
        rows = [x[:, :d] for x in (q, *operands[1:], o)]
        self._record(rows, *cache)
        return rows[-1].astype(np.float32)


class AttentionEngine(ABC, Generic[P]):
    """Attention of all layers of a model, each in a separate session, or all in one."""

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

    def together(self, p: P, config: Config) -> bool:
        """Whether one instance of the block runs all layers of the model."""
        return False

    def texts(self, p: P) -> int:
        """Number of texts whose rows are in one instance of the block, for a layer."""
        return 1

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
        quantised: Llama | None = None,
        beside: Sequence[RtlAttention] = (),
        **options: Any,
    ) -> Sequence[RtlAttention]:
        """One for each layer, with the same compiled design inside; `submit` gives each its own.

        If one instance of the block runs all layers, their steps go through it one by one.

        beside
            Another text's, in whose instances of the block this text's rows are, too.
        options
            Options of the block's own :meth:`attention`.
        """
        together = self.together(cast(P, design.parameters), config)
        found: list[RtlAttention] = []
        for layer in range(config.layers):
            first = found[0] if together and found else beside[layer] if beside else None
            of = submit(0 if together else layer)
            run = LayerRun(design, layer, timing, check, of, quantised, first)
            found.append(self.attention(run, rows, **options))
        return found


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
