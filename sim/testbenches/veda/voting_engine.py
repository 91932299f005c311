"""Testbench of the voting engine: probabilities of all heads in, evictions out.

A transaction is a step, one token's votes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from golden.attention.probability import ONE, fixed
from golden.trace import Trace
from golden.veda.voting_engine import VoteReport, VotingEngine, threshold, weight
from hw.arith.float_format import FP16
from hw.veda.voting_engine import VotingEngineParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes

A, B = weight(1.0), weight(0.2)  # the paper's

KINDS = (
    "saturating",  # long; the first slots draw very little attention, so their counts saturate
    "few values",  # often ties
    "softmax",
    "any bits",
    "similar",  # scores differ in a bit or two
    *["at threshold"] * 4,
)
"""Kinds of random sequences, each as likely as it is often listed."""


class VotingEngineTestbench:
    def default_vectors(self, parameters: VotingEngineParameters) -> int:
        return 200 if parameters.capacity <= 16 else 64

    def stimulus(
        self, parameters: VotingEngineParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is None:
            return random_steps(parameters, vectors, np.random.default_rng(seed)).stimulus([])
        return real_steps(parameters, trace, vectors).stimulus(real_notes(parameters, trace))


testbench = VotingEngineTestbench()


class Steps:
    """Steps and their reports, for a stimulus; ``engines`` has each context's model."""

    def __init__(self, parameters: VotingEngineParameters):
        self.parameters = p = parameters
        self.engines = [VotingEngine(p.capacity, p.count_bits, n) for n in range(p.contexts)]
        self.p: list[np.ndarray] = []
        self.reports: list[list[VoteReport]] = []
        self._fields: dict[str, list[int]] = {}
        self._cycles = 0

    def length(self, restart: bool, context: int = 0) -> int:
        """Slots of the context's next step, the new one included."""
        return 1 if restart else len(self.engines[context].positions) + 1

    def add(
        self,
        p: np.ndarray,
        *,
        restart: bool,
        vote: bool,
        evict: bool,
        context: int = 0,
        **fields: int,
    ) -> None:
        """A step with probabilities ``p [heads, slots]``, and its command's other fields."""
        self.add_block([p], restart=restart, vote=vote, evict=evict, context=context, **fields)

    def add_block(
        self,
        p: list[np.ndarray],
        *,
        restart: bool,
        vote: bool,
        evict: bool,
        context: int = 0,
        **fields: int,
    ) -> None:
        """A step of several tokens, with ``p [heads, slots]`` of each; the last one evicts."""
        engine, reports, votes, heads = self.engines[context], [], [], len(p[0])
        for token, rows in enumerate(p):
            first, last = token == 0, token == len(p) - 1
            flags = {"restart": restart and first, "evict": evict and last, "vote_cast": vote}
            settings: dict[str, Any] = flags | fields
            found = engine.step(rows, **settings)
            votes.append(bool(vote and not found[0].invalid))
            reports += [dataclasses.replace(report, last=report.last and last) for report in found]
        evictions = sum(report.evict for report in reports)
        cast = tuple(votes) if len(p) > 1 else votes[0]
        self._cycles += self.parameters.step_cycles(p[-1].shape[1], heads, cast, evictions)
        flags = {"restart": restart, "vote": vote, "evict": evict}
        fields |= flags | {"heads": heads, "context": context}
        fields |= {"tokens": len(p)} if self.parameters.block > 1 else {}
        for name, value in fields.items():
            self._fields.setdefault(name, []).append(int(value))
        # For each head, a row of every token.
        self.p.append(np.concatenate([rows[head] for head in range(heads) for rows in p]))
        self.reports.append(reports)

    def stimulus(self, notes: list[str]) -> Stimulus:
        p = self.parameters
        probabilities = np.concatenate(self.p).view(np.uint16)
        reports = [report for step in self.reports for report in step]
        names = [name for name, _ in p.report_layout]
        return Stimulus(
            inputs={
                "command": payload.pack(
                    p.command_layout, {name: np.array(v) for name, v in self._fields.items()}
                ),
                "i": payload.pack(FP16, {"payload": probabilities}),
            },
            outputs={
                "o": payload.pack(
                    p.report_layout,
                    {name: np.array([int(getattr(r, name)) for r in reports]) for name in names},
                )
            },
            transaction_of={
                "o": np.repeat(np.arange(len(self.reports)), [len(step) for step in self.reports])
            },
            transactions=len(self.reports),
            cycles=self._cycles,
            notes=notes,
        )


def _target(p: VotingEngineParameters) -> int:
    """Slots kept in real sequences."""
    return max(1, min(p.capacity - 2, 24))


def real_notes(p: VotingEngineParameters, trace: Trace) -> list[str]:
    if trace.q is None:
        name = next(iter(trace.x or trace.w))
        rows = f"rows of {'x' if trace.x else 'w'}/{name} with each other"
        return [f"The trace has no q and k: scores are of {rows}, repeated for every head."]
    heads = f"{p.heads} query heads"
    rounded = "in float64, rounded to FP16"
    return [f"Softmax of q and k of the first {heads} {rounded}; a layer is a sequence."]


def attention_inputs(p: VotingEngineParameters, trace: Trace):
    """``q, k [layer, head, token, d]`` for the engine's number of heads, and the scale."""
    if trace.q is None or trace.k is None:
        x = next(iter((trace.x or {n: w.T for n, w in trace.w.items()}).values()))
        x = np.broadcast_to(x.astype(np.float64), (1, p.heads, *x.shape))
        return x, x, 1 / (np.linalg.norm(x[0, 0], axis=1).max() or 1)
    heads = np.arange(p.heads) % trace.q.shape[1]
    q, k = trace.q[:, heads], trace.k[:, heads // trace.group]
    return q.astype(np.float64), k.astype(np.float64), trace.scale


def real_steps(p: VotingEngineParameters, trace: Trace, steps: int) -> Steps:
    """Sequences of the trace's layers in turn, as many at once as there are contexts.

    They reserve a quarter of the target and evict after a prompt that is shorter or longer than it.
    """
    q, k, scale = attention_inputs(p, trace)
    done = Steps(p)
    target = _target(p)
    length = min(4 * target, q.shape[2], 1 << p.position_bits)
    for number in range(steps):
        turn, context = divmod(number, p.contexts)
        sequence, token = turn // length * p.contexts + context, turn % length
        layer = sequence % len(q)
        restart = token == 0
        positions = np.empty(0, np.int64) if restart else done.engines[context].positions
        rows = np.append(positions, token).astype(int)
        scores = scale * np.einsum("hd,hld->hl", q[layer, :, token], k[layer][:, rows])
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        done.add(
            (e / e.sum(axis=1, keepdims=True)).astype(np.float16),
            restart=restart,
            vote=token >= target // 4,
            evict=token >= (target // 2, target + 1)[sequence % 2],
            target=target,
            protected=0,
            a=A,
            b=B,
            context=context,
        )
    return done


def random_steps(p: VotingEngineParameters, steps: int, rng: np.random.Generator) -> Steps:
    """Sequences of any length and weights in each context, whose steps come in any order."""
    done = Steps(p)
    sequences = [random_sequences(done, context, rng) for context in range(p.contexts)]
    for _ in range(steps):
        next(sequences[rng.integers(len(sequences))])
    return done


def random_sequences(done: Steps, context: int, rng: np.random.Generator) -> Iterator[None]:
    """Add a step of a context for each item: ties, scores at the threshold, invalid values.

    Sequences end with a step that evicts all slots, so that their order makes every vote
    observable. In some the first tokens are protected and draw little attention, so that counts
    saturate.
    """
    p, left = done.parameters, 0
    for number in itertools.count():
        restart = left == 0 and (number > 0 or sometimes(rng, 0.5))
        if left == 0:
            kind = KINDS[rng.integers(0, len(KINDS))]
            saturating = kind == "saturating"
            longest = min(48, 1 << p.position_bits) if saturating else min(p.capacity, 9)
            left = int(rng.integers(1, longest + 1, 2).max())
            target = int(rng.integers(0, min(p.capacity, 12) + 1))
            most = (1 << p.position_bits) - 1
            few, more = (int(rng.integers(1, end)) for end in (4, 16))
            protected = min(most, int(rng.choice([0, 0, few, more, most])))
            if saturating and sometimes(rng, 0.5):
                protected, target = min(most, 2), min(p.capacity, 4)
            prompt = 0 if saturating else int(rng.integers(0, longest + 2))
        tokens, length = 1, done.length(restart, context)
        if p.block > 1 and sometimes(rng, 0.7):
            tokens = int(rng.integers(1, min(p.block, left, p.capacity + 1 - length) + 1))
        left -= tokens
        a, b = _weights(rng)
        if left == 0:
            target, prompt = 0, 0
        heads = int(rng.integers(1, p.heads + 1, 2).max())
        block = []
        for slots in range(length, length + tokens):
            s, weights = _token(slots, heads, kind, rng)
            a, b = weights or (a, b)
            block.append(s)
        length += tokens - 1
        done.add_block(
            block,
            restart=restart,
            vote=sometimes(rng, 0.9),
            evict=length > prompt,
            target=target,
            protected=protected,
            a=a,
            b=b,
            context=context,
        )
        yield


def _token(
    length: int, heads: int, kind: str, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """A token's probabilities ``[heads, length]``, and A and B if these go with them."""
    weights = None
    if kind in ("similar", "at threshold"):
        if length == 2 and sometimes(rng, 0.5):
            scores, a, b = _exact_difference(rng)
        elif kind == "at threshold":
            scores, a, b = _at_threshold(length, heads, rng)
        else:
            scores, a, b = _similar(length, rng)
        weights = a, b
        s = _over_heads(scores, heads)
    else:
        s = _probabilities(heads, length, kind, rng)
    if sometimes(rng, 0.03):
        bad = rng.choice([0x7C00, 0x7E00, 0xFC00, 0x3C01, 0x8001, 0x4000, 0xFFFF])
        s[rng.integers(heads), rng.integers(length)] = np.uint16(bad).view(np.float16)
    return s, weights


def _weights(rng: np.random.Generator) -> tuple[int, int]:
    """A and B: the paper's, equal ones, one of them 0, or any."""
    a, b = (int(n) for n in rng.integers(0, 1 << 15, 2) >> rng.integers(0, 15, 2))
    return [(A, B), (A, A), (A, 0), (0, B), (a, b)][rng.integers(0, 5)]


def _at_threshold(length: int, heads: int, rng: np.random.Generator) -> tuple[np.ndarray, int, int]:
    """Scores up to 2^24 a head, A and B. Mostly one score is the largest that gets a vote, or the
    least that does not."""
    most = min(heads, int(rng.integers(1, 3))) << 24
    s = rng.integers(0, (most >> max(0, int(rng.integers(-16, 24)))) + 1, length)
    if heads > 1 and sometimes(rng, 0.5):  # a second probability, of low-order bits
        low = rng.integers(0, 2048, length) << rng.integers(0, 3)
        s = np.minimum(s >> 13 << 13, 1 << 24) + low
    b = int(rng.integers(0, 1 << 15) >> rng.integers(0, 4))
    near = s[rng.integers(length)] << 12
    a = int(np.clip((near + b * s.std()) / max(1, s.mean()), 0, (1 << 15) - 1))
    at, above = rng.integers(length), rng.integers(0, 2)
    for step in range(24):
        negative, limit = threshold(s, a, b)
        if not negative:
            wanted = int(np.clip(limit + above, 0, most))
            s[at] = wanted if step % 8 < 4 else (s[at] + wanted) // 2
    # Rounded to sums of FP16 numbers; then a small score moves the threshold to where it was.
    s = fixed(_over_heads(s, heads)).sum(axis=0)
    small = (at + 1) % length
    if length > 2 and sometimes(rng, 0.8):
        s[small] = rng.integers(0, 2048)
        for _ in range(12):
            negative, limit = threshold(s, a, b)
            missing = int(s[at]) - above - limit
            if negative or not missing:
                break
            slope = (a - b * (s[small] - s.mean()) / max(1, s.std())) / (length << 12)
            moved = s[small] + np.rint(missing / slope if slope else missing)
            s[small] = np.clip(moved, 0, 2047)
    return s, a, b


def _exact_difference(rng: np.random.Generator) -> tuple[np.ndarray, int, int]:
    """Two scores, A and B, so that b std - a mean is a power of two, -1 or 0.

    With two scores, of difference u and sum v, it is proportional to B u - A v.
    """
    for _ in range(64):
        a, b = (int(weight) | 1 for weight in rng.integers(0, 1 << 15, 2) >> rng.integers(0, 8, 2))
        if math.gcd(a, b) == 1 and a < b:
            over = int(rng.choice([-1, 0, *1 << rng.integers(0, 40, 4)]))
            total = -over * pow(a, -1, b) % b + b * int(rng.integers(0, 1 << rng.integers(1, 11)))
            difference = (a * total + over) // b
            if 0 <= difference <= total < 1 << 24 and (total - difference) % 2 == 0:
                scores = np.array([total - difference, total + difference]) // 2
                return rng.permutation(scores), a, b
    return _similar(2, rng)


def _similar(length: int, rng: np.random.Generator) -> tuple[np.ndarray, int, int]:
    """Scores up to 2^24 that differ in a bit or two, A and B with T < 0: the least gets a vote."""
    flipped = np.where(sometimes(rng, 0.7, length), 1 << rng.integers(0, 24, length), 0)
    return rng.integers(0, 1 << 24) ^ flipped, 0, A


def _over_heads(s: np.ndarray, heads: int) -> np.ndarray:
    """Probabilities ``[heads, slots]`` that add up to `s` as far as one or two FP16 numbers can."""
    if heads == 1:
        return (s * 2.0**-24).astype(np.float16)[None]
    spare = np.maximum(0, np.ceil(np.log2(s + 1)).astype(int) - 11)
    high = np.minimum(s >> spare << spare, 1 << 24)
    p = np.zeros((heads, len(s)), np.float16)
    p[0], p[-1] = high * 2.0**-24, (s - high) * 2.0**-24
    return p


def _probabilities(heads: int, length: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """FP16 ``[heads, length]`` of the first four KINDS."""
    shape = (heads, length)
    if kind == "saturating":  # the first one or two slots draw very little
        p = rng.random(shape)
        p[:, int(sometimes(rng, 0.3)) : 2] *= 2.0**-12
    elif kind == "few values":
        p = rng.choice([0.0, 2.0**-24, 0.25, 1.0], (1, length), p=(0.5, 0.1, 0.2, 0.2))
        p = np.broadcast_to(p, shape)
    elif kind == "softmax":
        e = np.exp(rng.normal(scale=rng.choice([0.1, 2.0, 8.0]), size=shape))
        p = e / e.sum(axis=1, keepdims=True)
    else:  # any bits up to 1
        return rng.integers(0, ONE + 1, shape).astype(np.uint16).view(np.float16)
    return p.astype(np.float16)
