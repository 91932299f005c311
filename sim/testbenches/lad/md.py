"""Testbench of the mode discrepancy module. A transaction is a head.

The new words of G and the totals have no handshake: :mod:`tests.lad.test_md` compares them.
"""

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.cycles import md_cycles
from golden.trace import Trace
from hw.lad.md import (
    MdParameters,
    command_layout,
    correction_layout,
    counter_row_layout,
    key_layout,
)
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.lad.active_heads import (
    ActiveHead,
    correction_fields,
    entry_fields,
    owners,
    random_heads,
    real_heads,
)


class MdTestbench:
    def default_vectors(self, parameters: MdParameters) -> int:
        return 20 if parameters.d <= 8 else 2

    def mutant_vectors(self, parameters: MdParameters) -> int:
        return 240 if parameters.d <= 8 else 48

    def stimulus(
        self, parameters: MdParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, random_heads(parameters, vectors, rng), [])
        return build(parameters, *real_heads(parameters, trace, vectors, rng))


testbench = MdTestbench()


def build(p: MdParameters, heads: list[ActiveHead], notes: list[str]) -> Stimulus:
    """The stimulus of these heads."""
    changes = [head.changes_row for head in heads]
    keys = {f"entry.{name}": field for name, field in entry_fields(heads).items()}
    keys["data"] = to_bits(np.concatenate([head.k for head in heads]))
    commands = {
        "q": to_bits(np.stack([head.q for head in heads])),
        "m": to_bits(np.array([head.m for head in heads], np.float16)),
        "n": np.array([head.n for head in heads]),
    }
    rows = [head.counter_row[new] for head, new in zip(heads, changes, strict=True)]
    before = np.concatenate([head.table[row] for head, row in zip(heads, rows, strict=True)])
    written = {
        "row": np.concatenate(rows),
        "data": np.concatenate([head.rows_written() for head in heads]),
    }

    return Stimulus(
        inputs={
            "command": payload.pack(command_layout(p), commands),
            "key": payload.pack(key_layout(p), keys),
            "counters": payload.pack(p.row_layout, {"": before}),
        },
        outputs={
            "written": payload.pack(counter_row_layout(p), written),
            "correction": payload.pack(correction_layout(), correction_fields(heads)),
        },
        transaction_of={
            "written": owners([len(row) for row in rows]),
            "correction": owners([int(head.active.sum()) for head in heads]),
        },
        transactions=len(heads),
        cycles=md_cycles([len(head.index) for head in heads], latency=p.latency),
        notes=notes,
    )
