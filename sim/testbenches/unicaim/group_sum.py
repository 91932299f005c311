"""Testbench of the group's sums: scores of queries in, sums out. A transaction is a sum."""

from collections.abc import Sequence

import numpy as np

from golden.trace import Trace
from hw.unicaim.group_sum import GroupSumParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import real_scores


class GroupSumTestbench:
    def default_vectors(self, parameters: GroupSumParameters) -> int:
        return 64

    def stimulus(
        self, parameters: GroupSumParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        if trace is not None:
            scores, notes = real_scores(trace, p.rows, vectors * p.group)
            limit = (1 << p.score_bits - 1) - 1
            groups = np.clip(scores, -limit, limit).reshape(vectors, p.group, p.rows)
            return stimulus_of(p, list(groups), notes)
        return stimulus_of(p, random_groups(p, vectors, np.random.default_rng(seed)))


testbench = GroupSumTestbench()


def random_groups(p: GroupSumParameters, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Any scores of groups of any size, and groups of extreme scores."""
    low, high = -(1 << p.score_bits - 1), (1 << p.score_bits - 1) - 1
    groups = []
    for _ in range(count):
        size = p.group if sometimes(rng, 0.4) else int(rng.integers(1, p.group + 1))
        values = rng.integers(low, high + 1, (size, p.rows))
        if sometimes(rng, 0.3):
            values = np.broadcast_to(rng.choice([low, high], p.rows), values.shape)
        groups.append(values)
    return groups


def stimulus_of(
    p: GroupSumParameters, groups: list[np.ndarray], notes: Sequence[str] = ()
) -> Stimulus:
    """``groups``: the scores int [queries, rows] of each sum."""
    sizes = [len(values) for values in groups]
    last = np.concatenate([np.arange(size) == size - 1 for size in sizes])
    sums = np.array([values.sum(axis=0) for values in groups])
    return Stimulus(
        inputs={
            "i": payload.pack(p.input_layout, {"values": np.concatenate(groups), "last": last})
        },
        outputs={"o": payload.pack(p.output_layout, {"": sums})},
        transaction_of={"o": np.arange(len(sums))},
        transactions=len(sums),
        cycles=p.cycles(sizes),
        notes=list(notes),
    )
