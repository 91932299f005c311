"""Testbench of the tile: tokens of sequences in, outputs, reports and the memory checked.

A transaction is a job. The memory begins with random rows, as it would on a device, and
must end with those of the bit-exact model: every word of K, V, codes, G, counters and caches.
"""

from typing import Any

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.lad_tile import HeadStep, LadTile, TileSizes
from golden.lad.linear import linear
from golden.trace import Trace
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import to_fp16
from sim.testbenches.strategies import sometimes

KINDS = (
    "ties",  # equal keys and queries
    "special",  # an infinity or NaN in q, k or v
    "large",  # scores beyond FP16
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


class Tokens:
    """Jobs for a tile, and what they must give.

    memory
        Its contents at the beginning; zeros if not given.
    """

    def __init__(self, parameters: LadTileParameters, memory: np.ndarray | None = None):
        self.parameters = parameters
        self.model = LadTile(sizes_of(parameters), memory)
        self._first = self.model.memory.copy()
        self._fields: dict[str, list[int]] = {name: [] for name, _ in parameters.job_layout}
        self._q: list[np.ndarray] = []
        self._kv: list[np.ndarray] = []
        self.results: list[list[HeadStep]] = []
        self._y: list[np.ndarray] = []

    def add(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        n: int,
        *,
        clear: bool = False,
        heads: int | None = None,
        group: int | None = None,
    ) -> list[HeadStep]:
        """A token: float16 queries [heads, d], times 1 / sqrt d, and rows [kv heads, d].

        With other numbers in the job, rows that the tile does not accept are left out.
        """
        heads = len(q) if heads is None else heads
        group = max(1, len(q) // len(k)) if group is None else group
        found = self.model.step(n, heads, group, clear, q, k, v)
        self._job(n=n, heads=heads, group=group, clear=int(clear))
        size = group if 1 <= group <= self.parameters.heads else 1
        kv_heads = -(-len(found) // size)
        self._q.append(q[: len(found)])
        self._kv.append(np.stack([k[:kv_heads], v[:kv_heads]], axis=1).reshape(-1, q.shape[1]))
        self._y.append(np.zeros((0, VPUS), np.float32))
        self.results.append(found)
        return found

    def prefetch(self, n: int, heads: int, group: int, most: int) -> None:
        """Load rows of active positions ahead of the next token; `n` is that of the last one."""
        self.model.prefetch(n, heads, group, most)
        self._job(n=n, heads=heads, group=group, prefetch=most)
        self._finish(np.zeros((0, self.parameters.d), np.float16), np.zeros((0, VPUS), np.float32))

    def multiply(self, vectors: np.ndarray, row: int, rows: int) -> np.ndarray:
        """A linear layer of float16 `vectors` [vectors, pieces, d]; float32[rows, 6]."""
        p = self.parameters
        pieces = vectors.shape[1]
        start = p.regions["weight"].base + row
        weights = self.model.memory[start : start + rows * pieces].view(np.float16)
        y = np.zeros((rows, VPUS), np.float32)
        y[:, : len(vectors)] = linear(vectors, weights.reshape(rows, pieces, p.d))
        self._job(heads=len(vectors), group=1, pieces=pieces, row=row, rows=rows)
        self._finish(vectors.reshape(-1, p.d), y)
        return y

    def _finish(self, q: np.ndarray, y: np.ndarray) -> None:
        """A job without a step."""
        self._q.append(q)
        self._kv.append(np.zeros((0, self.parameters.d), np.float16))
        self._y.append(y)
        self.results.append([])

    def _job(self, **fields: int) -> None:
        for name, values in self._fields.items():
            values.append(int(fields.get(name, 0)))

    def stimulus(self, notes: list[str], since: int = 0) -> Stimulus:
        """All jobs, or those from number `since` on, for a tile that has done the others."""
        p, results = self.parameters, self.results[since:]
        heads = [len(found) for found in results]
        steps = [step for found in results for step in found]
        last = np.zeros(len(steps), bool)
        last[np.cumsum([number for number in heads if number]) - 1] = True
        names = [name for name, _ in p.report_layout]
        number = np.arange(len(results))
        owner = np.repeat(number, heads)
        outputs = {
            "o": payload.pack(
                p.output_layout,
                {
                    "o": to_bits(_rows([step.o for step in steps], (p.d,), np.float16)),
                    "invalid": np.array([step.invalid for step in steps], bool),
                    "last": last,
                },
            ),
            "report": payload.pack(
                p.report_layout,
                {n: np.array([step.report[n] for step in steps], np.int64) for n in names},
            ),
        }
        owners = {"o": owner, "report": owner}
        if p.weights:
            y = self._y[since:]
            sums = np.concatenate(y)
            ends = np.zeros(len(sums), bool)
            ends[np.cumsum([len(part) for part in y if len(part)], dtype=np.intp) - 1] = True
            outputs["y"] = payload.pack(p.y_layout, {"y": to_bits(sums), "last": ends})
            owners["y"] = np.repeat(number, [len(part) for part in y])
        return Stimulus(
            inputs={
                "job": payload.pack(
                    p.job_layout, {n: np.array(v[since:]) for n, v in self._fields.items()}
                ),
                "q": rows_of(p, np.concatenate(self._q[since:])),
                "kv": rows_of(p, np.concatenate(self._kv[since:])),
            },
            outputs=outputs,
            transaction_of=owners,
            transactions=len(results),
            cycles=sum(p.cycles(step.report) for step in steps),
            cycles_exact=False,
            notes=notes,
            memories={"memory": self.memory()},
        )

    def memory(self) -> Memory:
        p = self.parameters
        return Memory(
            memory_rows(p, self._first),
            "request",
            "response",
            write="write",
            write_data="data",
            after=memory_rows(p, self.model.memory),
        )


def _rows(rows: list[np.ndarray], shape: tuple[int, ...], kind: type) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, *shape), kind)


def rows_of(p: LadTileParameters, rows: np.ndarray) -> np.ndarray:
    return payload.pack(p.row, {"": to_bits(rows)})


def memory_rows(p: LadTileParameters, rows: np.ndarray) -> np.ndarray:
    """Memory words of uint16[rows, d]."""
    return np.ascontiguousarray(rows, "<u2").view("<u4").astype(np.uint32)


class LadTileTestbench:
    def default_vectors(self, parameters: LadTileParameters) -> int:
        return 60 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: LadTileParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return random_tokens(parameters, vectors, rng).stimulus([])
        tokens, notes = real_tokens(parameters, trace, vectors, rng)
        return tokens.stimulus(notes)


testbench = LadTileTestbench()


def random_memory(p: LadTileParameters, rng: np.random.Generator) -> np.ndarray:
    """Random bits, but for weights, which are numbers."""
    memory = rng.integers(0, 1 << 16, (p.memory_rows, p.d)).astype(np.uint16)
    if p.weights:
        start = p.regions["weight"].base
        weights = rng.standard_normal((p.weights, p.d)).astype(np.float16)
        memory[start : start + p.weights] = to_bits(weights)
    return memory


def random_tokens(p: LadTileParameters, jobs: int, rng: np.random.Generator) -> Tokens:
    """Sequences of any length, some of special values; jobs with numbers out of range.

    Between their tokens are prefetch jobs and linear layers, if the tile has them.
    """
    tokens = Tokens(p, random_memory(p, rng))
    left, n = 0, 0
    kind, scale, drift = "plain", 1.0, np.zeros((1, p.d))
    count, group, kv_heads = 1, 1, 1
    while len(tokens.results) < jobs:
        if p.weights and sometimes(rng, 0.1):
            multiply(tokens, rng)
            continue
        if p.prefetch and n and left and sometimes(rng, 0.4):
            tokens.prefetch(n, count, group, int(rng.integers(1, p.prefetch + 1)))
            continue
        begins = bool(tokens.results) and left == 0
        if left == 0:
            kind = str(rng.choice(KINDS))
            scale = float(rng.choice([0.3, 1.0, 3.0]))
            longest = min(p.positions, int(rng.choice([8, 40, p.positions])))
            left, n = int(rng.integers(1, longest + 1)), 0
            group = int(rng.integers(1, p.heads + 1))
            count = int(rng.integers(1, min(p.heads, group * p.kv_heads) + 1))
            kv_heads = -(-count // group)
            drift = rng.standard_normal((count, p.d)) * scale
        n, left = n + 1, left - 1
        q, k, v = random_operands(kind, drift, scale, kv_heads, rng)
        given = {"n": n, "heads": count, "group": group}
        if begins and sometimes(rng, 0.2):
            given["n"] = int(rng.integers(0, p.positions + 1))  # counts as 1
        if count == 1 and group == 1 and sometimes(rng, 0.3):
            given |= {"heads": 0, "group": 0}  # count as 1
        tokens.add(q, k, v, given.pop("n"), clear=begins, **given)
    return tokens


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
    elif kind == "collinear":
        k[:] = k[0, 0] * np.linspace(1, 2, d)  # some of them point the other way
    elif kind == "special" and sometimes(rng, 0.2):
        operand = (q, k, v)[rng.integers(0, 3)]
        operand[tuple(rng.integers(0, operand.shape))] = rng.choice([np.inf, -np.inf, np.nan])
    elif kind == "large" and sometimes(rng, 0.2):
        q, k = np.full_like(q, 60000), np.full_like(k, rng.choice([-60000, 60000]))
    return q, k, v


def multiply(tokens: Tokens, rng: np.random.Generator) -> None:
    """A linear layer of any size; the weights are the random rows of the memory."""
    p = tokens.parameters
    pieces = int(rng.integers(1, min(PIECES, p.weights) + 1))
    rows = int(rng.integers(1, p.weights // pieces + 1))
    row = int(rng.integers(0, p.weights - rows * pieces + 1))
    vectors = int(rng.integers(1, min(VPUS, p.heads) + 1))
    x = rng.standard_normal((vectors, pieces, p.d)).astype(np.float16)
    tokens.multiply(x, row, rows)


def real_tokens(
    p: LadTileParameters, trace: Trace, jobs: int, rng: np.random.Generator
) -> tuple[Tokens, list[str]]:
    """The first tokens of the trace's layers in turn, as sequences, every third one prefetched."""
    q, k, v, notes = layers_of(p, trace)
    tokens = Tokens(p, random_memory(p, rng))
    heads, group = q.shape[1], -(-q.shape[1] // k.shape[1])
    length = min(q.shape[2], p.positions, jobs if jobs < 90 else -(-jobs // 2))
    token = 0
    while len(tokens.results) < jobs:
        layer, t = token // length % len(q), token % length
        tokens.add(q[layer, :, t], k[layer, :, t], v[layer, :, t], t + 1, clear=t == 0)
        token += 1
        if p.prefetch and token % 3 == 0 and len(tokens.results) < jobs:
            tokens.prefetch(t + 1, heads, group, p.prefetch)
    return tokens, notes


def layers_of(p: LadTileParameters, trace: Trace):
    """``float16 q, k, v [layer, heads, token, d]``, q times the scale, and notes."""
    if trace.q is None or trace.k is None or trace.v is None or trace.scale is None:
        x = next(iter((trace.x or {n: w.T for n, w in trace.w.items()}).values()))
        x = fit(np.asarray(x, np.float64), p.d)[None, None]
        x = (x / (np.abs(x.astype(np.float64)).max() or 1)).astype(np.float16)
        note = "The trace has no q, k and v: a head has rows of activations or weights instead"
        return x, x, x, [f"{note}, cut or filled up to {p.d} elements; they are repeated."]
    kv_heads = min(p.kv_heads, trace.k.shape[1])
    group = min(trace.group, p.heads // kv_heads)
    chosen = (np.arange(kv_heads)[:, None] * trace.group + np.arange(group)).ravel()
    q = fit(trace.q[:, chosen].astype(np.float64) * trace.scale, p.d)
    k, v = (fit(x[:, :kv_heads], p.d) for x in (trace.k, trace.v))
    note = f"q, k and v of {len(chosen)} query heads of {kv_heads} kv heads, cut or filled up"
    return q, k, v, [f"{note} to {p.d} elements; a layer's first tokens are repeated."]


def fit(array: np.ndarray, d: int) -> np.ndarray:
    """FP16 rows, cut or padded to `d` elements."""
    array = array[..., :d]
    half, _ = to_fp16("", array.reshape(-1, array.shape[-1]))
    half = np.nan_to_num(half.reshape(array.shape), posinf=65504, neginf=-65504)
    return np.pad(half, [(0, 0)] * (array.ndim - 1) + [(0, d - array.shape[-1])])
