"""Testbench of the probability generator: scores of kept tokens in, requests and values out.

A transaction is a head. Responses arrive in an order in which a memory could have answered the
head's requests; the generator takes each once something is requested. So no beat depends on timing.
"""

import dataclasses

import numpy as np

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.pe_lane import LaneSizes, chunk_of
from golden.topick.probability_generator import generator_cycles, probability
from golden.trace import Trace
from hw.topick.probability_generator import ProbabilityGeneratorParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import pick

LONGEST = 24  # entries of most heads


@dataclasses.dataclass(frozen=True, eq=False)
class HeadEntries:
    """Kept tokens of a head, in the order in which they are stored.

    row, t
        int[n].
    log2
        Logarithm of the denominator.
    v
        Codes of the tokens' values, int[n, d].
    reach
        Responses come at most this many places later than their requests.
    """

    row: np.ndarray
    t: np.ndarray
    log2: int
    v: np.ndarray
    reach: int = 1


class ProbabilityGeneratorTestbench:
    def default_vectors(self, parameters: ProbabilityGeneratorParameters) -> int:
        return 24

    def stimulus(
        self,
        parameters: ProbabilityGeneratorParameters,
        trace: Trace | None,
        vectors: int,
        seed: int,
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            heads = [random_head(parameters, rng) for _ in range(vectors - 1)]
            # Nothing is to follow the last start, so an empty head.
            return stimulus_of(parameters, [*heads, random_head(parameters, rng, "none")], rng)
        made = [real_head(parameters, trace, number, rng) for number in range(vectors)]
        return stimulus_of(parameters, [head for head, _ in made], rng, made[0][1])


testbench = ProbabilityGeneratorTestbench()


def stimulus_of(
    p: ProbabilityGeneratorParameters,
    heads: list[HeadEntries],
    rng: np.random.Generator,
    notes: list[str] | None = None,
) -> Stimulus:
    """These heads, one after another."""
    requests: dict[str, list] = {name: [] for name in ("row", "chunk", "p")}
    responses: dict[str, list] = {name: [] for name in ("p", "chunk", "data")}
    values: dict[str, list] = {name: [] for name in ("p", "chunk", "data", "last")}
    found, request_heads, value_heads = [], [], []
    sizes = LaneSizes(p.bits, p.chunk_bits, *[0] * 7)
    for number, head in enumerate(heads):
        places = p.probability_bits
        log2 = np.asarray(head.log2)
        of_head = probability(head.t, log2, fraction=p.fraction, places=places).tolist()
        found.append(of_head)
        beats = [
            (entry, chunk)
            for entry, weight in enumerate(of_head)
            if weight or not p.skip
            for chunk in range(p.chunks)
        ]
        for entry, chunk in beats:
            for name, value in (
                ("row", head.row[entry]),
                ("chunk", chunk),
                ("p", of_head[entry]),
            ):
                requests[name].append(value)
        order = np.argsort(np.arange(len(beats)) + rng.uniform(0, head.reach, len(beats)))
        for beat in order:
            entry, chunk = beats[beat]
            data = chunk_of(head.v[entry], chunk, sizes)
            for columns in (responses, values):
                for name, value in (("p", of_head[entry]), ("chunk", chunk), ("data", data)):
                    columns[name].append(value)
            values["last"].append(0)
        end = {"p": 0, "chunk": 0, "data": np.zeros(p.d, np.int64), "last": 1}
        for name, value in end.items():
            values[name].append(value)
        request_heads += [number] * len(beats)
        value_heads += [number] * (len(beats) + 1)
    kept = {
        name: np.concatenate([getattr(head, name) for head in heads]).astype(np.int64)
        for name in ("row", "t")
    }
    starts = {
        "log2": np.array([head.log2 for head in heads]),
        "count": np.array([len(head.t) for head in heads]),
    }
    return Stimulus(
        inputs={
            "kept": payload.pack(p.kept_layout, kept),
            "start": payload.pack(p.start_layout, starts),
            "response": payload.pack(p.response_layout, _columns(responses, p.d)),
        },
        outputs={
            "request": payload.pack(p.request_layout, _columns(requests, p.d)),
            "value": payload.pack(p.value_layout, _columns(values, p.d)),
        },
        transaction_of={
            "request": np.array(request_heads, np.int64),
            "value": np.array(value_heads, np.int64),
        },
        transactions=len(heads),
        cycles=generator_cycles(found, chunks=p.chunks, rows=p.rows, skip=p.skip),
        notes=notes or [],
    )


def _columns(fields: dict[str, list], d: int) -> dict[str, np.ndarray]:
    return {
        name: np.array(column, np.int64).reshape((-1, d) if name == "data" else -1)
        for name, column in fields.items()
    }


def limits(p: ProbabilityGeneratorParameters) -> tuple[int, int]:
    """Least and largest binary logarithm."""
    return -(1 << p.width - 1), (1 << p.width - 1) - 1


def real_head(
    p: ProbabilityGeneratorParameters, trace: Trace, number: int, rng: np.random.Generator
) -> tuple[HeadEntries, list[str]]:
    """Scores of a query with the keys up to its token, the least probable ones left out."""
    if trace.q is None or trace.k is None or trace.v is None:
        name, rows = next(iter(vectors_by_name(trace).items()))
        rows = np.asarray(rows, np.float64)[: 2 * LONGEST]
        q, k, v, scale = rows[number % len(rows)], rows, rows, 1 / np.sqrt(rows.shape[1])
        what = f"rows of {name} with each other"
    else:
        layers, heads, length, _ = trace.q.shape
        layer, head = number % layers, number // layers % heads
        end = min(length, LONGEST + 16 * (number % 16))
        begin = max(0, end - 2 * LONGEST)
        q = trace.q[layer, head, end - 1].astype(np.float64)
        k, v = (
            x[layer, head // trace.group, begin:end].astype(np.float64) for x in (trace.k, trace.v)
        )
        scale = trace.scale
        what = "q, k and v of the heads in turn"
    score = k @ q * scale / np.log(2)
    low, high = limits(p)
    t = np.clip(np.floor(score * 2**p.fraction), low, high).astype(np.int64)
    log2 = float(score.max() + np.log2(np.exp2(score - score.max()).sum()))
    log2 = int(np.clip(np.floor(log2 * 2**p.fraction), low, high))
    kept = np.argsort(-score, kind="stable")[: min(LONGEST, p.rows)]
    kept.sort()
    kept = kept[::-1]  # from new to old
    v = v[kept, : p.d]
    v = np.concatenate([v, np.zeros((len(v), p.d - v.shape[1]))], axis=1)
    codes = quantise(v, scale_for(np.abs(v).max(), p.bits), p.bits)
    row = kept & ((1 << p.row_bits) - 1)
    note = (
        f"Heads are {what}, up to {min(LONGEST, p.rows)} most probable tokens of each; values are "
        f"cut or filled up to {p.d} elements and quantised to {p.bits} bits; repeated where there "
        "are not enough."
    )
    return HeadEntries(row, t[kept], log2, codes, reach=int(rng.integers(1, 30))), [note]


def random_head(
    p: ProbabilityGeneratorParameters, rng: np.random.Generator, size: str = ""
) -> HeadEntries:
    """Any rows, scores and denominator.

    Most scores are near the denominator's logarithm, so that p is anything from 0 to its maximum;
    some are above it, far below, limits, or a power of two below. Some heads have no entry, one, or
    as many as there is room for; some have none whose value is requested. Heads without entries
    follow one another so closely that starts are waited for.
    """
    low, high = limits(p)
    places = p.probability_bits
    n = {
        "none": 0,
        "one": 1,
        "few": int(rng.integers(1, min(LONGEST, p.rows) + 1)),
        "full": min(p.rows, 3 * LONGEST),
    }[size or pick(rng, {"none": 3, "one": 1, "few": 5, "full": 1})]
    log2 = int(rng.choice([0, low, high, *rng.integers(low, high + 1, 5)]))
    octave = 1 << p.fraction
    minus = {
        "near": rng.integers(-octave, (places + 3) * octave, n),
        "small": rng.integers((places - 1) * octave, (places + 3) * octave, n),
        "whole": rng.integers(-1, places + 3, n) * octave + rng.integers(-1, 2, n),
        "power": (1 << rng.integers(0, p.width + 1, n)) + rng.choice([-1, 0, 1, octave], n),
        "any": rng.integers(0, 1 << p.width, n),
        "none": np.full(n, (places + 2) * octave),
    }[pick(rng, {"near": 4, "small": 2, "whole": 2, "power": 3, "any": 2, "none": 1})]
    least, largest = -(1 << p.bits - 1), (1 << p.bits - 1) - 1
    return HeadEntries(
        rng.integers(0, 1 << p.row_bits, n),
        np.clip(log2 - minus, low, high),
        log2,
        rng.integers(least, largest + 1, (n, p.d)),
        reach=int(rng.choice([1, 3, 12, 1000])),
    )
