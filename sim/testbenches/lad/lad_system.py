"""Testbench of several tiles: as the tile's, with outputs and reports in any order of the tiles.

A transaction is a job. Tiles finish in an order that depends on timing: within a job, beats are
compared by the number of their head.
"""

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import HeadStep
from golden.trace import Trace
from hw.lad.system_parameters import LadSystemParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Mismatch, Stimulus, compare
from sim.testbenches.lad.lad_tile import (
    KINDS,
    layers_of,
    memory_rows,
    random_operands,
    rows_of,
    sizes_of,
)
from sim.testbenches.strategies import sometimes

STREAMS = "o", "report"


class Jobs:
    """Jobs for the tiles, and the expected results of each by head.

    memory
        Its contents at the beginning; zeros if not given.
    """

    def __init__(self, parameters: LadSystemParameters, memory: np.ndarray | None = None):
        self.parameters = p = parameters
        self.model = LadSystem(sizes_of(p), p.tiles, memory)
        self._first = self.model.memory.copy()
        self._fields: dict[str, list[int]] = {name: [] for name, _ in p.job_layout}
        self._q: list[np.ndarray] = []
        self._kv: list[np.ndarray] = []
        self.results: list[list[HeadStep]] = []
        self.shares: list[list[list[int]]] = []

    def add(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        n: int,
        *,
        heads: int,
        group: int,
        clear: bool = False,
    ) -> list[HeadStep]:
        """A token: float16 queries [heads, d], times 1 / sqrt d, and rows [kv heads, d].

        Numbers out of range may be given; rows beyond those that the tiles accept are left out.
        """
        found = self.model.step(n, heads, group, clear, q, k, v)
        shares, size = self.model.shares(heads, group)
        kv_heads = -(-len(found) // size)
        self._q.append(q[: len(found)])
        self._kv.append(np.stack([k[:kv_heads], v[:kv_heads]], axis=1).reshape(-1, q.shape[1]))
        self._job(found, shares, n=n, heads=heads, group=group, clear=int(clear))
        return found

    def prefetch(self, n: int, heads: int, group: int, most: int) -> None:
        """Load rows of active positions ahead of the next token; `n` is that of the last one."""
        self.model.prefetch(n, heads, group, most)
        none: list[list[int]] = [[] for _ in self.model.tiles]
        self._q.append(np.zeros((0, self.parameters.d), np.float16))
        self._kv.append(np.zeros((0, self.parameters.d), np.float16))
        self._job([], none, n=n, heads=heads, group=group, prefetch=most)

    def _job(self, found: list[HeadStep], shares: list[list[int]], **fields: int) -> None:
        for name, values in self._fields.items():
            values.append(fields.get(name, 0))
        self.results.append(found)
        self.shares.append(shares)

    def stimulus(self, notes: list[str]) -> Stimulus:
        """All jobs. Expected beats are in the order of the heads, and no `o` has ``last``."""
        p = self.parameters
        counts = [len(found) for found in self.results]
        steps = [step for found in self.results for step in found]
        head = np.concatenate([np.arange(count) for count in counts])
        names = [name for name, _ in p.tile.report_layout]
        outputs = {
            "o": payload.pack(
                p.output_layout,
                {
                    "o": to_bits(np.stack([step.o for step in steps])),
                    "invalid": np.array([step.invalid for step in steps], bool),
                    "head": head,
                },
            ),
            "report": payload.pack(
                p.report_layout,
                {"head": head}
                | {n: np.array([step.report[n] for step in steps], np.int64) for n in names},
            ),
        }
        jobs = {name: np.array(values) for name, values in self._fields.items()}
        return Stimulus(
            inputs={
                "job": payload.pack(p.job_layout, jobs),
                "q": rows_of(p, np.concatenate(self._q)),
                "kv": rows_of(p, np.concatenate(self._kv)),
            },
            outputs=outputs,
            transaction_of=dict.fromkeys(STREAMS, np.repeat(np.arange(len(counts)), counts)),
            transactions=len(counts),
            cycles=self.cycles(),
            cycles_exact=False,
            notes=notes,
            memories={
                "memory": Memory(
                    memory_rows(p, self._first),
                    "request",
                    "response",
                    write="write",
                    write_data="data",
                    after=memory_rows(p, self.model.memory),
                )
            },
        )

    def cycles(self) -> int:
        """Of all jobs, about."""
        total = 0
        for found, shares in zip(self.results, self.shares, strict=True):
            reports = [[found[head].report for head in share] for share in shares]
            total += self.parameters.job_cycles(reports)
        return total


class LadSystemTestbench:
    def default_vectors(self, parameters: LadSystemParameters) -> int:
        return 40 if parameters.d <= 8 else 6

    def stimulus(
        self, parameters: LadSystemParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return random_jobs(parameters, vectors, rng).stimulus([])
        jobs, notes = real_jobs(parameters, trace, vectors, rng)
        return jobs.stimulus(notes)

    def compare(
        self, stimulus: Stimulus, got: dict, layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """With the beats of each job in the order of their heads, which must each come once."""
        got, cycles_of = dict(got), dict(cycles_of)
        for name in STREAMS:
            owners, beats = stimulus.transaction_of[name], got[name]
            if len(beats) != len(owners):
                break
            if name == "o":
                found = _last(owners, beats, layouts[name])
                if found:
                    return found
                last = payload.pack(layouts[name], {"last": np.ones(1, np.int64)})
                beats = beats & ~last
            order = np.lexsort((payload.unpack(layouts[name], beats)["head"], owners))
            got[name], cycles_of[name] = beats[order], cycles_of[name][order]
        return compare(stimulus, got, layouts, cycles_of)


testbench = LadSystemTestbench()


def _last(owners: np.ndarray, beats: np.ndarray, layout) -> list[Mismatch]:
    """Flags of a job's last output that are wrong."""
    last = payload.unpack(layout, beats)["last"] != 0
    expected = np.append(owners[1:] != owners[:-1], True)
    wrong = np.flatnonzero(last != expected)
    return [
        Mismatch("o", int(owners[beat]), int(beat), "last", int(expected[beat]), int(last[beat]))
        for beat in wrong
    ]


def random_memory(p: LadSystemParameters, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 1 << 16, (p.memory_rows, p.d)).astype(np.uint16)


def random_jobs(p: LadSystemParameters, count: int, rng: np.random.Generator) -> Jobs:
    """Sequences as the tile's, of any division of heads among tiles, or of none that fits.

    Between tokens are prefetch jobs, if the tiles have them, and with codes tokens of fewer heads,
    so that some tiles miss a token.
    """
    jobs = Jobs(p, random_memory(p, rng))
    left, n, heads, group = 0, 0, 1, 1
    while len(jobs.results) < count:
        if p.prefetch and n and left and sometimes(rng, 0.3):
            jobs.prefetch(n, heads, group, int(rng.integers(1, p.prefetch + 1)))
            continue
        begins = bool(jobs.results) and left == 0
        if left == 0:
            kind = str(rng.choice(KINDS))
            scale = float(rng.choice([0.3, 1.0, 3.0]))
            left, n = int(rng.integers(1, min(p.positions, int(rng.choice([8, 40]))) + 1)), 0
            heads, group = _heads(p, rng)
            shares, size = jobs.model.shares(heads, group)
            accepted = sum(map(len, shares))
            drift = rng.standard_normal((accepted, p.d)) * scale
        n, left = n + 1, left - 1
        q, k, v = random_operands(kind, drift, scale, -(-accepted // size), rng)
        fewer = p.identification == "codes" and sometimes(rng, 0.05)
        jobs.add(q, k, v, n, heads=1 if fewer else heads, group=group, clear=begins)
    return jobs


def _heads(p: LadSystemParameters, rng: np.random.Generator) -> tuple[int, int]:
    """Heads of a job and of a group, of which most fit."""
    if sometimes(rng, 0.1):
        return int(rng.integers(0, p.heads + 1)), int(rng.integers(0, p.heads + 1))
    group = int(rng.integers(1, -(-p.heads // p.kv_heads) + 1))
    most = min(p.heads, group * p.kv_heads)
    return (most if sometimes(rng, 0.5) else int(rng.integers(1, most + 1))), group


def real_jobs(
    p: LadSystemParameters, trace: Trace, count: int, rng: np.random.Generator
) -> tuple[Jobs, list[str]]:
    """The first tokens of the trace's layers in turn, as sequences, every third one prefetched."""
    q, k, v, notes = layers_of(p, trace)
    jobs = Jobs(p, random_memory(p, rng))
    heads, group = q.shape[1], -(-q.shape[1] // k.shape[1])
    length = min(q.shape[2], p.positions, count)
    token = 0
    while len(jobs.results) < count:
        layer, t = token // length % len(q), token % length
        rows = q[layer, :, t], k[layer, :, t], v[layer, :, t]
        jobs.add(*rows, t + 1, heads=heads, group=group, clear=t == 0)
        token += 1
        if p.prefetch and token % 3 == 0 and len(jobs.results) < count:
            jobs.prefetch(t + 1, heads, group, p.prefetch)
    return jobs, notes
