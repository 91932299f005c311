"""Page and picture of Token-Picker's speed, from measurements."""

import dataclasses

NAME = "topick_speed"


@dataclasses.dataclass(frozen=True)
class JobRun:
    """A job in the RTL.

    cycles
        From the job's offer to its last o.
    lane_cycles
        Of each lane: from the job's offer to the response of its last chunk.
    chunks, keys
        That each lane's memory reads: all, and those of K.
    model_keys, model_values
        Chunks that the algorithm reads in the same order; 0 without pruning.
    waiting
        Cycles of each lane if it waited for every further chunk of a key: calculated.
    """

    cycles: int
    lane_cycles: list[int]
    chunks: list[int]
    keys: list[int]
    model_keys: int = 0
    model_values: int = 0
    waiting: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Jobs of one length on a core, one for each layer of the trace."""

    lanes: int
    lanes_per_head: int
    entries: int
    d: int
    buffer_tokens: int
    pruning: bool
    heads: int
    tokens: int
    threshold: float
    memory: int
    jobs: list[JobRun]

    @property
    def cycles(self) -> int:
        return sum(job.cycles for job in self.jobs)


def summary(m: Measured) -> str:
    return str(m)


def section(measured):
    raise NotImplementedError
