"""Attention of a language model on a decode core with the common ports."""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, TypeVar, cast

import numpy as np

from hw.attention.decode_core import DecodeParameters
from sim.commands.engines.attention import Fp16Attention
from sim.commands.engines.part import LayerRun
from sim.core import payload
from sim.core.streams import Streams
from sim.testbenches.decode import DecodeBench, input_streams, offer, offer_rows
from sim.testbenches.memory import NAME

P = TypeVar("P", bound=DecodeParameters)


@dataclasses.dataclass(frozen=True, eq=False)
class CacheStep:
    """A layer's cache after a step.

    read
        Number of rows of K that the step read in each kv head.
    positions
        ``int[caches, rows]``: positions of the tokens in the cache. There is one cache where all
        kv heads keep the same tokens, else one for each kv head.
    evicted
        Position that each cache evicted, or -1.
    votes
        ``int[caches, rows]``: votes of each token; None where the block has none or shows none.
    """

    read: int
    positions: np.ndarray
    evicted: Sequence[int] = (-1,)
    votes: np.ndarray | None = None

    def gone(self) -> list[int]:
        """Positions of tokens evicted that no cache keeps any more."""
        kept = set(self.positions.flat)
        return sorted({position for position in self.evicted if position >= 0} - kept)


class DecodeAttention(Fp16Attention[P]):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    A core's own class says its `block`, its `bench`, the fields of a token's command, and what is
    in the cache after a step.
    """

    bench: ClassVar[type[DecodeBench]]
    """Steps of the core with their results."""
    _steps: DecodeBench

    def __init__(self, run: LayerRun):
        p = cast(P, run.design.parameters)  # the design is of this block
        # Layers on the same core share its steps.
        beside = cast("DecodeAttention | None", run.beside)
        self._steps = self.make_steps(run) if beside is None else beside._steps
        super().__init__(run, {NAME: self._steps.memory()}, p.d)

    def make_steps(self, run: LayerRun) -> DecodeBench:
        """No steps yet, of another core."""
        return self.bench(cast(P, run.design.parameters))

    @abstractmethod
    def command(self, token: int) -> dict[str, int]:
        """Fields of the token's command, without heads and group."""

    @abstractmethod
    def cached(self, token: int, report: dict[str, np.ndarray]) -> CacheStep:
        """The cache after the step, from the fields of its reports, by dotted path."""

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token, (kv_heads, d) = len(self.steps), k.shape
        operands = self._operands(q, k, v)
        run = self._modelled if self._check else self._unchecked
        o, reports = run(token, operands, self.command(token))
        cache = self.cached(token, payload.unpack(self._p.report_layout, reports))
        self.rows = kv_heads * cache.positions.shape[1]
        self.evicted += cache.gone()
        self.traffic.read(kv_heads * cache.read, kv_heads * cache.read, d)
        self.traffic.dense(kv_heads * (token + 1), d)
        return self._end(q, operands, o, cache.positions, cache.votes, cache.evicted)

    def _modelled(self, token: int, rows: list[np.ndarray], command: dict):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        number = len(self._steps.results)
        result = self._steps.add(*rows, **command)
        stimulus = self._steps.stimulus([], since=number, memory=False)
        self._submit(partial(self._compared, token, stimulus))
        return result.o, stimulus.outputs["report"]

    def _unchecked(self, token: int, rows: list[np.ndarray], command: dict):
        """The step by the RTL alone."""
        q, k, v = rows
        inputs = input_streams(self._p)
        offer(inputs, 0, command | {"heads": len(q), "group": len(q) // len(k)})
        self._offer(inputs, token, q, k, v)
        tokens = q.shape[1] if q.ndim == 3 else 1
        expected = {"o": len(q) * tokens, "report": tokens}
        outcome = self._rtl(token, inputs.packed(), expected)
        return self._outputs(outcome), outcome.outputs["report"]

    def _offer(self, inputs: Streams, token: int, q, k, v) -> None:
        """Rows of the token's command, number 0, without the model."""
        offer_rows(inputs, 0, q, k, v)


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least as large."""
    return 1 << max(0, least - 1).bit_length()
