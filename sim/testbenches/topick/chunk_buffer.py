"""Testbench of the chunk buffer before a memory of chunks. A transaction is a request.

Chunks have one address each and are never written, so that every response has the same data
whatever the buffer keeps. What it keeps shows in the cycle of each response where nothing stalls.
"""

import dataclasses

import numpy as np

from golden.topick.chunk_buffer import timeline
from golden.trace import Trace
from hw.topick.chunk_buffer import ChunkBufferParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Mismatch, Stimulus, compare
from sim.testbenches.strategies import mixture, pick, sometimes
from sim.testbenches.stream.beats import beats


@dataclasses.dataclass
class Requests(Stimulus):
    """Requests, their responses in the order of a run without stalls, and the cycle of each."""

    response_cycles: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))


class ChunkBufferTestbench:
    def default_vectors(self, parameters: ChunkBufferParameters) -> int:
        return 300

    def stimulus(
        self, parameters: ChunkBufferParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng([seed, trace is None])
        return build(parameters, trace, chunks(parameters, vectors, rng), seed)

    def compare(
        self, stimulus: Requests, got: dict, layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """Exactly, with the cycle of each response, if nothing stalls; else in any order."""
        fastest = all(timing.is_fastest for timing in stimulus.timings.values())
        if stimulus.stall != "none" or not fastest:
            return _compare_in_any_order(stimulus, got, layouts, cycles_of)
        found = compare(stimulus, got, layouts, cycles_of)
        cycles = np.asarray(cycles_of["response"])
        if not found and (cycles != stimulus.response_cycles).any():
            beat = int(np.flatnonzero(cycles != stimulus.response_cycles)[0])
            want, have = int(stimulus.response_cycles[beat]), int(cycles[beat])
            transaction = int(stimulus.transaction_of["response"][beat])
            found.append(Mismatch("response", transaction, beat, "cycle", want, have, have))
        return found


testbench = ChunkBufferTestbench()


def _compare_in_any_order(stimulus, got: dict, layouts: dict, cycles_of: dict) -> list[Mismatch]:
    """Expected and received responses in the order of their bits."""
    expected, received = stimulus.outputs["response"], got["response"]
    order = [np.lexsort(words.T) for words in (expected, received)]
    transactions = stimulus.transaction_of["response"][order[0]]
    in_order = dataclasses.replace(
        stimulus,
        outputs={"response": expected[order[0]]},
        transaction_of={"response": transactions},
    )
    cycles = np.asarray(cycles_of["response"])[order[1]]
    return compare(in_order, {"response": received[order[1]]}, layouts, {"response": cycles})


def sweep(p: ChunkBufferParameters, count: int) -> int:
    """Chunks in each of the first three parts of `count` requests."""
    return min(p.planes * p.rows, count // 6)


def chunks(p: ChunkBufferParameters, count: int, rng: np.random.Generator) -> np.ndarray:
    """Requested chunks, int[count, 3]: value, chunk, row.

    First all buffered chunks, or as many as fit, three times. Then new ones in any row, near the
    end of the buffered ones, or in a few rows, with runs of chunks that were requested before.
    """
    size = sweep(p, count)
    buffered = np.stack(np.unravel_index(np.arange(p.planes * p.rows), (2, p.chunks, p.rows)))
    first = rng.permutation(buffered.T)[:size]
    last = (1 << p.row_bits) - 1
    kinds = {
        "buffered": (0.4, rng.integers(0, p.rows, count)),
        "any": (0.2, rng.integers(0, last + 1, count)),
        "edge": (0.2, np.clip(p.rows + rng.integers(-1, 2, count), 0, last)),
        "few": (0.2, rng.integers(0, min(p.rows, 3), count)),
    }
    value, chunk = rng.integers(0, 2, count), rng.integers(0, p.chunks, count)
    found = np.stack([value, chunk, mixture(rng, count, kinds)], axis=1)
    found[: 3 * size] = np.concatenate([first, first, first[::-1]])
    at = max(8, 3 * size)
    while at < count:
        length = min(int(rng.integers(1, 12)), count - at)
        back = {"just before": int(rng.integers(1, 8)), "earlier": int(rng.integers(8, 64))}
        begin = max(0, at - back[pick(rng, {"just before": 1, "earlier": 2})])
        if sometimes(rng, 0.6):
            found[at : at + length] = found[begin : begin + length].copy()
        at += length
    return found


def build(
    p: ChunkBufferParameters, trace: Trace | None, requested: np.ndarray, seed: int
) -> Requests:
    """Requests of these chunks; a clear before the third part, and now and then after it."""
    rng = np.random.default_rng(seed)
    count = len(requested)
    label = np.arange(count) % (1 << p.label_bits)
    value, chunk, row = requested.T
    address = ((value * p.chunks + chunk) << p.row_bits) + row & (1 << p.address_width) - 1
    contents, notes = beats(trace, p.d * p.chunk_bits, 1 << p.address_width, seed)
    # One beat a cycle, for most of the cycles; most of them clear nothing. The last one clears
    # both, so that its flags remain at the port without `valid`.
    clears = np.stack([sometimes(rng, share, 1 + 7 * count // 8) for share in (0.02, 0.01)], axis=1)
    second = 2 * sweep(p, count)
    clears[:second], clears[second + 1 : second + 2], clears[-1] = False, True, True
    done = timeline(list(map(tuple, requested.tolist())), clears.tolist(), p.rows)
    tag = {"tag.value": value, "tag.chunk": chunk, "tag.row": row, "tag.label": label}
    words = payload.unpack(p.memory.response_layout["data"].shape, contents[address])
    fields = tag | {"data": np.stack(list(words.values()), axis=1)}
    order = np.array(done.order)
    return Requests(
        inputs={
            "request": payload.pack(p.memory.read_layout, tag | {"address": address}),
            "clear": payload.pack(p.clear_layout, {"keys": clears[:, 0], "values": clears[:, 1]}),
        },
        outputs={
            "response": payload.pack(
                p.memory.response_layout, {k: v[order] for k, v in fields.items()}
            )
        },
        transaction_of={"response": order},
        transactions=count,
        cycles=done.cycles[-1] + 1,
        notes=notes,
        memories={"memory": Memory(contents, "memory_request", "memory_response")},
        response_cycles=np.array(done.cycles),
    )
