"""Jobs of LAD's tile, or of several tiles: operands, expected results, the memory.

Random sequences are of the kinds that :data:`KINDS` lists; :func:`random_operands` makes a token.
"""

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import HeadStep, LadTile, TileSizes
from golden.lad.timing.system import SystemCycles
from golden.lad.timing.tile import TileCycles
from golden.lad.timing.work import TimingSizes
from hw.lad.tile_parameters import LadTileParameters
from sim.core.memory import Memory
from sim.core.stimulus import Outcome, Stimulus
from sim.testbenches.decode import input_streams, offer, offer_rows, output_streams
from sim.testbenches.memory import NAME, memory_of
from sim.testbenches.strategies import sometimes

KINDS = (
    "ties",  # equal keys and queries
    "special",  # an infinity or NaN in q, k or v
    "large",  # scores beyond FP16
    "long",  # rows of K and V whose numbers are far above 1
    "collinear",  # keys that differ in length and sign only
    "still",  # queries that hardly change, so that modes are stable
    *("plain", "plain"),
)
"""Kinds of random sequences, each as likely as it is often listed."""


def sizes_of(p: LadTileParameters) -> TileSizes:
    return TileSizes(
        d=p.d,
        positions=p.positions,
        bounds=p.apid.bound_values,
        slack=p.slack,
        identification=p.identification,
        code_bits=p.code_bits,
        near=-p.near / 8,
        window=p.window,
        heads=p.heads,
        kv_heads=p.kv_heads,
        counter_bits=p.counter_bits,
        updates=p.updates,
        prefetch=p.prefetch,
        weights=p.weights,
    )


def timing_of(p: LadTileParameters) -> TimingSizes:
    """What decides a tile's cycles."""
    return TimingSizes(sizes_of(p), p.depth, p.multiply_stages, p.add_stages)


@dataclasses.dataclass
class LadStimulus(Stimulus):
    """Its exact cycles take a walk through all of them, so that `cycles` is an estimate.

    predict
        Gives the exact ones.
    """

    predict: Callable[[], int] = int

    @functools.cached_property
    def _exact(self) -> int:
        return self.predict()

    def cycle_range(self, outcome: Outcome) -> tuple[int, int]:
        return self._exact, self._exact


class LadJobs(ABC):
    """Jobs, one after the other, and what they must give.

    model
        Bit-exact model of the block; its memory is in the state before the first job.
    results
        Results of each job's heads; none for a job that is not a token.
    work
        By job, what decides its cycles, as in :mod:`golden.lad.timing`.
    """

    model: LadTile | LadSystem

    def __init__(self, parameters: LadTileParameters, model: LadTile | LadSystem):
        self.parameters = parameters
        self.model = model
        self.join()

    def join(self) -> None:
        """Leave the jobs so far to the model alone: the block begins on the memory they leave."""
        self.model.reset()
        self._first = self.model.memory.copy()
        self._inputs = input_streams(self.parameters)
        self._outputs = output_streams(self.parameters)
        self.results: list[list[HeadStep]] = []
        self.work: list[Any] = []
        self._timed: tuple[Any, int] | None = None  # a clock, and the jobs it has done

    def add(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        n: int,
        *,
        restart: bool = False,
        heads: int | None = None,
        group: int | None = None,
    ) -> list[HeadStep]:
        """A token: float16 queries [heads, d], times 1 / sqrt d, and rows [kv heads, d].

        With other numbers in the job, rows that it does not need are left out, all of them if it
        is refused.
        """
        heads = len(q) if heads is None else heads
        group = -(-len(q) // len(k)) if group is None else group
        found = self.model.step(n, heads, group, restart, q, k, v)
        self.work.append(self._token(found, n, heads, group, restart))
        if found:
            kv_heads = -(-heads // group)
            offer_rows(self._inputs, len(self.results), q[:heads], k[:kv_heads], v[:kv_heads])
        self._give(found, n=n, heads=heads, group=group, restart=restart)
        return found

    def prefetch(self, n: int, heads: int, group: int, most: int, **ignored: int) -> None:
        """Load rows of active positions ahead of the next token; `n` is the last token's.

        ignored
            Fields of the job that do not matter.
        """
        self.work.append(self._ahead(n, heads, group, most))
        self.model.prefetch(n, heads, group, most)
        self._give([], n=n, heads=heads, group=group, prefetch=most, **ignored)

    def _give(self, found: list[HeadStep], **fields: int) -> None:
        """A job with these fields, others 0, and its results; none if it is refused, as its
        `work` says."""
        number = len(self.results)
        offer(self._inputs, number, fields)
        if self.work[-1].refused:
            refusal = {name: int(name == "error") for name, _ in self.parameters.report_layout}
            self._outputs.add("report", number, refusal)
        if found:
            place = self.place(len(found))
            o = {"o": np.stack([step.o for step in found])}
            o["invalid"] = np.array([step.invalid for step in found])
            self._outputs.add("o", number, o | place)
            names = found[0].report
            report = {name: np.array([step.report[name] for step in found]) for name in names}
            head = {"head": place["head"]} if "head" in place else {}
            self._outputs.add("report", number, report | head)
        self.results.append(found)

    @abstractmethod
    def place(self, heads: int) -> dict[str, np.ndarray]:
        """Fields of a job's outputs that tell a head's place in it; ``head`` is in reports too."""

    @abstractmethod
    def _token(self, found: list[HeadStep], n: int, heads: int, group: int, restart: bool) -> Any:
        """What decides the cycles of a token."""

    @abstractmethod
    def _ahead(self, n: int, heads: int, group: int, most: int) -> Any:
        """What decides the cycles of a prefetch job."""

    @abstractmethod
    def _clock(self) -> TileCycles | SystemCycles:
        """The block after a reset."""

    @abstractmethod
    def _reports(self, since: int) -> list:
        """Reports of the jobs from number `since` on, as the parameters' ``cycles`` takes them."""

    def cycles(self, since: int, until: int) -> int:
        """Cycles of the jobs from number `since` on and before `until`, after the others."""
        if self._timed is None or self._timed[1] != since:
            self._timed = self._clock(), since
            self._timed[0].run(self.work[:since])
        clock = self._timed[0]
        self._timed = clock, until
        return clock.run(self.work[since:until])

    def stimulus(self, notes: list[str], since: int = 0) -> Stimulus:
        """All jobs, or those from number `since` on, for a block that has done the others."""
        return LadStimulus(
            inputs=self._inputs.packed(since),
            outputs=self._outputs.packed(since),
            transaction_of=self._outputs.owners(since),
            transactions=len(self.results) - since,
            cycles=self.parameters.cycles(self._reports(since)),
            predict=partial(self.cycles, since, len(self.results)),
            notes=notes,
            memories=self.memories(),
        )

    def memories(self) -> dict[str, Memory]:
        """The block's memories by name, as they are at the beginning and after all jobs."""
        p = self.parameters
        return {NAME: memory_of(memory_rows(p, self._first), memory_rows(p, self.model.memory))}


def memory_rows(p: LadTileParameters, rows: np.ndarray) -> np.ndarray:
    """Memory words of uint16[rows, d]."""
    return np.ascontiguousarray(rows, "<u2").view("<u4").astype(np.uint32)


def random_memory(p: LadTileParameters, rng: np.random.Generator) -> np.ndarray:
    """Random bits, but for weights, which are numbers."""
    memory = rng.integers(0, 1 << 16, (p.memory_rows, p.d)).astype(np.uint16)
    if p.weights:
        start = p.regions["weight"].base
        weights = rng.standard_normal((p.weights, p.d)).astype(np.float16)
        memory[start : start + p.weights] = to_bits(weights)
    return memory


def add_layers(jobs: LadJobs, layers: tuple[np.ndarray, ...], count: int, longest: int) -> None:
    """Make `count` jobs: the first tokens of the layers in turn, as sequences.

    So few that hardly a position would leave the window begin later in the first layer. After
    every third token is a prefetch job, if the block has them.

    layers
        q, k and v of :func:`layers_of`.
    longest
        Tokens of a sequence at most.
    """
    q, k, v = layers
    p = jobs.parameters
    heads, group = q.shape[1], -(-q.shape[1] // k.shape[1])
    room = min(q.shape[2], p.positions)
    length, token = min(room, longest), 0

    def add(layer: int, t: int) -> None:
        jobs.add(q[layer, :, t], k[layer, :, t], v[layer, :, t], t + 1, restart=t == 0)

    if count <= 2 * p.window and room > length:
        token = min(3 * p.window + 2, room - length)
        for t in range(token):
            add(0, t)
        jobs.join()
        length += token
    while len(jobs.results) < count:
        layer, t = token // length % len(q), token % length
        add(layer, t)
        token += 1
        if p.prefetch and token % 3 == 0 and len(jobs.results) < count:
            jobs.prefetch(t + 1, heads, group, p.prefetch)


def random_operands(
    kind: str, drift: np.ndarray, scale: float, kv_heads: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A token's float16 q [heads, d], k and v [kv heads, d] in a sequence of that kind.

    drift
        float64[heads, d]: what all queries of a ``still`` sequence are close to.
    """
    fresh = rng.standard_normal(drift.shape) * scale
    query: Any = drift + 0.1 * fresh if kind == "still" else fresh
    q = query.astype(np.float16)
    d = q.shape[1]
    k, v = rng.standard_normal((2, kv_heads, d)).astype(np.float16)
    if kind == "ties":
        q[:], k[:] = 0.5, rng.integers(0, 2)
    elif kind == "long":
        q, k, v = q / np.float16(64), k * np.float16(64), v * np.float16(64)
    elif kind == "collinear":
        k[:] = k[0, 0] * np.linspace(1, 2, d)  # some of them point the other way
    elif kind == "special" and sometimes(rng, 0.2):
        operand = (q, k, v)[rng.integers(0, 3)]
        operand[tuple(rng.integers(0, operand.shape))] = rng.choice([np.inf, -np.inf, np.nan])
    elif kind == "large" and sometimes(rng, 0.2):
        q, k = np.full_like(q, 60000), np.full_like(k, rng.choice([-60000, 60000]))
    return q, k, v
