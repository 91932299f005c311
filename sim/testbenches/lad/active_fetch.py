"""Testbench of the fetch of active positions. A transaction is a head.

The memory has random rows, and the trace's keys and values on real data.
"""

import numpy as np

from golden.arith.formats import to_bits
from golden.lad.cycles import fetch_cycles
from golden.trace import Trace
from hw.lad.active_fetch import (
    ActiveFetchParameters,
    fetch_layout,
    fetched_layout,
    position_rows_layout,
)
from hw.lad.md import key_layout
from sim.core import payload
from sim.core.stimulus import Mismatch, Stimulus, compare
from sim.testbenches.decode import layers_of
from sim.testbenches.lad.active_heads import (
    ActiveHead,
    entry_fields,
    owners,
    pack_entries,
    random_heads,
    real_heads,
)
from sim.testbenches.lad.jobs import memory_rows, random_memory
from sim.testbenches.memory import memory_of


class ActiveFetchTestbench:
    def default_vectors(self, parameters: ActiveFetchParameters) -> int:
        return 60 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: ActiveFetchParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p, rng = parameters, np.random.default_rng(seed)
        rows = random_memory(p, rng)
        if trace is None:
            return build(p, random_heads(p, vectors, rng), rows, rng, [])
        _store(p, trace, rows)
        heads, notes = real_heads(p, trace, vectors, rng)
        return build(p, heads, rows, rng, [*notes, "Rows of counters and caches are random."])

    def compare(
        self, stimulus: Stimulus, got: dict, layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """Without keys of inactive positions."""
        got = got | {"key": _without_inactive(layouts["key"], got["key"])}
        return compare(stimulus, got, layouts, cycles_of)


testbench = ActiveFetchTestbench()


def _without_inactive(shape, beats: np.ndarray) -> np.ndarray:
    """Keys with zeros where the position is inactive: its K is not requested."""
    fields = payload.unpack(shape, beats)
    inactive = fields["entry.halve"] == 1
    data = {
        name: np.where(inactive, 0, value)
        for name, value in fields.items()
        if name.startswith("data")
    }
    return payload.pack(shape, fields | data)


def _store(p: ActiveFetchParameters, trace: Trace, memory: np.ndarray) -> None:
    """The trace's first layer into the regions of K and V, repeated."""
    _, k, v, _ = layers_of(p, trace)
    at = np.arange(p.positions) % k.shape[2]
    for name, rows in (("k", k), ("v", v)):
        for kv_head in range(p.kv_heads):
            start = p.regions[name].address_of(kv_head, 0)
            memory[start : start + p.positions] = to_bits(rows[0, kv_head % k.shape[1], at])


def build(
    p: ActiveFetchParameters,
    heads: list[ActiveHead],
    memory: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these heads' entries; which query head each is, is random."""
    count = len(heads)
    number, kv_number = (rng.integers(0, end, count) for end in (p.heads, p.kv_heads))

    def rows_of(region: str, part: int, rows: np.ndarray) -> np.ndarray:
        return memory[p.regions[region].address_of(part, rows)]

    keys, values, counters, entries = [], [], [], []
    for head, part, kv_part in zip(heads, number, kv_number, strict=True):
        keys.append(rows_of("k", kv_part, head.index))
        values.append(rows_of("v", kv_part, head.index[head.active]))
        counters.append(rows_of("counter", part, head.counter_row[head.changes_row]))
        entries.append(list(zip(head.active.tolist(), head.changes_row.tolist(), strict=True)))
    active = np.concatenate([head.active for head in heads])
    every = np.concatenate(keys)
    shown = np.where(active[:, None], every, 0)
    key = {f"entry.{name}": field for name, field in entry_fields(heads).items()}
    read = [int(2 * head.active.sum() + head.changes_row.sum()) for head in heads]
    stored = memory_rows(p, memory)
    return Stimulus(
        inputs={
            "command": payload.pack(fetch_layout(p), {"head": number, "kv_head": kv_number}),
            "entry": pack_entries(p, heads),
        },
        outputs={
            "key": payload.pack(key_layout(p), key | {"data": shown}),
            "counters": payload.pack(p.row_layout, {"": np.concatenate(counters)}),
            "fetched": payload.pack(
                fetched_layout(p), {"rows": np.array(read), "hits": np.zeros(count, int)}
            ),
            "rows": payload.pack(
                position_rows_layout(p), {"k": every[active], "v": np.concatenate(values)}
            ),
        },
        transaction_of={
            "key": owners([len(rows) for rows in keys]),
            "counters": owners([len(rows) for rows in counters]),
            "fetched": np.arange(count),
            "rows": owners([len(rows) for rows in values]),
        },
        transactions=count,
        cycles=fetch_cycles(entries, depth=p.depth),
        notes=notes,
        memories={
            "memory": memory_of(stored, stored),
        },
    )
