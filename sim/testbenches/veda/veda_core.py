"""Testbench of the core: rows of q, k and v in, a memory attached, rows of o and evictions out.

A transaction is a step, one token.
"""

from typing import Any

import numpy as np

from golden.arith.formats import to_bits
from golden.trace import Trace
from golden.veda.veda_core import StepResult, VedaCore
from golden.veda.voting_engine import WEIGHT_BITS, weight
from hw.veda.veda_core import StepWork, VedaCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import SESSION_PAUSE, ShownRun, Stimulus
from sim.testbenches.operands import to_fp16
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
        return 48 if parameters.array.lanes <= 8 else 12

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


class Steps:
    """A sequence of steps and their results, for a stimulus."""

    def __init__(self, parameters: VedaCoreParameters):
        p = self.parameters = parameters
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
        self.results: list[StepResult] = []
        self.kept: list[np.ndarray] = []
        self._q: list[np.ndarray] = []
        self._kv: list[np.ndarray] = []
        self._fields: dict[str, list[int]] = {}
        self.work: list[StepWork | None] = []
        self._rows: list[int] = []  # the memory's row of each slot used in this sequence
        shape = (p.kv_heads, 2, p.capacity, p.array.lanes)
        self._written = np.zeros(shape, np.float16)  # K and V as the memory must hold them

    def length(self, restart: bool) -> int:
        """Slots of the next step, the new one included."""
        return 1 if restart else len(self.core.engine.positions) + 1

    def add(
        self,
        q,
        k,
        v,
        *,
        restart: bool,
        vote: bool,
        evict: bool,
        group: int | None = None,
        **fields,
    ) -> StepResult:
        """A step with ``q [heads, d]`` and ``k, v [kv heads, d]``, and its command's other fields.

        A refused command's rows are not offered.
        """
        heads = len(q)
        group = group or -(-heads // len(k))
        settings: dict[str, Any] = {
            "group": group,
            "restart": restart,
            "vote_cast": vote,
            "evict": evict,
        }
        slot = self.length(restart) - 1
        result = self.core.step(q, k, v, **settings, **fields)
        if len(self.results) % 2:  # 0 counts as 1
            heads, group = (0 if number == 1 else number for number in (heads, group))
        fields |= {"restart": restart, "vote": vote, "evict": evict, "heads": heads, "group": group}
        for name, value in fields.items():
            self._fields.setdefault(name, []).append(int(value))
        self._q.append(q[: len(result.o)])
        self.results.append(result)
        self.kept.append(self.core.engine.positions.copy())
        if result.refused:
            self.work.append(None)
            return result
        self._write(slot, k, v, result)
        self._kv.append(np.stack([k, v], axis=1).reshape(-1, k.shape[1]))
        evictions = sum(report.evict for report in result.reports)
        votes = vote and not result.reports[0].invalid
        self.work.append(StepWork(result.p.shape[1], len(q), len(k), votes, evictions))
        return result

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

    def stimulus(self, notes: list[str], since: int = 0) -> Stimulus:
        """All steps, or those from number `since` on, for a core that has ended the others.

        Only all steps say what the memory holds after them.
        """
        p = self.parameters
        results, work = self.results[since:], self.work[since:]
        before = [step for step in self.work[max(0, since - 1) : since] if step is not None]
        cycles = p.cycles([*before, *work], pause=SESSION_PAUSE if before else 0)
        cycles -= p.cycles(before) + SESSION_PAUSE - 1 if before else 0
        accepted = sum(step is not None for step in self.work[:since])
        number = np.arange(len(results))
        reports = [report for result in results for report in result.reports]
        names = ("evict", "slot", "position", "length", "invalid", "last", "error")
        heads = np.array([len(q) for q in self._q[since:]])
        last = np.zeros(heads.sum(), bool)
        last[np.cumsum(heads[heads > 0]) - 1] = True
        return Stimulus(
            inputs=inputs_of(
                p,
                {n: np.array(v[since:]) for n, v in self._fields.items()},
                np.concatenate(self._q[since:]),
                np.concatenate(self._kv[accepted:]),
            ),
            outputs={
                "o": payload.pack(
                    p.output_layout,
                    {
                        "o": to_bits(np.concatenate([r.o for r in results])),
                        "invalid": np.concatenate([r.invalid for r in results]),
                        "last": last,
                    },
                ),
                "report": payload.pack(
                    p.schedule.report_layout,
                    {n: np.array([int(getattr(r, n)) for r in reports]) for n in names},
                ),
            },
            transaction_of={
                "o": np.repeat(number, heads),
                "report": np.repeat(number, [len(r.reports) for r in results]),
            },
            transactions=len(results),
            cycles=cycles,
            notes=notes,
            memories={"cache": self.memory(checked=since == 0)},
        )

    def memory(self, checked: bool = False) -> Memory:
        """As many rows as the cache has: a request beyond them ends the run with a failure.

        checked
            Whether all rows must be as these steps leave them.
        """
        p = self.parameters
        rows = p.kv_heads * 2 * p.capacity
        empty = np.zeros((rows, payload.words(p.row_layout)), np.uint32)
        after = rows_of(p, self._written.reshape(rows, -1)) if checked else None
        return Memory(empty, "request", "response", write="write", write_data="data", after=after)


def inputs_of(
    p: VedaCoreParameters, command: dict[str, np.ndarray], q: np.ndarray, kv: np.ndarray
) -> dict[str, np.ndarray]:
    """Beats of commands, by field, and of their rows ``[rows, d]``; k and v of a head in turn."""
    return {
        "command": payload.pack(p.schedule.command_layout, command),
        "kv": rows_of(p, kv),
        "q": rows_of(p, q),
    }


def rows_of(p: VedaCoreParameters, rows: np.ndarray) -> np.ndarray:
    return payload.pack(p.row_layout, {"": to_bits(rows)})


def target_of(p: VedaCoreParameters) -> int:
    """Rows kept in real sequences."""
    return min(p.capacity - 1, 24)


def fit(array: np.ndarray, lanes: int) -> np.ndarray:
    """FP16 rows, cut or padded to `lanes` elements."""
    array = array[..., :lanes]
    half, _ = to_fp16("", array.reshape(-1, array.shape[-1]))
    half = np.nan_to_num(half.reshape(array.shape), posinf=65504, neginf=-65504)
    return np.pad(half, [(0, 0)] * (array.ndim - 1) + [(0, lanes - array.shape[-1])])


def layers_of(p: VedaCoreParameters, trace: Trace):
    """``float16 q, k, v [layer, heads, token, d]`` of the core's number of heads, and notes."""
    if trace.q is None or trace.k is None or trace.v is None or trace.scale is None:
        x = next(iter((trace.x or {n: w.T for n, w in trace.w.items()}).values()))
        size = x.shape[-1]
        x = fit(np.asarray(x, np.float64), p.array.lanes)[None, None]
        x = x / (np.abs(x.astype(np.float64)).max() or 1)
        q, k = (np.repeat(x, n, axis=1).astype(np.float16) for n in (p.heads, p.kv_heads))
        note = "The trace has no q, k and v: all heads have rows of activations or weights instead"
        return q, k, k, [f"{note}, {fitted(size, p.array.lanes)}; that sequence is repeated."]
    kv_heads = min(p.kv_heads, trace.k.shape[1])
    group = min(trace.group, p.heads // kv_heads)
    heads = (np.arange(kv_heads)[:, None] * trace.group + np.arange(group)).ravel()
    q = fit(trace.q[:, heads].astype(np.float64) * trace.scale, p.array.lanes)
    k, v = (fit(x[:, :kv_heads], p.array.lanes) for x in (trace.k, trace.v))
    note = f"q, k and v of {len(heads)} query heads of {kv_heads} kv heads"
    note += f", {fitted(trace.q.shape[-1], p.array.lanes)}; a layer's first tokens are a sequence."
    return q, k, v, [note]


def fitted(size: int, lanes: int) -> str:
    return (
        f"{'cut' if size > lanes else 'filled up'} to {lanes} elements"
        if size != lanes
        else "whole"
    )


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
    """A command of too many heads, if its fields are wide enough for one."""
    p = steps.parameters
    most = (1 << p.heads.bit_length()) - 1
    refused = [
        (heads, group)
        for heads in range(1, most + 1)
        for group in range(1, most + 1)
        if heads > p.heads or heads > p.kv_heads * group
    ]
    if not refused:
        return
    heads, group = refused[rng.integers(0, len(refused))]
    row = np.ones((heads, p.array.lanes), np.float16)
    flags = dict(zip(("restart", "vote", "evict"), sometimes(rng, 0.5, 3), strict=True))
    steps.add(row, row, row, group=group, target=0, protected=0, a=A, b=B, **flags)


def random_steps(p: VedaCoreParameters, steps: int, rng: np.random.Generator) -> Steps:
    """Sequences of any length and heads; equal rows, so that votes tie; infinities and NaNs.

    The first is one of the short ones that evict. Some fill the cache with commands that do not
    evict, and evict many rows in their last step. Some have many more tokens than rows, some very
    few of both. Between steps are commands that the core refuses.
    """
    done = Steps(p)
    left = 0
    d = p.array.lanes
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
        scale = rng.choice([0.3, 1.0, 3.0])
        q = (rng.standard_normal((heads, d)) * scale).astype(np.float16)
        k, v = rng.standard_normal((2, kv_heads, d)).astype(np.float16)
        if kind == "ties":
            k[:], q[:] = rng.integers(0, 2), 1
        elif kind == "special" and sometimes(rng, 0.3):
            operand = (q, k, v)[rng.integers(0, 3)]
            operand[tuple(rng.integers(0, operand.shape))] = rng.choice([np.inf, -np.inf, np.nan])
        elif kind == "large" and sometimes(rng, 0.2):
            q, k = np.full_like(q, 65504), np.full_like(k, rng.choice([-65504, 65504]))
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
