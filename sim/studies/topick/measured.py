"""What is measured of Token-Picker's core, and comparisons of cores."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hw.topick.core_parameters import TokenWork, TopickCoreParameters

CHUNKS, BITS = 3, 12
"""Number of chunks and of bits of an element of K or V."""
SIZES = "lanes", "lanes_per_head", "entries", "d", "buffer_tokens", "pruning", "heads", "kv_heads"
"""Parameters of the core that a measurement keeps."""


@dataclasses.dataclass(frozen=True)
class JobRun:
    """A job in the RTL.

    cycles
        From the job's offer to its last o.
    lane_cycles
        Cycles of each lane from the job's offer to the memory's last response.
    decided_cycles
        Cycles of each lane from the job's offer to its last decision, the end of step 0.
    chunks, keys
        Number of chunks that each lane's memory reads, and of K's among them.
    model_keys, model_values
        Chunks that the algorithm reads in the same order of arrivals; 0 without pruning.
    waiting
        Cycles of each lane if it waited for every further chunk of a key: calculated, with one lane
        a head.
    """

    cycles: int
    lane_cycles: list[int]
    decided_cycles: list[int]
    chunks: list[int]
    keys: list[int]
    model_keys: int = 0
    model_values: int = 0
    waiting: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Jobs of one length on a core, one for each layer of the trace.

    source
        Model, layers and text of the trace.
    heads, kv_heads
        Number of heads of a job.
    tokens
        Number of tokens of the sequence, the new one included.
    memory
        Cycles from a request to its response.
    """

    source: str
    lanes: int
    lanes_per_head: int
    entries: int
    d: int
    buffer_tokens: int
    pruning: bool
    heads: int
    kv_heads: int
    tokens: int
    threshold: float
    memory: int
    jobs: list[JobRun]

    @property
    def cycles(self) -> int:
        return sum(job.cycles for job in self.jobs)

    @property
    def lane_cycles(self) -> int:
        """Sum of the lanes' own cycles."""
        return sum(sum(job.lane_cycles) for job in self.jobs)

    @property
    def chunks(self) -> int:
        return sum(sum(job.chunks) for job in self.jobs)

    @property
    def keys(self) -> int:
        return sum(sum(job.keys) for job in self.jobs)

    @property
    def values(self) -> int:
        return self.chunks - self.keys

    @property
    def keys_of_a_lane(self) -> float:
        """Chunks of K that a head has in each of its lanes."""
        return CHUNKS * self.tokens / self.lanes_per_head

    @property
    def model(self) -> tuple[int, int]:
        """Chunks of K and of V that the algorithm reads."""
        return tuple(
            sum(getattr(job, f"model_{x}") for job in self.jobs) for x in ("keys", "values")
        )

    @property
    def everything(self) -> int:
        """Chunks of K, and as many of V."""
        return CHUNKS * self.tokens * self.heads * len(self.jobs)

    @property
    def use(self) -> float:
        """Chunks read in each cycle of a lane, until the slowest lane has ended."""
        return self.chunks / self.cycles / self.lanes

    @property
    def own_use(self) -> float:
        """Chunks read in each cycle of a lane, until it has ended."""
        return self.chunks / self.lane_cycles

    @property
    def head_cycles(self) -> float:
        """Mean cycles of step 0 of a head in its lanes."""
        groups = self.lanes // self.lanes_per_head
        last = sum(
            max(job.decided_cycles[g * self.lanes_per_head :][: self.lanes_per_head])
            for job in self.jobs
            for g in range(groups)
        )
        return last / self.heads / len(self.jobs)


def read(path: Path) -> list[Measured]:
    """Measurements of a result's file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["measured"]
    return [Measured(**row | {"jobs": [JobRun(**job) for job in row["jobs"]]}) for row in rows]


def text(measured: Sequence[Measured]) -> str:
    """JSON with a measurement in each line."""
    return "[\n" + ",\n".join(json.dumps(dataclasses.asdict(m)) for m in measured) + "\n]\n"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A core with pruning, and the one that reads everything, of as many lanes."""

    base: Measured
    core: Measured

    @property
    def speedup(self) -> float:
        return self.base.cycles / self.core.cycles

    @property
    def beside_shared(self) -> float:
        """How much faster than a machine on the same ports that reads each row once for its group.

        By the formula of the baseline with one query head for each kv head.
        """
        m = self.core
        p = TopickCoreParameters(
            lanes=m.lanes,
            lanes_per_head=m.lanes_per_head,
            tokens=1 << (max(m.tokens, 2 * m.lanes_per_head) - 1).bit_length(),
            d=m.d,
            heads=m.kv_heads,
            kv_heads=m.kv_heads,
        )
        work = [TokenWork(m.tokens, m.kv_heads, m.kv_heads)] * len(m.jobs)
        return p.cycles(work, m.memory) / m.cycles

    @property
    def own(self) -> float:
        """By the lanes' own cycles."""
        return self.base.lane_cycles / self.core.lane_cycles

    @property
    def bound(self) -> float:
        """How much faster than lanes that read everything without waiting once."""
        return 2 * self.core.everything / self.core.lanes / self.core.cycles

    def estimation(self, own: bool = False) -> float:
        """With all of K read, and of V what the core reads.

        The RTL's cycles without pruning, less one for each chunk of V that is not read.
        """
        cycles = 0
        for base, core in zip(self.base.jobs, self.core.jobs, strict=True):
            values = np.subtract(core.chunks, core.keys)
            saved = np.subtract(base.chunks, base.keys) - values
            cycles += (
                np.subtract(base.lane_cycles, saved).sum() if own else base.cycles - saved.min()
            )
        return float((self.base.lane_cycles if own else self.base.cycles) / cycles)

    @property
    def waiting(self) -> float:
        """In order, and waiting for each further chunk: calculated."""
        return self.base.cycles / sum(max(job.waiting) for job in self.core.jobs)


class Results:
    """Measurements, by what was measured."""

    def __init__(self, measured: Sequence[Measured]):
        self.measured = list(measured)
        pruned = [m for m in self.measured if m.pruning]
        self.default = max(m.entries for m in pruned)
        self.threshold = max(m.threshold for m in pruned)
        self.thresholds = sorted({m.threshold for m in pruned}, reverse=True)
        self.tokens = sorted({m.tokens for m in pruned})
        self.lanes_per_head = sorted({m.lanes_per_head for m in pruned})
        self.ds = sorted({m.d for m in pruned})

    def pairs(self, **fields) -> list[Pair]:
        """Pairs of the default slots and threshold without buffers, but for `fields`."""
        wanted = {"entries": self.default, "threshold": self.threshold, "buffer_tokens": 0}
        wanted |= {"pruning": True, "d": self.ds[0]} | fields
        found = []
        for m in self.measured:
            if all(getattr(m, name) == value for name, value in wanted.items()):
                same = "lanes", "lanes_per_head", "d", "tokens"
                found += [
                    Pair(base, m)
                    for base in self.measured
                    if not base.pruning and all(getattr(base, n) == getattr(m, n) for n in same)
                ]
        return found


def summary(m: Measured) -> str:
    """A line for the terminal."""
    cycles = ", ".join(str(job.cycles) for job in m.jobs)
    what = f"threshold {m.threshold:g}, " if m.pruning else ""
    return f"  {m.tokens} tokens, {what}cycles {cycles}; {m.own_use:.2f} chunks a lane and cycle"
