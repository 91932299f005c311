"""Testbench of the search: queries and search blocks in, estimates out, a batch a transaction."""

import dataclasses

import numpy as np

from golden.algorithms.baselines.hadamard import hadamard_transform
from golden.trace import Trace
from golden.tsuru.row_encoder import encode
from golden.tsuru.row_format import NOT_FINITE, SEARCH_ROWS
from golden.tsuru.row_search import aligned, estimates, merged
from golden.tsuru.stored_rows import PLANES, planes, search_words
from hw.baseline.dense_core import DenseCoreParameters
from hw.tsuru.row_search import RowSearchParameters
from sim.core.stimulus import Stimulus
from sim.core.streams import Streams, last_of
from sim.testbenches.arith.operands import random_floats
from sim.testbenches.decode import layers_of
from sim.testbenches.strategies import pick, sometimes

KEY_FRACTION = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Queries float16[heads, d], and scales uint8[slots] and codes uint8[slots, d] of slots."""

    q: np.ndarray
    scales: np.ndarray
    codes: np.ndarray

    def estimates(self, p: RowSearchParameters) -> tuple[np.ndarray, np.ndarray]:
        """int64[heads, slots] and bool[slots], by the bit-exact model."""
        integers, top = aligned(self.q, p.query_bits)
        e = estimates(integers, top, self.scales, self.codes, p.query_bits)
        return merged(e, p.sinks, PLANES)


def tiles_of(p: RowSearchParameters, e: np.ndarray, present: np.ndarray) -> dict[str, np.ndarray]:
    """Beats of estimates int64[heads, slots]; absent ones are 0."""
    heads, slots = e.shape
    tiles = -(-slots // SEARCH_ROWS)
    whole = np.zeros((tiles * SEARCH_ROWS, p.parallel), np.int64)
    whole[:slots, :heads] = (e * present).T
    bits = np.zeros(tiles * SEARCH_ROWS, np.int64)
    bits[:slots] = present
    masks = bits.reshape(tiles, SEARCH_ROWS) @ (1 << np.arange(SEARCH_ROWS))
    found = {"present": masks, "last": last_of([tiles])}
    for n in range(SEARCH_ROWS):
        found[f"e[{n}]"] = whole.reshape(tiles, SEARCH_ROWS, -1)[:, n]
    return found


def random_batch(p: RowSearchParameters, rng: np.random.Generator) -> Batch:
    """Any heads and slots; plain queries, or of any bits."""
    heads = int(rng.integers(1, p.parallel + 1))
    most = p.slots if sometimes(rng, 0.2) else min(p.slots, 40)
    rows = int(rng.integers(1, most - (PLANES - 1) * p.sinks + 1))
    slots = rows + (PLANES - 1) * min(rows, p.sinks)
    codes = rng.integers(0, 4, (slots, p.d), np.uint8)
    if pick(rng, {"plain": 2, "bits": 1}) == "plain":
        scale = rng.choice([0.3, 1.0, 3.0])
        q = (rng.standard_normal((heads, p.d)) * scale).astype(np.float16)
        scales = rng.integers(13 << 3, 18 << 3, slots, np.uint8)
    else:
        q = random_floats("fp16", heads * p.d, [], rng).reshape(heads, p.d)
        scales = rng.integers(0, 256, slots).astype(np.uint8)
    if sometimes(rng, 0.3):
        scales[rng.integers(slots)] = rng.choice([0, 7, NOT_FINITE])
    if sometimes(rng, 0.2):  # the largest sums
        codes[:] = np.where(q[0].view(np.int16) < 0, 3, 1)
    return Batch(q, scales, codes)


def real_batches(
    p: RowSearchParameters, trace: Trace, vectors: int
) -> tuple[list[Batch], list[str]]:
    """Queries of a kv head in each layer, the last tokens first, on all rows up to theirs."""
    # Heads of a core of one kv head.
    q, k, _, notes = layers_of(DenseCoreParameters(d=p.d, heads=p.parallel, kv_heads=1), trace)
    batches = []
    for number in range(vectors):
        layer, before = number % len(k), number // len(k)
        last = k.shape[2] - 1 - before % k.shape[2]
        rows = rotated(k[layer, 0, max(0, last + 1 - p.rows) : last + 1])
        batches.append(batch_of(p, rotated(q[layer, :, last]), rows))
    return batches, [*notes, "Rows are rotated; each batch has the queries of one token."]


def rotated(x: np.ndarray) -> np.ndarray:
    """Rows float16[..., d] by a Hadamard transform."""
    return hadamard_transform(x.astype(np.float64)).astype(np.float16)


def batch_of(p: RowSearchParameters, q: np.ndarray, k: np.ndarray) -> Batch:
    """Queries float16[heads, d] on rows float16[rows, d]."""
    sinks = [planes(row) for row in k[: p.sinks]]
    others = encode(k[p.sinks :], KEY_FRACTION)
    scales = [*(s for s, _ in sinks), others.scale]
    codes = [*(c for _, c in sinks), (others.fine >> KEY_FRACTION + 1).astype(np.uint8)]
    return Batch(q, np.concatenate(scales), np.concatenate(codes))


def stimulus_of(p: RowSearchParameters, batches: list[Batch], notes: list[str]) -> Stimulus:
    row = p.word_layout["data"].shape
    inputs = Streams({"batch": p.batch_layout, "q": row, "words": p.word_layout})
    outputs = Streams({"o": p.tile_layout})
    for number, batch in enumerate(batches):
        heads, slots = len(batch.q), len(batch.scales)
        # Slots without a row, in the last word, are of any bits.
        any_bits, more = np.random.default_rng(number), -slots % SEARCH_ROWS
        words = search_words(
            np.append(batch.scales, any_bits.integers(0, 256, more, np.uint8)),
            np.concatenate([batch.codes, any_bits.integers(0, 4, (more, p.d), np.uint8)]),
        )
        inputs.add("batch", number, {"heads": heads, "slots": slots})
        inputs.add("q", number, {"": batch.q})
        inputs.add("words", number, {"data": words, "last": last_of([len(words)])})
        outputs.add("o", number, tiles_of(p, *batch.estimates(p)))
    return Stimulus(
        inputs=inputs.packed(),
        outputs=outputs.packed(),
        transaction_of=outputs.owners(),
        transactions=len(batches),
        cycles=p.cycles([(len(batch.q), len(batch.scales)) for batch in batches]),
        notes=notes,
    )


class RowSearchTestbench:
    def default_vectors(self, parameters: RowSearchParameters) -> int:
        return 40 if parameters.d <= 8 else 8

    def stimulus(
        self, parameters: RowSearchParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p, rng = parameters, np.random.default_rng(seed)
        notes: list[str] = []
        if trace is None:
            batches = [random_batch(p, rng) for _ in range(vectors)]
        else:
            batches, notes = real_batches(p, trace, vectors)
        return stimulus_of(p, batches, notes)


testbench = RowSearchTestbench()
