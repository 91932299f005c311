"""Token-Picker's core in compiled RTL, job by job."""

import functools
from collections.abc import Sequence

import numpy as np

from golden.algorithms.topick.reads import Job, Reads, in_order_cycles, job_of, reads_of
from golden.trace import Trace, TraceError
from hw.catalogue import find
from hw.topick.core_parameters import TopickCoreParameters
from sim.core.design import generate
from sim.core.memory import MemoryTiming, timings_of
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome
from sim.core.tools import ToolError
from sim.drivers.harness.runner import Harness
from sim.studies.topick.measured import JobRun
from sim.testbenches.topick.core_jobs import CoreStimulus, Jobs
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.topick_core import decisions_of, testbench

ROOM = 1024
"""Tokens that every core has room for, as the default preset."""


def core(trace: Trace, lanes_per_head: int, tokens: int, **sizes) -> TopickCoreParameters:
    """A core for the trace's heads and up to `tokens` tokens, 1024 at least.

    The number of tokens in a core moves cycles a little: a head waits until its lanes have room for
    all of its tokens. With one lane for each head, kv heads run side by side, and the query heads
    of each one after another. Otherwise all heads follow one another.
    """
    assert trace.q is not None and trace.k is not None
    heads, kv_heads = trace.q.shape[1], trace.k.shape[1]
    rows = 1 << (max(tokens, 2 * lanes_per_head, ROOM) - 1).bit_length()
    return TopickCoreParameters(
        lanes=kv_heads if lanes_per_head == 1 else lanes_per_head,
        lanes_per_head=lanes_per_head,
        tokens=rows,
        heads=heads,
        kv_heads=kv_heads,
        **{"d": trace.q.shape[3]} | sizes,
    )


def joined(trace: Trace) -> Trace:
    """Of twice the d: each kv head, and its queries, beside the next one.

    Scores are the sums of two heads' scores divided by the square root of two.
    """
    assert trace.q is not None and trace.k is not None and trace.v is not None
    q, k, v = (
        np.concatenate([x, np.roll(x, -step, axis=1)], axis=-1)
        for x, step in ((trace.q, trace.group), (trace.k, 1), (trace.v, 1))
    )
    return Trace(q=q, k=k, v=v, scale=float(trace.scale / np.sqrt(2)))


def stimulus_of(p: TopickCoreParameters, jobs: Sequence[Job], threshold: float) -> CoreStimulus:
    """The jobs' last tokens, each of a context, the other ones in the memories."""
    added = Jobs(p, *((job.k[:, :-1], job.v[:, :-1]) for job in jobs))
    for context, job in enumerate(jobs):
        heads = [
            coded_head(p.lane, q, float(c), threshold, job.k.shape[1])
            for q, c in zip(job.q, job.c, strict=True)
        ]
        added.add(heads, job.k[:, -1], job.v[:, -1], context=context)
    made = added.stimulus([])
    assert isinstance(made, CoreStimulus)
    return made


class Core:
    """A compiled core, on which jobs are measured one by one."""

    def __init__(self, parameters: TopickCoreParameters):
        self.parameters = parameters
        self._design = generate(find("topick.topick_core"), parameters)
        self._harness = Harness(self._design)

    def run(self, job: Job, threshold: float, memory: int) -> JobRun:
        """Cycles and reads of a job, whose outputs are checked.

        memory
            Cycles from each request to its response.
        :raises ToolError: if an output is wrong.
        """
        p = self.parameters
        stimulus = stimulus_of(p, [job], threshold)
        outcome = self._outcome(stimulus, memory)
        layouts = self._design.outputs
        _, (decided,) = decisions_of(stimulus, outcome.outputs, layouts, outcome.cycles_of)
        read = np.stack([made.read for made in decided])
        memories = [outcome.memories[f"memory__{lane}"] for lane in range(p.lanes)]
        return JobRun(
            cycles=outcome.cycles,
            lane_cycles=[int(use.offered.max(initial=-1)) + 1 for use in memories],
            decided_cycles=[
                int(outcome.cycles_of[f"report__{lane}"].max(initial=-1)) + 1
                for lane in range(p.lanes)
            ],
            chunks=[use.rows_read for use in memories],
            keys=keys_of(p, read, len(job.q) // len(job.k)),
            **self._modelled(job, threshold, memory),
        )

    def together(self, jobs: Sequence[Job], threshold: float, memory: int) -> tuple[int, list[int]]:
        """Cycles of jobs of as many contexts, offered at once, and chunks that each lane reads.

        :raises ToolError: if an output is wrong.
        """
        outcome = self._outcome(stimulus_of(self.parameters, jobs, threshold), memory)
        lanes = range(self.parameters.lanes)
        return outcome.cycles, [outcome.memories[f"memory__{lane}"].rows_read for lane in lanes]

    def _outcome(self, stimulus: CoreStimulus, memory: int) -> Outcome:
        """A run from reset, whose outputs are checked."""
        p = self.parameters
        self._harness.reset()
        timing = timings_of(stimulus.memories, MemoryTiming((memory, memory)))
        outcome = self._harness.run(stimulus, PATTERNS["none"], 1, timing)
        layouts = self._design.outputs
        wrong = outcome.failure or testbench.compare(
            stimulus, outcome.outputs, layouts, outcome.cycles_of
        )
        if wrong:
            tokens = stimulus.work[0][0].head.tokens
            raise ToolError(f"{tokens} tokens, {p.lanes_per_head} lanes a head: {wrong}")
        return outcome

    def _modelled(self, job: Job, threshold: float, memory: int) -> dict:
        p = self.parameters
        if not p.pruning:
            return {}
        latency = memory + p.lane.request_latency
        reads = cached_reads(job, threshold, latency * p.lanes_per_head, p.bits, p.chunk_bits)
        return {
            "model_keys": reads.k_chunks(p.buffer_tokens),
            "model_values": reads.v_rows(p.buffer_tokens) * p.lane.chunks,
            "waiting": waiting_cycles(p, reads, latency) if p.lanes_per_head == 1 else [],
        }


def keys_of(p: TopickCoreParameters, read: np.ndarray, group: int) -> list[int]:
    """Chunks of K that each lane's memory reads, from the decisions' ``read[heads, tokens]``."""
    by_kv_head = read.reshape(-1, group, read.shape[1])
    once, rest = by_kv_head[..., : p.buffer_tokens], by_kv_head[..., p.buffer_tokens :]
    reads = np.concatenate([once.max(axis=1, initial=0), rest.sum(axis=1)], axis=1)
    # kv head k is in group k mod groups, token i in the group's lane i mod lanes_per_head.
    lanes = [divmod(lane, p.lanes_per_head) for lane in range(p.lanes)]
    return [int(reads[group :: p.groups, n :: p.lanes_per_head].sum()) for group, n in lanes]


@functools.lru_cache(maxsize=64)
def cached_reads(job: Job, threshold: float, latency: int, bits: int, chunk_bits: int) -> Reads:
    return reads_of(job, threshold, latency, bits=bits, chunk_bits=chunk_bits, bit_exact=True)


def waiting_cycles(p: TopickCoreParameters, reads: Reads, latency: int) -> list[int]:
    """Cycles of each lane if it waited for every further chunk of a key: calculated."""
    cycles = [0] * p.lanes
    for head in range(len(reads.chunks)):
        lane = head // reads.group % p.groups
        values = p.lane.chunks * int(reads.values[head].sum())
        cycles[lane] += in_order_cycles(reads.in_order(head), latency) + values
    return cycles


class Traces:
    """Jobs of a trace, and of a longer one where the first is too short."""

    def __init__(self, trace: Trace, longer: Trace | None):
        self.trace = trace
        self._all = [trace] if longer is None else [trace, longer]
        for checked in self._all:
            if checked.q is None or checked.k is None:
                raise TraceError("it holds no q, k and v")
        if longer is not None and _shape(longer) != _shape(trace):
            raise TraceError(
                "the longer trace must have the layers, heads, kv heads and d of the first,"
                f" {_shape(trace)}, not {_shape(longer)}"
            )
        self._jobs: dict[tuple[int, bool], list[Job]] = {}
        self.longest = max(map(length_of, self._all))

    def source(self, tokens: int) -> str:
        """Model, layers and text of jobs of that number of tokens."""
        meta = self._of(tokens).meta
        layers = ", ".join(str(layer) for layer in meta.get("layers", []))
        parts = meta.get("model"), layers and f"layers {layers}", meta.get("text")
        return ", ".join(str(part) for part in parts if part) or "a trace without a name"

    def _of(self, tokens: int) -> Trace:
        return next(trace for trace in self._all if length_of(trace) >= tokens)

    def jobs(self, tokens: int, *, doubled: bool) -> list[Job]:
        """A job of each layer; `doubled` in d."""
        if (tokens, doubled) not in self._jobs:
            trace = self._of(tokens)
            trace = joined(trace) if doubled else trace
            jobs = [job_of(trace, layer, tokens) for layer in range(_shape(trace)[0])]
            self._jobs[tokens, doubled] = jobs
        return self._jobs[tokens, doubled]


def length_of(trace: Trace) -> int:
    assert trace.q is not None
    return trace.q.shape[2]


def _shape(trace: Trace) -> tuple[int, ...]:
    """Layers, heads, kv heads, d."""
    assert trace.q is not None and trace.k is not None
    return (*trace.q.shape[:2], trace.k.shape[1], trace.q.shape[3])
