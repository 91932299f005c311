"""Testbench of the core: rows of q, k and v in, a memory attached, rows of o and evictions out.

A transaction is a step, one token.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from golden.attention.decode_core import StepResult
from golden.trace import Trace
from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import WEIGHT_BITS, weight
from hw.veda.veda_core import StepWork, VedaCoreParameters
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.decode import (
    DecodeBench,
    layers_of,
    random_heads,
    random_refused,
    random_rows,
)
from sim.testbenches.strategies import sometimes
from sim.testbenches.veda.pictures import cache_over_time

A, B = weight(1.0), weight(0.2)  # the paper's

KINDS = (
    "fills the cache",  # beyond its capacity, with commands that do not evict
    "ties",  # equal scores
    "special",  # an infinity or NaN in q, k or v
    "large",  # scores beyond FP16
    *("plain", "plain"),
    "long",  # up to 256 tokens, a small target
    *("short", "short", "short"),  # few tokens, a small target
)
"""Kinds of random sequences, each as likely as it is often listed."""


class VedaCoreTestbench:
    def default_vectors(self, parameters: VedaCoreParameters) -> int:
        return 48 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: VedaCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is None:
            return random_steps(parameters, vectors, np.random.default_rng(seed)).stimulus([])
        steps, notes = real_steps(parameters, trace, vectors)
        return steps.stimulus(notes)

    def shown(self, run: ShownRun, figure) -> str:
        return cache_over_time(run, figure, "command", "report")


testbench = VedaCoreTestbench()


class Steps(DecodeBench[VedaCoreParameters]):
    """Steps of the core; ``core`` is its bit-exact model after them.

    kept
        Positions of the context's slots after each step.
    """

    def __init__(self, parameters: VedaCoreParameters):
        super().__init__(parameters)
        p = parameters
        self.core = VedaCore(
            p.capacity,
            accumulator=p.accumulator,
            add_stages=p.array.add_stages,
            tile=p.softmax.tile,
            count_bits=p.count_bits,
            tree=p.dataflow != "flexible",
            heads=p.heads,
            kv_heads=p.kv_heads,
            contexts=p.contexts,
        )
        self.kept: list[np.ndarray] = []
        # The memory's row of each slot used in the sequence of a context.
        self._rows: list[list[int]] = [[] for _ in range(p.contexts)]
        shape = (p.contexts, 1 << p.order.head_bits, 2, p.capacity, p.d)
        self._written = np.zeros(shape, np.float16)

    def length(self, restart: bool, context: int = 0) -> int:
        """Slots of the context's next step, the new one included."""
        return 1 if restart else self.core.contexts[context].length + 1

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        context = command.get("context", 0)
        vote = command.pop("vote")
        result = self.core.step(q, k, v, group=group, vote_cast=vote, **command)
        if not result.refused:
            self._write(context, k, v, result)
        existing = self.core.contexts[context : context + 1]
        self.kept += [cache.engine.positions.copy() for cache in existing] or [np.empty(0)]
        return result

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> StepWork:
        evictions = sum(report.evict for report in result.reports)
        votes = command["vote"] and not result.reports[0].invalid
        context = command.get("context", 0)
        return StepWork(result.p.shape[1], heads, group, votes, evictions, context)

    def _write(self, context: int, k, v, result: StepResult) -> None:
        """New rows into the slot's row of the memory; evicted slots swap rows with the last."""
        slot, rows = result.p.shape[1] - 1, self._rows[context]
        if slot == 0:
            rows.clear()
        if slot == len(rows):
            rows.append(slot)
        self._written[context, : len(k), :, rows[slot]] = np.stack([k, v], axis=1)
        for report in result.reports:
            if report.evict:
                one, other = report.slot, report.length
                rows[one], rows[other] = rows[other], rows[one]

    def stored(self) -> np.ndarray:
        p = self.parameters
        # There are no rows after the last kv head's of the last context.
        heads = self._written.reshape(-1, 2, p.capacity, p.d)
        return heads[: ((p.contexts - 1) << p.order.head_bits) + p.kv_heads]

    def stimulus(self, notes: list[str], since: int = 0) -> Stimulus:
        stimulus = super().stimulus(notes, since)
        work = [step for step in self.work[since:] if step is not None]
        if len({step.context for step in work}) > 1:
            most = stimulus.cycles + sum(map(self.parameters.late, work))
            stimulus = dataclasses.replace(stimulus, band=(stimulus.cycles, most))
        return stimulus


def target_of(p: VedaCoreParameters) -> int:
    """Rows kept in real sequences."""
    return min(p.capacity - 1, 24)


def real_steps(
    p: VedaCoreParameters, trace: Trace, count: int, target: int | None = None
) -> tuple[Steps, list[str]]:
    """`count` steps: sequences of the trace's layers in turn.

    They reserve a quarter of the target, and evict after a prompt shorter or longer than it. As
    many go on at once as there are contexts.
    """
    q, k, v, notes = layers_of(p, trace)
    target = target or min(target_of(p), max(1, count // 3))
    length = min(2 * target + 4, q.shape[2], 1 << p.position_bits)
    steps = Steps(p)
    for number in range(count):
        turn, context = divmod(number, p.contexts)
        sequence, t = turn // length * p.contexts + context, turn % length
        layer = sequence % len(q)
        prompt = (target // 2, min(target + 1, p.capacity - 1))[sequence % 2]
        rows = (x[layer, :, t] for x in (q, k, v))
        limits = {"target": target, "prompt": prompt, "reserved": target // 4}
        add_token(steps, t, *rows, context=context, **limits)
    return steps, notes


def add_sequence(
    steps: Steps,
    q,
    k,
    v,
    tokens: int,
    *,
    target: int,
    prompt: int,
    reserved: int,
    protected: int = 0,
) -> None:
    """The first tokens of a layer's ``q, k, v [heads, token, d]``."""
    for t in range(tokens):
        rows = (x[:, t] for x in (q, k, v))
        limits = {"target": target, "prompt": prompt, "reserved": reserved}
        add_token(steps, t, *rows, protected=protected, **limits)


def add_token(
    steps: Steps,
    t: int,
    q,
    k,
    v,
    *,
    target: int,
    prompt: int,
    reserved: int,
    protected: int = 0,
    context: int = 0,
) -> None:
    """Token `t` of a sequence: ``q, k, v [heads, d]``."""
    flags = {"restart": t == 0, "vote": t >= reserved, "evict": t >= prompt}
    weights = {"a": A, "b": B}
    steps.add(q, k, v, target=target, protected=protected, context=context, **flags, **weights)


def add_refused(steps: Steps, rng: np.random.Generator) -> None:
    """A command that does not fit, or for a context that does not exist."""
    p = steps.parameters
    flags = dict(zip(("restart", "vote", "evict"), sometimes(rng, 0.5, 3), strict=True))
    every = range(1 << max(1, (p.contexts - 1).bit_length()))
    beyond = every[p.contexts :]
    if beyond and sometimes(rng, 0.3):
        heads, group = random_heads(p, rng)
        context = int(rng.choice(beyond))
    else:
        heads, group = random_refused(p, rng)
        context = int(rng.choice(every))
    steps.add_refused(heads, group, target=0, protected=0, a=A, b=B, context=context, **flags)


def random_steps(p: VedaCoreParameters, steps: int, rng: np.random.Generator) -> Steps:
    """Sequences of any length and heads; equal rows, so that votes tie; infinities and NaNs.

    The first is one of the short ones that evict. Some fill the cache with commands that do not
    evict, and evict many rows in their last step. Some have many more tokens than rows, some very
    few of both. Between steps are commands that the core refuses.
    """
    done = Steps(p)
    sequences = [random_sequences(done, context, rng) for context in range(p.contexts)]
    turns = 0  # that the same context has
    for _ in range(steps):
        if sometimes(rng, 0.1):
            add_refused(done, rng)
            continue
        if turns == 0:
            context, turns = int(rng.integers(p.contexts)), int(rng.choice([1, 1, 1, 2, 8]))
        next(sequences[context])
        turns -= 1
    return done


def random_sequences(done: Steps, context: int, rng: np.random.Generator) -> Iterator[None]:
    """Add a step of a context for each item."""
    p, left = done.parameters, 0
    d = p.d
    positions = 1 << p.position_bits
    for number in itertools.count():
        first = not any(done.work)
        restart = left == 0 and (number > 0 or sometimes(rng, 0.5))
        if left == 0:
            kind = "short" if first else KINDS[rng.integers(0, len(KINDS))]
            longest = min(p.capacity, int(rng.choice([6, 32])))
            left = int(rng.integers(1, longest + 1, 2).max())
            if kind == "fills the cache":
                left = p.capacity + int(rng.integers(1, 5))
            target = int(rng.integers(0, min(p.capacity, int(rng.choice([12, p.capacity]))) + 1))
            prompt = int(rng.integers(0, left + 1))
            if kind == "long":
                longest = min(positions, 256)
                left, target = int(rng.integers(min(30, longest), longest + 1)), min(target, 4)
                prompt = 0
            elif kind == "short":
                left, target = int(rng.integers(2, 9)), int(rng.integers(0, min(p.capacity, 4)))
                left, prompt = max(left, target + 2), 0
            left = min(left, positions)  # a longer sequence would repeat positions
            any_token = int(rng.integers(0, min(positions, 1 << int(rng.integers(1, 30)))))
            protected = min(positions - 1, int(rng.choice([0, 2, target, any_token])))
            heads = int(rng.integers(1, p.heads + 1))
            # The last group may be smaller than the others.
            group = int(rng.integers(-(-heads // p.kv_heads), heads + 1))
            kv_heads = -(-heads // group)
            weights = int(rng.choice([A, 2 * A, A // 2])), int(rng.choice([B, 0, A]))
            if sometimes(rng, 0.4):
                any_two = rng.integers(0, 1 << WEIGHT_BITS, 2)
                a, b = (int(n) for n in any_two >> rng.integers(0, WEIGHT_BITS, 2))
                weights = a, b
        left -= 1
        length = done.length(restart, context)
        q, k, v = random_rows(kind, heads, kv_heads, d, rng)
        done.add(
            q,
            k,
            v,
            restart=restart,
            vote=sometimes(rng, 0.9),
            group=group,
            evict=left == 0 if kind == "fills the cache" else length > prompt,
            target=target,
            protected=protected,
            a=weights[0],
            b=weights[1],
            context=context,
        )
        yield
