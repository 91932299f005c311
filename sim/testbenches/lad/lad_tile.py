"""Testbench of the tile: tokens of sequences in, outputs, reports and the memory checked.

A transaction is a job. The memory begins with random rows, as it would on a device, and
must end with the rows of the bit-exact model: every word of K, V, codes, G, counters and caches.
"""

import dataclasses

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.lad_tile import HeadStep, LadTile
from golden.lad.linear import linear
from golden.lad.timing.tile import TileCycles
from golden.lad.timing.work import JobWork, ahead_work, token_work
from golden.trace import Trace
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.core.streams import last_of
from sim.testbenches.attention.vector_path import joined, of_units
from sim.testbenches.decode import layers_of, random_misfit
from sim.testbenches.jobs import JobsTestbench
from sim.testbenches.lad.jobs import (
    KINDS,
    LadJobs,
    LadStimulus,
    add_layers,
    random_memory,
    random_operands,
    sizes_of,
    timing_of,
)
from sim.testbenches.strategies import sometimes


class Tokens(LadJobs):
    """Jobs for a tile, and what they must give.

    memory
        Its contents at the beginning; zeros if not given.
    """

    model: LadTile

    def __init__(self, parameters: LadTileParameters, memory: np.ndarray | None = None):
        self._y: dict[int, np.ndarray] = {}  # of a job that is a linear layer
        super().__init__(parameters, LadTile(sizes_of(parameters), memory))

    def multiply(self, vectors: np.ndarray, row: int, rows: int, **ignored: int) -> np.ndarray:
        """A linear layer of float16 `vectors` [vectors, pieces, d]; float32[rows, 6].

        ignored
            Fields of the job that do not matter.
        """
        p = self.parameters
        pieces = vectors.shape[1]
        start = p.regions["weight"].base + row
        weights = self.model.memory[start : start + rows * pieces].view(np.float16)
        y = np.zeros((rows, VPUS), np.float32)
        y[:, : len(vectors)] = linear(vectors, weights.reshape(rows, pieces, p.d))
        self._y[len(self.results)] = y
        self.work.append(JobWork(vectors=len(vectors), pieces=pieces, rows=rows))
        fields = {"heads": len(vectors), "pieces": pieces, "row": row, "rows": rows}
        self._inputs.add("q", len(self.results), {"": vectors.reshape(-1, p.d)})
        self._give([], **fields, **ignored)
        return y

    def refuse_layer(self, **fields: int) -> None:
        """A linear layer that does not fit."""
        self.work.append(JobWork(pieces=fields["pieces"], refused=True))
        self._give([], **fields)

    def place(self, heads: int) -> dict[str, np.ndarray]:
        return {"last": last_of([heads])}

    def _token(
        self, found: list[HeadStep], n: int, heads: int, group: int, restart: bool
    ) -> JobWork:
        return token_work(found, heads, group, restart)

    def _ahead(self, n: int, heads: int, group: int, most: int) -> JobWork:
        return ahead_work(self.model, n, heads, group, most)

    def _clock(self) -> TileCycles:
        return TileCycles(timing_of(self.parameters))

    def _reports(self, since: int) -> list:
        return [[step.report for step in found] for found in self.results[since:]]

    def stimulus(self, notes: list[str], since: int = 0) -> Stimulus:
        stimulus, p = super().stimulus(notes, since), self.parameters
        if p.weights:
            none = np.zeros((0, VPUS), np.float32)
            y = [self._y.get(job, none) for job in range(since, len(self.results))]
            counts = [len(rows) for rows in y]
            sums = {"y": to_bits(np.concatenate(y)), "last": last_of(counts)}
            stimulus.outputs["y"] = payload.pack(p.y_layout, sums)
            stimulus.transaction_of["y"] = np.repeat(np.arange(len(counts)), counts)
        return stimulus


def random_tokens(p: LadTileParameters, jobs: int, rng: np.random.Generator) -> Tokens:
    """Sequences of any length, some of special values; refused jobs between.

    Between their tokens are prefetch jobs and linear layers, if the tile has them. If the jobs are
    few, they begin so late in a sequence that positions have left the window.
    """
    tokens = Tokens(p, random_memory(p, rng))
    left, n = 0, 0
    kind, scale, drift = "plain", 1.0, np.zeros((1, p.d))
    count, group, kv_heads = 1, 1, 1
    if jobs <= 2 * p.window:
        kind, n = "still", min(3 * p.window + 3, p.positions)
        left = min(jobs // 2, p.positions - n)
        kv_heads = min(p.heads, p.kv_heads)
        group = p.heads // kv_heads
        count = group * kv_heads
        drift = rng.standard_normal((count, p.d)) * scale
        for token in range(1, n + 1):
            if token == n:
                tokens.join()
            rows = random_operands(kind, drift, scale, kv_heads, rng)
            tokens.add(*rows, token, restart=token == 1)
    while len(tokens.results) < jobs:
        if sometimes(rng, 0.08):
            refuse(tokens, rng)
            continue
        if p.weights and sometimes(rng, 0.1):
            multiply(tokens, rng)
            continue
        # A row loaded ahead must not belong to the next new position.
        if p.prefetch and 0 < n < p.positions and left and sometimes(rng, 0.4):
            # Words of later positions are in the same row of G.
            first = n if sometimes(rng, 0.7) else int(rng.integers(1, n + 1))
            most = int(rng.integers(1, width_end(p, "prefetch")))
            most = any_bit(p, "prefetch", rng) if sometimes(rng, 0.3) else most
            tokens.prefetch(first, count, group, most, restart=sometimes(rng, 0.3))
            continue
        begins = any(tokens.results) and left == 0
        if left == 0:
            kind = str(rng.choice(KINDS))
            scale = float(rng.choice([0.3, 1.0, 3.0]))
            longest = min(p.positions, int(rng.choice([8, 40, p.positions])))
            left, n = int(rng.integers(1, longest + 1)), 0
            if longest == p.positions and sometimes(rng, 0.3):
                left = min(p.positions + 2, width_end(p, "n") - 1)
            group = int(rng.integers(1, p.heads + 1))
            count = int(rng.integers(1, min(p.heads, group * p.kv_heads) + 1))
            kv_heads = -(-count // group)
            drift = rng.standard_normal((count, p.d)) * scale
        n, left = n + 1, left - 1
        q, k, v = random_operands(kind, drift, scale, kv_heads, rng)
        if kind == "plain" and n > 1 and sometimes(rng, 0.3):
            # Collinear with an earlier key, so that any position may be a centre of others.
            at = rng.integers(0, min(n, p.positions) - 1)
            k[:] = [np.float16(-0.5) * tokens.model.numbers("k", h)[at] for h in range(kv_heads)]
        given = {"n": n, "heads": count, "group": group}
        if begins and sometimes(rng, 0.2):
            given["n"] = int(rng.integers(0, width_end(p, "n")))  # not used
        if group >= count and sometimes(rng, 0.4):
            given["group"] = int(rng.integers(count, width_end(p, "group")))
        tokens.add(q, k, v, given.pop("n"), restart=begins, **given)
    return tokens


def multiply(tokens: Tokens, rng: np.random.Generator) -> None:
    """A linear layer of any size; the weights are the random rows of the memory."""
    p = tokens.parameters
    most = min(PIECES, p.weights)
    pieces = most if sometimes(rng, 0.2) else int(rng.integers(1, most + 1))
    rows = int(rng.integers(1, p.weights // pieces + 1))
    row = int(rng.integers(0, p.weights - rows * pieces + 1))
    vectors = int(rng.integers(1, min(VPUS, p.heads) + 1))
    x = rng.standard_normal((vectors, pieces, p.d)).astype(np.float16)
    tokens.multiply(x, row, rows, **_of_steps(p, rng))


def _of_steps(p: LadTileParameters, rng: np.random.Generator) -> dict[str, int]:
    """Fields of a job that do not matter in a linear layer."""
    names = ["n", "group", "restart", *(["prefetch"] if p.prefetch else [])]
    return {name: int(rng.integers(0, width_end(p, name))) for name in names}


def refuse(tokens: Tokens, rng: np.random.Generator) -> None:
    """A job that does not fit: a step, a prefetch job or a linear layer."""
    p, kind = tokens.parameters, rng.integers(0, 3)
    n, heads, group = random_misfit(p, p.positions, rng)
    if kind == 0 and p.weights:
        fits = {"heads": 1, "pieces": 1, "row": 0, "rows": 1}
        row = int(rng.integers(1, p.weights))
        wrong: list[dict[str, int]] = [
            {"heads": 0},
            {"rows": 0},
            {"rows": p.weights - row + 1, "row": row},
            {"pieces": 2, "rows": 1, "row": p.weights - 1},
        ]
        most = min(VPUS, p.heads)
        if width_end(p, "heads") > most + 1:
            wrong.append({"heads": int(rng.integers(most + 1, width_end(p, "heads")))})
        wrong.append({"pieces": int(rng.integers(PIECES + 1, width_end(p, "pieces")))})
        layer = fits | wrong[rng.integers(0, len(wrong))]
        tokens.refuse_layer(**layer, **_of_steps(p, rng))
    elif kind == 1 and p.prefetch:
        most = any_bit(p, "prefetch", rng)
        tokens.prefetch(n, heads, group, most, restart=sometimes(rng, 0.5))
    else:
        restart = not p.order.fits(heads, group) and sometimes(rng, 0.5)
        none = np.zeros((1, p.d), np.float16)
        tokens.add(none, none, none, n, heads=heads, group=group, restart=restart)


def width_end(p: LadTileParameters, field: str) -> int:
    """The first number that a field of a job is too narrow for."""
    return 1 << next(width for name, _, width in payload.fields(p.command_layout) if name == field)


def any_bit(p: LadTileParameters, field: str, rng: np.random.Generator) -> int:
    """A number with a single bit set, any of a job's field."""
    return 1 << int(rng.integers(0, width_end(p, field).bit_length() - 1))


def real_tokens(
    p: LadTileParameters, trace: Trace, jobs: int, rng: np.random.Generator
) -> tuple[Tokens, list[str]]:
    """The first tokens of the trace's layers in turn, as sequences, every third one prefetched."""
    *layers, notes = layers_of(p, trace)
    tokens = Tokens(p, random_memory(p, rng))
    add_layers(tokens, layers, jobs, jobs if jobs < 90 else -(-jobs // 2))
    return tokens, notes


class LadTileTestbench(JobsTestbench):
    random, real = staticmethod(random_tokens), staticmethod(real_tokens)

    def stimulus(
        self, parameters: LadTileParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        """Jobs, and beside them as many vectors for each unit of the special function module."""
        jobs = super().stimulus(parameters, trace, vectors, seed)
        assert isinstance(jobs, LadStimulus)
        units = of_units(parameters.vector_path, trace, vectors, np.random.default_rng(seed))
        longest = max((unit.cycles for unit in units), default=0)
        of_jobs = jobs.predict
        whole: Stimulus = jobs
        for unit in units:
            whole = joined(whole, unit)
        assert isinstance(whole, LadStimulus)
        return dataclasses.replace(whole, predict=lambda: max(of_jobs(), longest))

    def default_vectors(self, parameters: LadTileParameters) -> int:
        return 3 if parameters.d <= 8 else 12

    def mutant_vectors(self, parameters: LadTileParameters) -> int:
        return 240 if parameters.d <= 8 else 48


testbench = LadTileTestbench()
