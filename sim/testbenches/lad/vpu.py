"""Testbench of the vector processing unit. A transaction is an operation."""

import dataclasses

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.cycles import vpu_cycles
from golden.lad.vpu import DP, EM, S, vpu
from golden.trace import Trace
from hw.arith.float_format import FP16
from hw.lad.vpu import VpuParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import random_floats
from sim.testbenches.operands import numbers, to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes


@dataclasses.dataclass
class Operations:
    """Operations, one per row; ``vec1``, ``vec2`` ``float16[operations, d]``."""

    mode: np.ndarray
    load: np.ndarray
    vec1: np.ndarray
    vec2: np.ndarray
    scal: np.ndarray

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        return vpu(self.mode, self.load, self.vec1, self.vec2, self.scal)


class VpuTestbench:
    def default_vectors(self, parameters: VpuParameters) -> int:
        return 1500 if parameters.d <= 2 else 400 if parameters.d <= 8 else 32

    def stimulus(
        self, parameters: VpuParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is None:
            rng = np.random.default_rng(seed)
            return build(parameters, random_operations(parameters, vectors, rng), [])
        return build(parameters, *real_operations(parameters, trace, vectors))


testbench = VpuTestbench()


def real_operations(p: VpuParameters, trace: Trace, count: int) -> tuple[Operations, list[str]]:
    """For each head, a token's scores (DP), the terms of its output (S), and its query times its
    key (EM). Without attention, rows of activations or weights with each other."""
    parts, total = [], 0
    notes: list[str] = []
    number = 0
    while total < count:
        query, keys, weights, values, notes = _head(p, trace, number)
        n = len(keys)
        vec2 = np.concatenate([keys, values, keys[-1:]])
        vec1 = np.broadcast_to(query, vec2.shape)
        mode = np.repeat([DP, S, EM], [n, n, 1])
        scal = np.concatenate([weights, weights, weights[:1]])
        parts.append(Operations(mode, np.arange(2 * n + 1) == 0, vec1, vec2, scal))
        total += 2 * n + 1
        number += 1
    names = [field.name for field in dataclasses.fields(Operations)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Operations(**{name: array[:count] for name, array in joined.items()}), notes


def _head(p: VpuParameters, trace: Trace, number: int):
    """Query, keys, FP16 probabilities and values of one head, and notes."""
    fitted = f"cut or filled up to {p.d} elements"
    if trace.q is None or trace.k is None or trace.v is None:
        arrays = vectors_by_name(trace)
        name = list(arrays)[number % len(arrays)]
        rows = _fit(arrays[name], p.d)[:24]
        query, keys, values = rows[0], rows, rows[::-1]
        scores = (rows * query).sum(axis=1)
        notes = [f"No attention: rows are of {', '.join(arrays)}, {fitted}, repeated."]
    else:
        layers, heads, tokens, _ = trace.q.shape
        layer, head = number % layers, number // layers % heads
        n = min(tokens, 4 + 5 * number % 20)
        query = _fit(trace.q[layer, head, n - 1 : n] * trace.scale, p.d)[0]
        keys, values = (_fit(a[layer, head // trace.group, :n], p.d) for a in (trace.k, trace.v))
        scores = keys @ query
        notes = [f"q, k and v of the first tokens of heads in turn, {fitted}."]
    e = np.exp(np.clip(scores - scores.max(), -50, 0))
    half = [to_fp16("", a)[0] for a in (query, keys, e / e.sum(), values)]
    return *half, notes


def _fit(array: np.ndarray, d: int) -> np.ndarray:
    """Rows cut or padded to `d` elements, in FP16's range."""
    rows = np.clip(np.asarray(array, np.float64)[:, :d], -65504, 65504)
    return np.pad(rows, ((0, 0), (0, d - rows.shape[1])))


def random_operations(p: VpuParameters, count: int, rng: np.random.Generator) -> Operations:
    """Runs of one mode and single operations, vectors of any kind of numbers, loads anywhere."""
    lengths = rng.choice([1, 1, 1, 2, 3, 20], count)
    mode = np.repeat(rng.integers(0, 4, count), lengths)[:count]
    load = sometimes(rng, 0.25, count)
    load[0] = True
    vec1, vec2 = (np.empty((count, p.d), np.float16) for _ in range(2))
    scal = np.empty(count, np.float16)
    kinds = rng.choice(["plain", "plain", "any", "small", "one", "special"], (2, count))
    for row in range(count):
        vec1[row] = numbers(kinds[0, row], p.d, rng)
        vec2[row] = numbers(kinds[1, row], p.d, rng)
        scal[row] = numbers(kinds[0, row], 1, rng)[0]
    # Corner cases of the multipliers, and, with factors of 1, of the tree's first adders.
    chosen = rng.random(count)
    a, b = chosen < 0.25, (chosen >= 0.25) & (chosen < 0.5)
    corners = random_floats("fp16", count * p.d, [], rng)
    related = random_floats("fp16", count * p.d, [corners], rng)
    corners, related = (x.reshape(count, p.d) for x in (corners, related))
    vec1[a], vec2[a] = corners[a], related[a]
    vec1[b], vec2[b] = 1, corners[b]
    vec2[b, 1::2] = related[b, 0 : 2 * (p.d // 2) : 2]
    load |= a | b
    # Half of the products cancel the others, so that low-order bits are observable.
    half = p.d // 2
    for chosen_row in np.flatnonzero(chosen > 0.7):
        vec1[chosen_row, half : 2 * half] = -1
        load[chosen_row] = True
        with np.errstate(all="ignore"):
            vec2[chosen_row, half : 2 * half] = vec1[chosen_row, :half] * vec2[chosen_row, :half]
    return Operations(mode, load, vec1, vec2, scal)


def build(p: VpuParameters, operations: Operations, notes: list[str]) -> Stimulus:
    """The stimulus of these operations."""
    o = operations
    vectors, dots = o.results()
    number = np.arange(len(o.mode))
    fields = {
        "mode": o.mode,
        "load": o.load,
        "vec1": to_bits(o.vec1),
        "vec2": to_bits(o.vec2),
        "scal": to_bits(o.scal),
    }
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, fields)},
        outputs={
            "o_vec": payload.pack(p.vector, {"": to_bits(vectors)}),
            "o_scal": payload.pack(FP16, {"payload": to_bits(dots)}),
        },
        transaction_of={
            "o_vec": number[(o.mode == EM) | (o.mode == S)],
            "o_scal": number[o.mode == DP],
        },
        transactions=len(o.mode),
        cycles=vpu_cycles(list(o.mode), latency=p.latency, dot_latency=p.dot_latency),
        notes=notes,
    )
