"""What testbenches of decode cores share: steps with their results, operands and the memory.

The core has the ports of :class:`hw.attention.decode_core.DecodeCore`. A transaction is a step, one
token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from amaranth.lib import data

from golden.arith.formats import to_bits
from golden.attention.decode_core import StepResult
from golden.trace import Trace
from hw.attention.decode_core import DecodeParameters
from hw.attention.head_order import HeadOrderParameters
from hw.attention.vector_path import VectorPathParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import SESSION_PAUSE, Stimulus
from sim.core.streams import Streams, last_of
from sim.testbenches.memory import memory_of
from sim.testbenches.operands import to_fp16
from sim.testbenches.strategies import sometimes

P = TypeVar("P", bound=DecodeParameters)

KINDS = (
    "ties",  # equal keys and queries
    "special",  # an infinity or NaN in q, k or v
    "large",  # scores beyond FP16
    "faint",  # a few rows take all but some 2^-20, so that low bits of sums differ
    *("plain", "plain", "plain"),
)
"""Kinds of random sequences, each as likely as it is often listed."""


class DecodeBench(ABC, Generic[P]):
    """A sequence of steps and their results, for a stimulus.

    A core's own bench says what its bit-exact model does (:meth:`model_step`), how much work a step
    is, and what the memory holds.

    results
        Result of each step.
    work
        Work of each step, for the parameters' formula of cycles; None for a refused command.
    """

    def __init__(self, parameters: P):
        self.parameters = parameters
        self.results: list[StepResult] = []
        self.work: list[Any] = []
        self._inputs = self.input_streams()
        self._outputs = output_streams(parameters)

    def input_streams(self) -> Streams:
        """Streams of the core's inputs."""
        return input_streams(self.parameters)

    @abstractmethod
    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        """A step by the bit-exact model."""

    @abstractmethod
    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> Any:
        """The step's work, of a command that is not refused."""

    @abstractmethod
    def stored(self) -> np.ndarray:
        """``float16[kv heads, 2, capacity, d]``: K and V as the memory holds them."""

    def add(self, q, k, v, *, group: int | None = None, **command: Any) -> StepResult:
        """A step with ``q [heads, d]``, ``k, v [kv heads, d]`` and its command's other fields.

        A block of tokens, of a core that has such steps, has them as a second axis. A refused
        command's rows are not offered. By default, heads are spread evenly.
        """
        group = -(-len(q) // len(k)) if group is None else group
        result = self.model_step(q, k, v, group, **command)
        number, refused = len(self.results), result.refused
        self.work.append(None if refused else self.work_of(result, len(q), group, command))
        offer(self._inputs, number, {"heads": len(q), "group": group, **command})
        if not refused:
            self.offer_rows(number, q, k, v)
            self._outputs.add("o", number, outputs_of(result))
        for report in result.reports:
            fields = {name: [getattr(report, name)] for name, _ in self.parameters.report_layout}
            self._outputs.add("report", number, fields)
        self.results.append(result)
        return result

    def offer_rows(self, number: int, q, k, v) -> None:
        """The rows of command `number`, after its step by the model."""
        offer_rows(self._inputs, number, q, k, v)

    def add_refused(self, heads: int, group: int, **command: Any) -> StepResult:
        """A command that does not fit."""
        rows = np.ones((heads, self.parameters.d), np.float16)
        result = self.add(rows, rows, rows, group=group, **command)
        assert result.refused
        return result

    def cycles(self, since: int = 0) -> int:
        """Cycles of the steps from number `since` on, after those before have ended."""
        p, work = self.parameters, self.work[since:]
        before = [step for step in self.work[max(0, since - 1) : since] if step is not None]
        cycles = p.cycles([*before, *work], pause=SESSION_PAUSE if before else 0)
        return cycles - (p.cycles(before) + SESSION_PAUSE - 1 if before else 0)

    def stimulus(self, notes: list[str], since: int = 0, memory: bool = True) -> Stimulus:
        """All steps, or those from number `since` on, for a core that has ended the others.

        Only all steps say what the memory holds after them.

        memory
            Whether the stimulus has the core's memory.
        """
        return Stimulus(
            inputs=self._inputs.packed(since),
            outputs=self._outputs.packed(since),
            transaction_of=self._outputs.owners(since),
            transactions=len(self.results) - since,
            cycles=self.cycles(since),
            notes=notes,
            memories={"memory": self.memory(checked=since == 0)} if memory else {},
        )

    def memory(self, checked: bool = False) -> Memory:
        """As many rows as the core has: a request beyond them ends the run with a failure.

        checked
            Whether all rows must be as these steps leave them.
        """
        p = self.parameters
        rows = self.stored().reshape(-1, p.d)
        after = packed_rows(p, rows) if checked else None
        return memory_of(self.initial(len(rows)), after)

    def initial(self, rows: int) -> np.ndarray:
        """The memory's `rows` before the first step, packed."""
        return np.zeros((rows, payload.words(self.parameters.row_layout)), np.uint32)


def outputs_of(result: StepResult) -> dict[str, np.ndarray]:
    """Fields of the output ``o``."""
    return {"o": result.o, "invalid": result.invalid, "last": last_of([len(result.o)])}


def packed_rows(p: DecodeParameters, rows: np.ndarray) -> np.ndarray:
    return payload.pack(p.row_layout, {"": to_bits(rows)})


def rows_in_turn(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``[2 kv heads, d]``: K and V of each kv head in turn, of ``k, v [kv heads, d]``.

    With an axis of tokens after the heads, K and V of each of them.
    """
    return np.stack([k, v], axis=-2).reshape(-1, k.shape[-1])


class CoreParameters(Protocol):
    """Number of a core's heads, and layouts of its ports."""

    @property
    def d(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def command_layout(self) -> data.StructLayout: ...

    @property
    def row_layout(self) -> data.ArrayLayout: ...

    @property
    def output_layout(self) -> data.StructLayout: ...

    @property
    def report_layout(self) -> data.StructLayout: ...

    @property
    def vector_path(self) -> VectorPathParameters: ...


class HeadCounts(Protocol):
    """Number of a core's heads, and which commands fit them."""

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def order(self) -> HeadOrderParameters: ...


def input_streams(p: CoreParameters) -> Streams:
    """``command``, ``kv`` and ``q``, and inputs of units for vectors."""
    rows = {"command": p.command_layout, "kv": p.row_layout, "q": p.row_layout}
    return Streams(rows | p.vector_path.inputs)


def output_streams(p: CoreParameters) -> Streams:
    """``o`` and ``report``, and outputs of units for vectors."""
    return Streams({"o": p.output_layout, "report": p.report_layout} | p.vector_path.outputs)


def offer(inputs: Streams, number: int, command: Mapping[str, int]) -> None:
    """A command; fields left out are 0."""
    names = inputs.fields("command")
    inputs.add("command", number, {name: int(command.get(name, 0)) for name in names})


def offer_rows(inputs: Streams, number: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Rows ``q [heads, d]`` and ``k, v [kv heads, d]`` of a command."""
    inputs.add("q", number, {"": q.reshape(-1, q.shape[-1])})
    inputs.add("kv", number, {"": rows_in_turn(k, v)})


def random_rows(kind: str, heads: int, kv_heads: int, d: int, rng: np.random.Generator):
    """A token's float16 ``q [heads, d]``, ``k`` and ``v [kv heads, d]``."""
    scale = rng.choice([0.3, 1.0, 3.0])
    q = (rng.standard_normal((heads, d)) * scale).astype(np.float16)
    k, v = rng.standard_normal((2, kv_heads, d)).astype(np.float16)
    if kind == "ties":
        k[:], q[:] = rng.integers(0, 2), 1
    elif kind == "faint":
        q[:] = d**-0.5
        if sometimes(rng, 0.2):
            k[:] = 14 * d**-0.5
    elif kind == "special" and sometimes(rng, 0.3):
        operand = (q, k, v)[rng.integers(0, 3)]
        operand[tuple(rng.integers(0, operand.shape))] = rng.choice([np.inf, -np.inf, np.nan])
    elif kind == "large" and sometimes(rng, 0.2):
        q, k = np.full_like(q, 65504), np.full_like(k, rng.choice([-65504, 65504]))
    return q, k, v


def random_heads(p: HeadCounts, rng: np.random.Generator) -> tuple[int, int]:
    """``heads`` and ``group`` of a command that fits; the last group may be smaller."""
    heads = int(rng.integers(1, p.heads + 1))
    return heads, int(rng.integers(-(-heads // p.kv_heads), heads + 1))


def random_refused(p: HeadCounts, rng: np.random.Generator) -> tuple[int, int]:
    """``heads`` and ``group`` of a command that does not fit: too many heads, or none."""
    most = (1 << p.heads.bit_length()) - 1
    every = [(heads, group) for heads in range(most + 1) for group in range(most + 1)]
    refused = [pair for pair in every if not p.order.fits(*pair)]
    return refused[rng.integers(0, len(refused))]


def random_misfit(p: HeadCounts, most: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Tokens, ``heads`` and ``group`` of a command that does not fit.

    There are 0 tokens, or more than `most` if a field for `most` can hold them; or the heads and
    groups do not fit, whatever the tokens are.
    """
    end = 1 << most.bit_length()
    if sometimes(rng, 0.5):
        return int(rng.choice([0, *range(most + 1, end)])), *random_heads(p, rng)
    return int(rng.integers(0, end)), *random_refused(p, rng)


def random_steps(
    bench: DecodeBench,
    count: int,
    rng: np.random.Generator,
    lengths: Sequence[int],
    command: Callable[[], dict] = dict,
    same_heads: bool = False,
) -> None:
    """Add `count` steps: sequences of any length and heads, refused commands between.

    lengths
        Most tokens of a sequence; each sequence has one of these limits.
    command
        Fields of the commands of a sequence, drawn when it begins.
    same_heads
        Whether heads and groups seldom change within a sequence; a layer's never do.
    """
    p, remaining, kind, fields = bench.parameters, 0, KINDS[0], command()
    first = random_heads(p, rng)
    for _ in range(count):
        if sometimes(rng, 0.1):
            bench.add_refused(*random_refused(p, rng), restart=sometimes(rng, 0.5), **fields)
            continue
        restart = remaining == 0
        if restart:
            kind, fields = KINDS[rng.integers(0, len(KINDS))], command()
            remaining = int(rng.integers(1, int(rng.choice(lengths)) + 1))
            first = random_heads(p, rng)
        other = not restart and (not same_heads or sometimes(rng, 0.04))
        heads, group = random_heads(p, rng) if other else first
        rows = random_rows(kind, heads, -(-heads // group), p.d, rng)
        bench.add(*rows, group=group, restart=restart, **fields)
        remaining -= 1


def layers_of(p: CoreParameters, trace: Trace):
    """``float16 q, k, v [layer, heads, token, d]`` of the core's number of heads, and notes."""
    d = p.d
    if trace.q is None or trace.k is None or trace.v is None or trace.scale is None:
        x = next(iter((trace.x or {n: w.T for n, w in trace.w.items()}).values()))
        size = x.shape[-1]
        x = fit(np.asarray(x, np.float64), d)[None, None]
        x = x / (np.abs(x.astype(np.float64)).max() or 1)
        q, k = (np.repeat(x, n, axis=1).astype(np.float16) for n in (p.heads, p.kv_heads))
        note = "The trace has no q, k and v: all heads have rows of activations or weights instead"
        return q, k, k, [f"{note}, {fitted(size, d)}; that sequence is repeated."]
    kv_heads = min(p.kv_heads, trace.k.shape[1])
    group = min(trace.group, p.heads // kv_heads)
    heads = (np.arange(kv_heads)[:, None] * trace.group + np.arange(group)).ravel()
    q = fit(trace.q[:, heads].astype(np.float64) * trace.scale, d)
    k, v = (fit(x[:, :kv_heads], d) for x in (trace.k, trace.v))
    note = f"q, k and v of {len(heads)} query heads of {kv_heads} kv heads"
    note += f", {fitted(trace.q.shape[-1], d)}; a layer's first tokens are a sequence."
    return q, k, v, [note]


def fit(array: np.ndarray, d: int) -> np.ndarray:
    """FP16 rows, cut or padded to `d` elements."""
    array = array[..., :d]
    half, _ = to_fp16("", array.reshape(-1, array.shape[-1]))
    half = np.nan_to_num(half.reshape(array.shape), posinf=65504, neginf=-65504)
    return np.pad(half, [(0, 0)] * (array.ndim - 1) + [(0, d - array.shape[-1])])


def fitted(size: int, d: int) -> str:
    """What became of rows of that size, for a note."""
    return "whole" if size == d else f"{'cut' if size > d else 'filled up'} to {d} elements"


def add_layers(
    bench: DecodeBench,
    trace: Trace,
    count: int,
    longest: int,
    command: Mapping[str, int] | None = None,
) -> list[str]:
    """Add `count` steps: the first tokens of the trace's layers in turn, as sequences.

    longest
        Most tokens of a sequence.
    command
        Fields of all commands, besides ``restart``.

    Returns notes on the trace.
    """
    q, k, v, notes = layers_of(bench.parameters, trace)
    length = min(q.shape[2], longest)
    for step in range(count):
        sequence, token = divmod(step, length)
        layer = sequence % len(q)
        rows = (x[layer, :, token] for x in (q, k, v))
        bench.add(*rows, restart=token == 0, **(command or {}))
    return notes
