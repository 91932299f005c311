"""Testbench of the active position identification. A transaction is a step."""

import dataclasses

import numpy as np

from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.piecewise_exp import PiecewiseExp
from golden.arith.formats import from_bits, to_bits
from golden.lad.apid import Identified, identify
from golden.lad.cycles import apid_cycles
from golden.lad.tables import line_tables
from golden.trace import Trace
from hw.arith.float_format import FP16
from hw.lad.apid_parameters import MODE_BITS, ApidParameters
from sim.core import payload
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import sometimes

HISTORY = 40
"""Steps of a head, at least, before the window starts to move: counters and modes build up."""


@dataclasses.dataclass
class Step:
    """Scores ``s`` (FP16) and words of G, each ``[n]``; the maximum ``m`` (FP16).

    A word: ``mode``, ``count``, and whether the position was active in the step before.
    """

    s: np.ndarray
    m: np.float16
    mode: np.ndarray
    count: np.ndarray
    was_active: np.ndarray

    def result(self, p: ApidParameters) -> Identified:
        return identify(
            self.s,
            np.asarray(self.m),
            self.mode,
            self.count,
            bounds=p.bound_values,
            slack=p.slack,
            window=p.window,
            counter_bits=p.counter_bits,
        )


class ApidTestbench:
    def default_vectors(self, parameters: ApidParameters) -> int:
        return 160 if parameters.positions <= 64 else 24

    def stimulus(
        self, parameters: ApidParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, random_steps(parameters, vectors, rng), rng, [])
        steps, notes = real_steps(parameters, trace, vectors, rng)
        return build(parameters, steps, rng, notes)

    def shown(self, run: ShownRun, figure) -> str:
        """Scores of the longest step, and the positions that the RTL found active."""
        p, command, i, o = run.parameters, run.inputs["command"], run.inputs["i"], run.outputs["o"]
        lengths = command["n"].astype(int)
        step = int(lengths.argmax())
        beats = -(-lengths // p.lanes)
        first, count = int(beats[:step].sum()), lengths[step]
        bits = [i[f"s[{lane}]"][first : first + beats[step]] for lane in range(p.lanes)]
        s = np.stack(bits, axis=1).astype(np.uint16).view(np.float16).ravel()[:count]
        m = command["m"][step : step + 1].astype(np.uint16).view(np.float16)
        ends = [0, *(np.flatnonzero(o["last"]) + 1)]
        groups = range(ends[step], ends[step + 1])
        active = np.zeros(count, bool)
        for group, entry in np.ndindex(len(groups), p.outputs):
            kept = int(o["keep"][groups[group]]) >> entry & 1
            if kept and not o[f"positions[{entry}].halve"][groups[group]]:
                active[int(o[f"positions[{entry}].index"][groups[group]])] = True
        x, position = s.astype(np.float64) - float(m[0]), np.arange(count)
        axes = figure.subplots()
        for bound in p.bound_values:
            axes.axhline(float(bound), color="0.85", linewidth=1)
        for chosen, colour in ((~active, "0.6"), (active, "C1")):
            axes.plot(position[chosen], x[chosen], "o", color=colour, markersize=4)
        axes.set_xlabel("position")
        axes.set_ylabel("score below the maximum")
        return (
            f"A step of {count} positions: {int(active.sum())} of them (orange) the RTL found "
            f"active, since they are among the last {p.window} or have left the interval (between "
            "grey lines) that they are in most often."
        )


testbench = ApidTestbench()


def build(
    p: ApidParameters, steps: list[Step], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these steps."""
    beats, counters, groups = [], [], []
    for step in steps:
        found = step.result(p)
        given, expected = _beats(p, step, found, rng)
        beats.append(given)
        counters.append(expected)
        groups.append(_groups(p, step, found))
    i, c, o = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in (beats, counters, groups)
    )
    positions = {
        f"positions[{number}].{name}": o[name][:, number]
        for name in ("index", "mode", "count", "fresh", "halve")
        for number in range(p.outputs)
    }
    commands = {
        "m": to_bits(np.array([step.m for step in steps], np.float16)),
        "n": np.array([len(step.s) for step in steps]),
    }
    flags = {name: c[name] for name in ("write", "beat", "last")}
    return Stimulus(
        inputs={
            "command": payload.pack(p.command_layout, commands),
            "i": payload.pack(p.input_layout, {"s": i["s"]} | _words(i)),
        },
        outputs={
            "counters": payload.pack(p.counters_layout, _words(c) | flags),
            "o": payload.pack(p.active_layout, positions | {"keep": o["keep"], "last": o["last"]}),
        },
        transaction_of={"counters": _owners(counters), "o": _owners(groups)},
        transactions=len(steps),
        cycles=apid_cycles(
            [part["entries"].tolist() for part in counters],
            latency=p.latency,
            outputs=p.outputs,
            room_limit=p.queue.room_limit,
        ),
        notes=notes,
    )


def _beats(p: ApidParameters, step: Step, found: Identified, rng) -> tuple[dict, dict]:
    """A step's input beats and its beats of counters, each by field, with arbitrary padding.

    The latter also have ``entries``, the number that each beat adds to the queue.
    """
    n = len(step.s)
    beats = p.beats_of(n)
    fill = beats * p.lanes - n
    s, mode, count, was_active = (
        rng.integers(0, 1 << bits, fill) for bits in (FP16.width, MODE_BITS, p.counter_bits, 1)
    )

    def rows(array, padding=0):
        return np.append(array, np.broadcast_to(padding, fill)).reshape(beats, p.lanes)

    given = {
        "s": rows(to_bits(step.s), s),
        "mode": rows(step.mode, mode),
        "count": rows(step.count, count),
        "active": rows(step.was_active, was_active),
    }
    expected = {
        "mode": rows(found.mode),
        "count": rows(found.count, count),
        "active": rows(np.zeros(n, int)),
        "write": _mask(rows(~found.active)),
        "beat": np.arange(beats),
        "last": np.arange(beats) == beats - 1,
        "entries": rows(found.active | found.halve).sum(axis=1),
    }
    return given, expected


def _groups(p: ApidParameters, step: Step, found: Identified) -> dict[str, np.ndarray]:
    """A step's groups of the queue by field: active positions and those with ``halve``."""
    index = np.flatnonzero(found.active | found.halve)
    count = -(-len(index) // p.outputs)

    def rows(array):
        padding = np.zeros(count * p.outputs - len(index), int)
        return np.append(array, padding).reshape(count, p.outputs)

    return {
        "index": rows(index),
        "mode": rows(found.mode[index]),
        "count": rows(found.count[index]),
        "fresh": rows(~step.was_active[index]),
        "halve": rows(found.halve[index]),
        "keep": _mask(rows(np.ones(len(index), int))),
        "last": np.arange(count) == count - 1,
    }


def _owners(parts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The step of each beat."""
    return np.repeat(np.arange(len(parts)), [len(part["last"]) for part in parts])


def _words(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Words of G, field by field."""
    names, lanes = ("mode", "count", "active"), table["mode"].shape[1]
    return {f"g[{k}].{name}": table[name][:, k] for name in names for k in range(lanes)}


def _mask(bits: np.ndarray) -> np.ndarray:
    """Rows of bits as numbers."""
    return (np.asarray(bits, np.int64) << np.arange(bits.shape[1])).sum(axis=1)


def real_steps(
    p: ApidParameters, trace: Trace, count: int, rng: np.random.Generator
) -> tuple[list[Step], list[str]]:
    """Steps of one head after the other, with the modes and counters of all steps before."""
    length = min(p.positions, HISTORY + 3 * p.window)
    steps: list[Step] = []
    number = 0
    exp = PiecewiseExp(p.bound_values)
    while len(steps) < count:
        q, k, scale, notes = _head(trace, number, length)
        modes = Modes(1, exp, p.counter_bits)
        was_active = np.zeros(0, bool)
        with np.errstate(all="ignore"):
            scores = (np.tril(q @ k.T) * scale).astype(np.float16)
        chosen = np.sort(rng.choice(length, min(length, 12), replace=False))
        for token in range(length):
            n = token + 1
            modes.append()
            mode = modes.mode[0].astype(int)
            s = scores[token, :n]
            counts = modes.counters[0, np.arange(n), mode].astype(int)
            step = Step(s, s.max(), mode, counts, np.append(was_active, False))
            found = step.result(p)
            was_active = found.active
            with np.errstate(all="ignore"):
                interval = exp.interval(s.astype(np.float32) - np.float32(step.m))
            modes.record(np.where(found.active, interval, mode)[None], n - p.window)
            if token in chosen:
                steps.append(step)
        number += 1
    return steps[:count], notes


def _head(trace: Trace, number: int, length: int):
    """Queries and keys of a head, repeated or cut to `length` tokens, their scale, and notes."""
    fitted = f"cut to {length} tokens or repeated"
    if trace.q is None or trace.k is None:
        arrays = vectors_by_name(trace)
        name = list(arrays)[number % len(arrays)]
        rows = np.resize(np.asarray(arrays[name], np.float64), (length, arrays[name].shape[1]))
        notes = [f"The trace has no q and k: scores are of rows of {', '.join(arrays)}, {fitted}."]
        return rows, rows, 1 / np.sqrt(rows.shape[1]), notes
    layers, heads, tokens, _ = trace.q.shape
    layer, head = number % layers, number // layers % heads
    at = np.arange(length) % tokens
    q, k = (
        a.astype(np.float64) for a in (trace.q[layer, head], trace.k[layer, head // trace.group])
    )
    return q[at], k[at], trace.scale, [f"Scores of q and k of the first heads, {fitted}."]


def random_steps(p: ApidParameters, count: int, rng: np.random.Generator) -> list[Step]:
    """Steps of any length with all, some or no active positions outside the window.

    Scores are close to the ends of accepted ranges, or special values.
    """
    steps = []
    bounds = np.array(p.bound_values, np.float64)
    tables = line_tables(p.bound_values, p.slack)
    ends = np.concatenate([tables.lower[1:], tables.upper[:-1]]).astype(np.float64)
    longest = min(p.positions, 300)
    for _ in range(count):
        any_length, other_length = (int(rng.integers(1, longest + 1)) for _ in range(2))
        n = int(rng.choice([1, min(2, longest), any_length, other_length, longest]))
        # A small m has bits below the lowest of s, so that their difference is rounded.
        small = rng.normal() * 2.0 ** -rng.integers(0, 12)
        # Around a power of two, the last bits of s and m have different weights.
        power = rng.choice([-1, 1]) * 2.0 ** rng.integers(-2, 15) * (1 + rng.integers(3) / 1024)
        m = np.float16(rng.choice([0, small, small, 4 * small, 3000, power, power, power]))
        x = rng.choice([0.0, -1.0, -3.0, -20.0], n) - rng.exponential(2, n)
        x = np.where(sometimes(rng, 0.6, n), rng.choice(ends, n), x)
        s = (x + float(m)).astype(np.float16)
        s = from_bits(to_bits(s) + rng.integers(-1, 2, n).astype(np.uint16), np.float16)
        exact = s.astype(np.float64) - float(m)
        mode = rng.integers(0, 1 << MODE_BITS, n)
        right = (exact[:, None] > bounds).sum(axis=1)
        # With slack, a neighbour of the right interval may be accepted too.
        if p.slack:
            right = np.clip(right + rng.integers(-1, 2, n), 0, len(bounds))
        mode = np.where(rng.random(n) < rng.choice([0, 0.8, 0.9, 1]), right, mode)
        odd = rng.random(n) < rng.choice([0, 0, 0.1, 0.5])
        values = [
            0x7C00,
            0xFC00,
            0x7E00,
            0xFE01,
            0x7BFF,
            0xFBFF,
            0x8000,
            0x0001,
            int(rng.integers(1 << 16)),
        ]
        s = np.where(odd, from_bits(rng.choice(values, n), np.float16), s)
        # In the outer intervals, infinities that should be NaN (and NaN that should not) are found.
        outer = rng.choice([0, len(bounds)], n)
        mode = np.where(odd & sometimes(rng, 0.5, n), outer, mode)
        if sometimes(rng, 0.15):
            m = from_bits(rng.choice(values, 1), np.float16)[0]
            # All scores may be -inf, then m is too, and differences are NaN.
            equal = sometimes(rng, 0.3, n)
            s, mode = np.where(equal, m, s), np.where(equal, outer, mode)
        full = (1 << p.counter_bits) - 1
        anything = rng.integers(0, full + 1, n)
        counter = np.where(sometimes(rng, 0.3, n), full - rng.integers(0, 4, n), anything)
        steps.append(Step(s, m, mode, counter, rng.random(n) < rng.choice([0, 0.5, 1])))
    return steps
