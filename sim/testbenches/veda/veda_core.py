"""Testbench of the core: rows of q, k and v in, a memory attached, rows of o and evictions out.

A transaction is a step, one token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.attention.decode_core import StepResult
from golden.trace import Trace
from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import WEIGHT_BITS, weight
from hw.veda.veda_core import StepWork, VedaCoreParameters
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.decode import DecodeBench, layers_of, random_refused, random_rows
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
        Positions of the slots after each step.
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
        )
        self.kept: list[np.ndarray] = []
        self._rows: list[int] = []  # the memory's row of each slot used in this sequence
        shape = (p.kv_heads, 2, p.capacity, p.d)
        self._written = np.zeros(shape, np.float16)

    def length(self, restart: bool) -> int:
        """Slots of the next step, the new one included."""
        return 1 if restart else len(self.core.engine.positions) + 1

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        slot = self.length(command["restart"]) - 1
        vote = command.pop("vote")
        result = self.core.step(q, k, v, group=group, vote_cast=vote, **command)
        self.kept.append(self.core.engine.positions.copy())
        if not result.refused:
            self._write(slot, k, v, result)
        return result

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> StepWork:
        evictions = sum(report.evict for report in result.reports)
        votes = command["vote"] and not result.reports[0].invalid
        return StepWork(result.p.shape[1], heads, group, votes, evictions)

    def _write(self, slot: int, k: np.ndarray, v: np.ndarray, result: StepResult) -> None:
        """New rows into the slot's row of the memory; evicted slots swap rows with the last."""
        if slot == 0:
            self._rows = []
        if slot == len(self._rows):
            self._rows.append(slot)
        self._written[: len(k), :, self._rows[slot]] = np.stack([k, v], axis=1)
        for report in result.reports:
            if report.evict:
                one, other = report.slot, report.length
                self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

    def stored(self) -> np.ndarray:
        return self._written


def target_of(p: VedaCoreParameters) -> int:
    """Rows kept in real sequences."""
    return min(p.capacity - 1, 24)


def real_steps(
    p: VedaCoreParameters, trace: Trace, count: int, target: int | None = None
) -> tuple[Steps, list[str]]:
    """`count` steps: sequences of the trace's layers in turn.

    They reserve a quarter of the target, and evict after a prompt shorter or longer than it.
    """
    q, k, v, notes = layers_of(p, trace)
    target = target or min(target_of(p), max(1, count // 3))
    length = min(2 * target + 4, q.shape[2], 1 << p.position_bits)
    steps = Steps(p)
    for first in range(0, count, length):
        sequence = first // length
        layer = sequence % len(q)
        tokens = min(length, count - first)
        prompt = (target // 2, min(target + 1, p.capacity - 1))[sequence % 2]
        rows = (q[layer], k[layer], v[layer])
        add_sequence(steps, *rows, tokens, target=target, prompt=prompt, reserved=target // 4)
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
        fields = {"target": target, "protected": protected, "a": A, "b": B}
        rows = (x[:, t] for x in (q, k, v))
        steps.add(*rows, restart=t == 0, vote=t >= reserved, evict=t >= prompt, **fields)


def add_refused(steps: Steps, rng: np.random.Generator) -> None:
    """A command that does not fit."""
    flags = dict(zip(("restart", "vote", "evict"), sometimes(rng, 0.5, 3), strict=True))
    heads, group = random_refused(steps.parameters, rng)
    steps.add_refused(heads, group, target=0, protected=0, a=A, b=B, **flags)


def random_steps(p: VedaCoreParameters, steps: int, rng: np.random.Generator) -> Steps:
    """Sequences of any length and heads; equal rows, so that votes tie; infinities and NaNs.

    The first is one of the short ones that evict. Some fill the cache with commands that do not
    evict, and evict many rows in their last step. Some have many more tokens than rows, some very
    few of both. Between steps are commands that the core refuses.
    """
    done = Steps(p)
    left = 0
    d = p.d
    positions = 1 << p.position_bits
    for number in range(steps):
        first = not any(done.work)
        if sometimes(rng, 0.1):
            add_refused(done, rng)
            continue
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
        length = done.length(restart)
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
        )
    return done
