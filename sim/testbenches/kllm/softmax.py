"""Testbench of the softmax: rows of scores in, probabilities out. A transaction is a row."""

import numpy as np

from golden.kllm.softmax import softmax
from golden.trace import Trace
from hw.kllm.softmax_parameters import SoftmaxParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import corners, random_floats
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

_LONGEST = 64  # beats of most rows


class SoftmaxTestbench:
    def default_vectors(self, parameters: SoftmaxParameters) -> int:
        return 500 if parameters.lanes <= 2 else 40

    def stimulus(
        self, parameters: SoftmaxParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        if trace is not None:
            rows, notes = real_rows(trace, p, vectors, rng)
            keeps = [np.ones(len(row), bool) for row in rows]
        else:
            notes = []
            rows = random_rows(p, vectors, rng)
            keeps = [rng.random(len(row)) < rng.choice([0.5, 0.95, 1.0, 1.0]) for row in rows]
        return build(p, rows, keeps, notes)


testbench = SoftmaxTestbench()


def unit(value: np.ndarray) -> np.ndarray:
    """FP16's unit in the last place at float64 values."""
    return 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(value), 1e-30))), -14) - 10)


def real_rows(trace: Trace, p: SoftmaxParameters, vectors: int, rng: np.random.Generator):
    """Attention scores of a trace's queries, and notes; activations where it has no attention."""
    if trace.q is None or trace.k is None:
        arrays = vectors_by_name(trace)
        rows, notes = [], []
        for name, array in arrays.items():
            half, remarks = to_fp16(name, array)
            rows += list(half[:, : p.length])
            notes += remarks
        cut = f"cut to {p.length} elements and repeated where there are too few"
        notes.append(f"The trace has no attention: rows are those of {', '.join(arrays)}, {cut}.")
        return [rows[n % len(rows)] for n in range(vectors)], notes
    layers, heads, tokens, _ = trace.q.shape
    group = heads // trace.k.shape[1]
    longest = min(tokens, p.length)
    scores = []
    for n in range(vectors):
        layer, head = n % layers, n // layers % heads
        token = int(rng.integers(longest // 2, longest))
        keys = trace.k[layer, head // group, : token + 1].astype(np.float32)
        query = trace.q[layer, head, token].astype(np.float32)
        scores.append(keys @ query * np.float32(trace.scale))
    half, notes = to_fp16("scores", np.concatenate(scores))
    rows = np.split(half, np.cumsum([len(score) for score in scores[:-1]]))
    return rows, [*notes, f"Rows are scores of q and k, of the first {longest} tokens."]


def random_rows(p: SoftmaxParameters, vectors: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of any length: most of plain scores of any spread, some special throughout or in part.

    One in seven is full, one in fourteen too long, by a beat or more.
    """
    edge = corners(np.float16)
    rows = []
    for _ in range(vectors):
        beats = int(rng.integers(1, min(p.beats, rng.choice([4, _LONGEST])) + 1))
        kind = rng.random()
        if kind < 0.14:
            beats = p.beats
        elif kind < 0.21:
            beats = p.beats + int(rng.integers(1, 5))
        size = beats * p.lanes
        spread = 2.0 ** rng.integers(-6, 6)
        with np.errstate(over="ignore"):
            row = rng.normal(scale=spread, size=size) + rng.choice([0, 0, 100, -3000])
            row = row.astype(np.float16)
        kind = rng.random()
        if kind < 0.05:
            row[:] = -np.inf
        elif kind < 0.1:
            row[:] = rng.choice(edge)
        elif kind < 0.25:
            row = random_floats("fp16", size, [], rng)
            finite = np.isfinite(row)
            row = np.where(finite | (sometimes(rng, 0.3)), row, np.float16(-np.inf))
        elif kind < 0.35:
            # Differences from the largest of few bits, of 32 or so, or a bit above a power of two.
            near = rng.choice([0, 1e-3, 8, 31.98, 32, 32.02], size)
            far = 2.0 ** rng.integers(5, 17, size) + rng.random(size) * 4
            row = rng.choice([16, 0, -16]) - np.where(sometimes(rng, 0.6, size), near, far)
            row = row.clip(-65504).astype(np.float16)
        elif kind < 0.6 and size > 1:
            # Two scores that matter: a sum between one and two, any of the reciprocals.
            row = (-20 - row.clip(0, 9)).astype(np.float16)
            row[rng.permutation(size)[:2]] = 0, np.log(rng.uniform(0.001, 1))
        some = rng.random(size) < rng.choice([0, 0, 0, 0, 1 / size, 0.3])
        special = rng.choice(np.array([-np.inf, -np.inf, -np.inf, np.inf, np.nan], np.float16))
        rows.append(np.where(some, special, row))
    return rows


def build(
    parameters: SoftmaxParameters,
    rows: list[np.ndarray],
    keeps: list[np.ndarray],
    notes: list[str],
) -> Stimulus:
    """The stimulus of rows of any lengths, the last beat of each filled with zeros not kept."""
    p = parameters
    inputs, outputs, transaction, beats_of = [], [], [], []
    for number, (row, keep) in enumerate(zip(rows, keeps, strict=True)):
        beats = -(-len(row) // p.lanes)
        fill = beats * p.lanes - len(row)
        score = np.append(row, np.zeros(fill, np.float16)).astype(np.float16)
        kept = np.append(keep, np.zeros(fill, bool))
        given = min(beats, p.beats)
        size = given * p.lanes
        probability, invalid = softmax(score[None, :size], kept[None, :size], p.length)
        if beats > p.beats:
            probability, invalid = np.full((1, size), np.nan, np.float16), np.array([True])
        lane_bits = kept.reshape(beats, p.lanes).astype(np.uint64) << np.arange(
            p.lanes, dtype=np.uint64
        )
        mask = lane_bits.sum(axis=1)
        inputs.append((score.reshape(beats, -1), mask, np.arange(beats) == beats - 1))
        bits = probability[0].view(np.uint16).reshape(given, -1)
        last = np.arange(given) == given - 1
        outputs.append((bits, mask[:given], last, np.repeat(invalid, given)))
        transaction.append(np.full(given, number))
        beats_of.append(beats)
    scores, mask, last = (np.concatenate(part) for part in zip(*inputs, strict=True))
    names = ("probabilities", "keep", "last", "invalid")
    parts = (np.concatenate(part) for part in zip(*outputs, strict=True))
    return Stimulus(
        inputs={
            "i": payload.pack(
                p.input_layout, {"scores": scores.view(np.uint16), "keep": mask, "last": last}
            )
        },
        outputs={"o": payload.pack(p.output_layout, dict(zip(names, parts, strict=True)))},
        transaction_of={"o": np.concatenate(transaction)},
        transactions=len(rows),
        cycles=p.cycles(beats_of),
        notes=notes,
    )
