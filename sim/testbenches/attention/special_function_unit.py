"""Testbench of the special function unit: commands and vectors in, results out.

A transaction is a vector.
"""

import numpy as np

from golden.attention.special_function_unit import NAN, layer_norm, softmax
from golden.trace import Trace
from hw.attention.special_function_unit import Operation, SpecialFunctionUnitParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import corners, random_floats
from sim.testbenches.attention.low_order_vectors import Vector, low_order_vector
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

EPS = np.float32(1e-5)
_MOST = 64  # elements of most vectors
_STEP = (5**0.5 - 1) / 2  # golden ratio: its multiples are spread evenly modulo 1


class SpecialFunctionUnitTestbench:
    def default_vectors(self, parameters: SpecialFunctionUnitParameters) -> int:
        return 150 if parameters.length <= 64 else 60

    def stimulus(
        self,
        parameters: SpecialFunctionUnitParameters,
        trace: Trace | None,
        vectors: int,
        seed: int,
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is not None:
            chosen, notes = real_vectors(trace, parameters, vectors, rng)
            return build(parameters, chosen, notes)
        return build(parameters, random_vectors(parameters, vectors, rng), [])


testbench = SpecialFunctionUnitTestbench()


def expected(p: SpecialFunctionUnitParameters, x: np.ndarray, op: int, inverse, eps):
    """Results of a vector, cut to the longest, and whether they are invalid."""
    kept = x[: p.length]
    if len(x) > p.length:
        return np.full(p.length, NAN), True
    if p.is_softmax(op):
        return softmax(kept, p.length, p.tile)
    return layer_norm(kept, inverse, eps, rms=op == Operation.RMS_NORM)


def reference(x: np.ndarray, op: int, eps: float) -> np.ndarray:
    """The same in float64."""
    wide = x.astype(np.float64)
    if op == Operation.SOFTMAX:
        e = np.exp(wide - wide.max())
        return e / e.sum()
    mean = wide.mean() if op == Operation.LAYER_NORM else 0.0
    return (wide - mean) / np.sqrt(((wide - mean) ** 2).mean() + float(eps))


def real_vectors(
    trace: Trace, p: SpecialFunctionUnitParameters, vectors: int, rng: np.random.Generator
) -> tuple[list[Vector], list[str]]:
    """Softmax, layer norm and RMS norm in turn, of a trace's attention scores and activations."""
    rows, notes, arrays = [], [], vectors_by_name(trace)
    for name, array in arrays.items():
        half, remarks = to_fp16(name, array)
        rows.append(half)
        notes += remarks
    chosen = []
    for n in range(vectors):
        operation = (Operation.SOFTMAX, Operation.LAYER_NORM, Operation.RMS_NORM)[n % 3]
        if operation == Operation.SOFTMAX and trace.q is not None:
            x = _scores(trace, p, n // 3, rng)
        else:
            some = rows[n // 3 % len(rows)]
            x = some[int(rng.integers(len(some)))][: p.length]
        chosen.append(Vector(x, int(operation), np.float32(1 / len(x)), EPS))
    scores = "" if trace.q is None else "Every third vector is one of scores of q and k; "
    others = f"rows of {', '.join(arrays)}, cut to {p.length} elements and repeated"
    notes.append(f"{scores}vectors are {others} where there are too few.")
    return chosen, notes


def _scores(trace: Trace, p: SpecialFunctionUnitParameters, n: int, rng) -> np.ndarray:
    assert trace.q is not None and trace.k is not None
    layers, heads, tokens, _ = trace.q.shape
    layer, head = n % layers, n // layers % heads
    token = int(rng.integers(min(tokens, p.length)))
    keys = trace.k[layer, head // trace.group, : token + 1].astype(np.float32)
    score = keys @ trace.q[layer, head, token].astype(np.float32) * np.float32(trace.scale)
    return to_fp16("scores", score)[0]


def random_vectors(
    p: SpecialFunctionUnitParameters, vectors: int, rng: np.random.Generator
) -> list[Vector]:
    """Vectors of any length and operation: a few too long, some with infinities and NaNs."""
    chosen = []
    for number in range(vectors):
        kind = rng.random()
        if kind < 0.5:
            chosen.append(low_order_vector(p, number * _STEP % 1, rng))
            continue
        if kind < 0.6:
            chosen.append(short_vector(rng))
            continue
        n = int(rng.integers(1, min(p.length, rng.choice([6, 2 * p.tile + 2, _MOST])) + 1))
        kind = rng.random()
        if kind < 0.1:
            n = p.length
        elif kind < 0.14:
            n = p.length + int(rng.choice([1, 2, 7, p.length + 20]))
        x = random_elements(n, rng)
        operation = int(rng.choice([0, 0, 0, 0, 1, 1, 2, 3]))
        inverse = np.float32(1 / n)
        eps = EPS
        if operation != Operation.SOFTMAX and sometimes(rng, 0.4):
            # Mean square and squared mean nearly equal: their difference is their last bits.
            mean = rng.choice([-1, 1]) * 2.0 ** rng.uniform(-8, 14)
            spread = mean * 2.0 ** -rng.uniform(3, 13)
            x = (mean + spread * rng.normal(size=n)).astype(np.float16)
            eps = np.float32(rng.choice([0, 1, 1]) * (spread * rng.random()) ** 2)
            inverse *= np.float32(1 + rng.integers(-4, 5) * 2.0**-23)
            chosen.append(Vector(x, operation, inverse, eps))
            continue
        kind = rng.random()
        if kind < 0.1:
            eps = np.float32(rng.choice([0, 1e-38, 1e-16, 1, -1, 3e38, np.inf, np.nan]))
        elif kind < 0.2:
            inverse = np.float32(rng.choice([0, 1, -1, 1e-38, 1e20, 3e38, np.inf, np.nan]))
        elif kind < 0.4:
            eps = np.float32(2.0 ** rng.uniform(-120, 120))
        if np.abs(x).max() < 2.0**-19:
            eps = np.float32(0)  # else eps would hide the squares
        chosen.append(Vector(x, operation, inverse, eps))
    return chosen


def short_vector(rng: np.random.Generator) -> Vector:
    """One or two elements: any sum of exponentials from 1 to 2, or any mean square."""
    if sometimes(rng, 0.5):
        x = np.array([0, np.log(rng.uniform(0.001, 1))]) + rng.choice([0, 3])
        return Vector(x.astype(np.float16), int(Operation.SOFTMAX), np.float32(0), EPS)
    x = rng.uniform(1, 2, 1).astype(np.float16)
    eps = np.float32(rng.uniform(1, 2) * 2.0 ** rng.integers(-4, 5))
    return Vector(x, int(Operation.RMS_NORM), np.float32(0), eps)


def random_elements(n: int, rng: np.random.Generator) -> np.ndarray:
    """``float16[n]``: mostly numbers of any spread and mean."""
    spread = 2.0 ** rng.integers(-8, 8)
    with np.errstate(over="ignore"):
        x = rng.normal(scale=spread, size=n) + rng.choice([0, 0, 1, 100, -3000])
        x = x.astype(np.float16)
    kind = rng.random()
    if kind < 0.05:
        x[:] = -np.inf
    elif kind < 0.12:
        x[:] = rng.choice(corners(np.float16))
    elif kind < 0.24:
        x = random_floats("fp16", n, [], rng)
        x = np.where(np.isfinite(x) | (sometimes(rng, 0.2)), x, np.float16(-np.inf))
    elif kind < 0.36:
        # Rising or falling scores: the sum is corrected with every tile, or never.
        order = np.sort(x)[:: rng.choice([-1, 1])]
        x = np.where(sometimes(rng, 0.9, n), order, np.float16(-np.inf))
    elif kind < 0.48:
        # Octaves apart, up to where a term, or the sum so far, is shifted out.
        far = rng.choice([0, 0.7, 10, 20, 22, 22.5, 30, 43, 44, 45, 200], n)
        bit = np.log(2) * (2.0 ** rng.integers(5, 17, n) + rng.integers(0, 40, n))
        far = np.where(sometimes(rng, 0.2, n), bit, far)
        sign = rng.choice([1, 1, -1], rng.choice([1, n]))
        x = (rng.choice([0, 60, -60]) - far * sign).astype(np.float16)
    elif kind < 0.53:
        x = (rng.integers(-9, 10, n) * 2.0**-24).astype(np.float16)
    elif kind < 0.6 and n > 1:
        # Two scores far above the others: a sum from 1 to 2, any entry of the reciprocals.
        x = (-20 - np.abs(x).clip(0, 9)).astype(np.float16)
        x[rng.permutation(n)[:2]] = 0, np.log(rng.uniform(0.001, 1))
    some = rng.random(n) < rng.choice([0, 0, 0, 0, 1 / n, 0.3])
    special = rng.choice(np.array([-np.inf, -np.inf, -np.inf, np.inf, np.nan], np.float16))
    return np.where(some, special, x)


def build(p: SpecialFunctionUnitParameters, chosen: list[Vector], notes: list[str]) -> Stimulus:
    """The stimulus of these vectors."""
    results = [expected(p, *vector) for vector in chosen]
    sizes = [len(vector.x) for vector in chosen]
    ends = np.cumsum(sizes) - 1
    last = np.zeros(sum(sizes), bool)
    last[ends] = True
    lengths = [len(y) for y, _ in results]
    output_last = np.zeros(sum(lengths), bool)
    output_last[np.cumsum(lengths) - 1] = True
    scalars = {
        name: np.array([getattr(vector, name) for vector in chosen], np.float32).view(np.uint32)
        for name in ("inverse", "eps")
    }
    operations = np.array([vector.operation for vector in chosen])
    x = np.concatenate([vector.x for vector in chosen]).view(np.uint16)
    y = np.concatenate([y for y, _ in results]).astype(np.float16).view(np.uint16)
    invalid = np.repeat([flag for _, flag in results], lengths)
    return Stimulus(
        inputs={
            "command": payload.pack(p.command_layout, {"op": operations, **scalars}),
            "i": payload.pack(p.input_layout, {"x": x, "last": last}),
        },
        outputs={
            "o": payload.pack(p.output_layout, {"y": y, "last": output_last, "invalid": invalid})
        },
        transaction_of={"o": np.repeat(np.arange(len(chosen)), lengths)},
        transactions=len(chosen),
        cycles=p.cycles(list(zip(sizes, operations.tolist(), strict=True))),
        notes=notes,
    )
