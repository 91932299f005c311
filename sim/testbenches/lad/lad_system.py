"""Testbench of several tiles: as the tile's, with outputs and reports in any order of the tiles.

A transaction is a job. Tiles finish in an order that depends on timing: within a job, beats are
compared by the number of their head.
"""

import numpy as np

from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import HeadStep
from golden.lad.timing.system import (
    SystemCycles,
    SystemWork,
    system_ahead_work,
    system_token_work,
)
from golden.trace import Trace
from hw.lad.system_parameters import LadSystemParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Mismatch, Stimulus, compare
from sim.testbenches.decode import layers_of, random_misfit
from sim.testbenches.jobs import JobsTestbench
from sim.testbenches.lad.jobs import (
    KINDS,
    LadJobs,
    add_layers,
    random_memory,
    random_operands,
    sizes_of,
    timing_of,
)
from sim.testbenches.lad.lad_tile import any_bit, width_end
from sim.testbenches.memory import NAME, memory_of
from sim.testbenches.strategies import sometimes

STREAMS = "o", "report"


class Jobs(LadJobs):
    """Jobs for the tiles, and the expected results of each by head.

    Expected beats are in the order of the heads, and no `o` has ``last``.

    memory
        Its contents at the beginning; zeros if not given.
    """

    parameters: LadSystemParameters
    model: LadSystem

    def __init__(self, parameters: LadSystemParameters, memory: np.ndarray | None = None):
        super().__init__(parameters, LadSystem(sizes_of(parameters), parameters.tiles, memory))

    def place(self, heads: int) -> dict[str, np.ndarray]:
        return {"head": np.arange(heads)}

    def join(self) -> None:
        super().join()
        self.shares: list[list[list[int]]] = []
        """By job, the heads of each tile; none for a job that is not a token."""

    def _token(
        self, found: list[HeadStep], n: int, heads: int, group: int, restart: bool
    ) -> SystemWork:
        none: list[list[int]] = [[] for _ in self.model.tiles]
        self.shares.append(self.model.shares(heads, group) if found else none)
        return system_token_work(self.model, found, n, heads, group, restart)

    def _ahead(self, n: int, heads: int, group: int, most: int) -> SystemWork:
        self.shares.append([[] for _ in self.model.tiles])
        return system_ahead_work(self.model, n, heads, group, most)

    def memories(self) -> dict[str, Memory]:
        """One, or one for each tile."""
        (memory,) = super().memories().values()
        p = self.parameters
        if not p.separate:
            return {NAME: memory}
        assert memory.after is not None
        parts = memory.contents, memory.after
        return {
            f"{NAME}_{number}": memory_of(
                *(part[number * p.tile_rows :][: p.tile_rows] for part in parts), number=number
            )
            for number in range(p.tiles)
        }

    def _clock(self) -> SystemCycles:
        p = self.parameters
        return SystemCycles(timing_of(p.tile), p.tiles, p.separate)

    def _reports(self, since: int) -> list:
        both = zip(self.results[since:], self.shares[since:], strict=True)
        return [
            [[found[head].report for head in share] for share in shares] for found, shares in both
        ]


def random_jobs(p: LadSystemParameters, count: int, rng: np.random.Generator) -> Jobs:
    """Sequences as the tile's, of any division of heads among tiles; refused jobs between.

    Between tokens are prefetch jobs, if the tiles have them, and with codes tokens of fewer heads,
    so that some tiles miss a token.
    """
    jobs = Jobs(p, random_memory(p, rng))
    left, n, heads, group = 0, 0, 1, 1
    while len(jobs.results) < count:
        if sometimes(rng, 0.08):
            refuse(jobs, rng)
            continue
        if p.prefetch and n and left and sometimes(rng, 0.3):
            most = int(rng.integers(1, width_end(p, "prefetch")))
            jobs.prefetch(n, heads, group, most, restart=sometimes(rng, 0.3))
            continue
        begins = any(jobs.results) and left == 0
        if left == 0:
            kind = str(rng.choice(KINDS))
            scale = float(rng.choice([0.3, 1.0, 3.0]))
            left, n = int(rng.integers(1, min(p.positions, int(rng.choice([8, 40]))) + 1)), 0
            heads, group = _heads(jobs, rng)
            drift = rng.standard_normal((heads, p.d)) * scale
        n, left = n + 1, left - 1
        q, k, v = random_operands(kind, drift, scale, -(-heads // group), rng)
        fewer = p.identification == "codes" and sometimes(rng, 0.05)
        # A sequence begins with one position, whatever the job says.
        any_number = begins and sometimes(rng, 0.4)
        given = int(rng.integers(0, width_end(p, "n"))) if any_number else n
        jobs.add(q, k, v, given, heads=1 if fewer else heads, group=group, restart=begins)
    return jobs


def _heads(jobs: Jobs, rng: np.random.Generator) -> tuple[int, int]:
    """Heads of a job and of a group, which fit; often as many as fit."""
    p, fits = jobs.parameters, jobs.model.fits
    group = int(rng.integers(1, p.tile.heads + 1))
    heads = [number for number in range(1, p.heads + 1) if fits(1, number, group)]
    return heads[-1] if sometimes(rng, 0.5) else int(rng.choice(heads)), group


def refuse(jobs: Jobs, rng: np.random.Generator) -> None:
    """A token or a prefetch job that does not fit, perhaps because of a tile's heads alone."""
    p, fits = jobs.parameters, jobs.model.fits
    n, heads, group = random_misfit(p, p.positions, rng)
    every, groups = range(1, p.heads + 1), range(1, width_end(p, "group"))
    uneven = [(h, g) for h in every for g in groups if p.order.fits(h, g) and not fits(1, h, g)]
    if uneven and sometimes(rng, 0.4):
        n, (heads, group) = 1, uneven[rng.integers(0, len(uneven))]
    if p.prefetch and sometimes(rng, 0.3):
        jobs.prefetch(n, heads, group, any_bit(p, "prefetch", rng), restart=sometimes(rng, 0.5))
        return
    restart = not fits(1, heads, group) and sometimes(rng, 0.5)
    none = np.zeros((1, p.d), np.float16)
    jobs.add(none, none, none, n, heads=heads, group=group, restart=restart)


def real_jobs(
    p: LadSystemParameters, trace: Trace, count: int, rng: np.random.Generator
) -> tuple[Jobs, list[str]]:
    """The first tokens of the trace's layers in turn, as sequences, every third one prefetched."""
    *layers, notes = layers_of(p, trace)
    jobs = Jobs(p, random_memory(p, rng))
    add_layers(jobs, layers, count, count)
    return jobs, notes


class LadSystemTestbench(JobsTestbench):
    random, real = staticmethod(random_jobs), staticmethod(real_jobs)

    def default_vectors(self, parameters: LadSystemParameters) -> int:
        return 3 if parameters.d <= 8 else 6

    def mutant_vectors(self, parameters: LadSystemParameters) -> int:
        return 160 if parameters.d <= 8 else 24

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


def _last(owners: np.ndarray, beats: np.ndarray, layout) -> list[Mismatch]:
    """Flags of a job's last output that are wrong."""
    last = payload.unpack(layout, beats)["last"] != 0
    expected = np.append(owners[1:] != owners[:-1], True)
    wrong = np.flatnonzero(last != expected)
    return [
        Mismatch("o", int(owners[beat]), int(beat), "last", int(expected[beat]), int(last[beat]))
        for beat in wrong
    ]


testbench = LadSystemTestbench()
