"""Testbench of the column counter: columns of indices in, counts out. A transaction is a column."""

import numpy as np

from golden.kllm.column_counter import column_counts
from golden.trace import Trace
from hw.kllm.column_counter import ColumnCounterParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.concat_unit import random_masks, real_indices
from sim.testbenches.kllm.index_distribution_counter import random_indices
from sim.testbenches.strategies import sometimes


class ColumnCounterTestbench:
    def default_vectors(self, parameters: ColumnCounterParameters) -> int:
        return 128

    def stimulus(
        self, parameters: ColumnCounterParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        if trace is None:
            beats, columns = random_columns(p, vectors, rng)
            return build(p, beats, columns, random_groups(p, vectors, rng), [], rng)
        values, notes = real_indices(trace, p.activation_bits, p.weight_bits, p.k, vectors)
        # The lanes of the last beat past the column's end are masked.
        rest = ((0, 0), (0, p.beats * p.segment - p.k))
        beats = {name: np.pad(v, rest).reshape(-1, p.segment) for name, v in values.items()}
        columns = np.repeat(np.arange(vectors), p.beats)
        beats["integer"] = columns % 4 == 3
        groups = np.where(np.arange(vectors) % 4 == 3, integer_groups(p), p.groups)
        return build(p, beats, columns, groups, notes, rng)


testbench = ColumnCounterTestbench()


def integer_groups(parameters: ColumnCounterParameters) -> int:
    """Groups of bins that have counts in integer mode: the first nA lines of 2^nW bins."""
    p = parameters
    return -(-(p.activation_bits << p.weight_bits) // p.macs)


def random_groups(
    parameters: ColumnCounterParameters, vectors: int, rng: np.random.Generator
) -> np.ndarray:
    """Groups that are output of each column, in half of them all.

    Counts of the other groups are dropped, whatever they are.
    """
    all_groups = np.full(vectors, parameters.groups)
    drawn = rng.integers(1, parameters.groups + 1, vectors)
    drawn = np.where(sometimes(rng, 0.3, vectors), 1, drawn)
    return np.where(sometimes(rng, 0.5, vectors), all_groups, drawn)


def random_columns(
    parameters: ColumnCounterParameters, vectors: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Beats of columns of every length, and the column each beat belongs to.

    The first columns are corner cases: maximal counts, an empty mask, one beat. Half of the others
    have k equal indices, each another one: the highest bit of a count.
    """
    p = parameters
    corners = [1, 1, p.beats, p.beats, p.beats, p.beats, 1, 1, p.groups, p.groups + 1]
    corners += [1 + max(p.groups - 2, 0), 2 * max(p.beats, p.groups)]
    drawn = rng.integers(1, 1 + max(p.beats, p.groups + 2), max(0, vectors - len(corners)))
    short = sometimes(rng, 0.3, len(drawn))
    alike = sometimes(rng, 0.5, len(drawn))
    drawn = np.where(alike, p.beats, np.where(short, 1 + drawn % 2, drawn))
    lengths = np.append(corners, drawn)[:vectors]
    columns = np.repeat(np.arange(vectors), lengths)
    shape = (len(columns), p.segment)
    index = random_indices(p.activation_bits + p.weight_bits, shape, rng)
    mask = random_masks(shape, rng)
    integer = rng.random(vectors)[columns] < 0.3
    integer ^= (sometimes(rng, 0.1, vectors))[columns] & (sometimes(rng, 0.5, len(columns)))
    # Columns of k equal indices: 0, the largest, the largest as an integer, and 5.
    full = np.resize(np.arange(p.beats * p.segment) < p.k, (p.beats, p.segment))
    equal = [(2, 0, 0), (3, -1, 0), (4, -1, 1), (5, 5, 0)]
    every = rng.permutation(p.bins)
    for number, place in enumerate(np.flatnonzero(alike).tolist()):
        value, as_integers = int(every[number % p.bins]), int(sometimes(rng, 0.2))
        equal.append((len(corners) + place, value, as_integers))
    for column, value, as_integers in equal:
        chosen = np.flatnonzero(columns == column)
        index[chosen] = value % p.bins
        mask[chosen], integer[chosen] = full[: len(chosen)], as_integers
    mask[columns == 6] = False
    beats = {
        "activation": index >> p.weight_bits,
        "weight": index & ((1 << p.weight_bits) - 1),
        "mask": mask,
        "integer": integer,
    }
    return beats, columns


def build(
    parameters: ColumnCounterParameters,
    beats: dict[str, np.ndarray],
    columns: np.ndarray,
    groups: np.ndarray,
    notes: list[str],
    rng: np.random.Generator,
) -> Stimulus:
    """The stimulus of these beats.

    columns
        Number of the column each beat belongs to.
    groups
        Groups that are output of each column.
    """
    p = parameters
    vectors = int(columns[-1]) + 1
    last = np.append(columns[1:] != columns[:-1], True)
    counts = column_counts(
        beats["activation"],
        beats["weight"],
        beats["mask"],
        beats["integer"],
        last,
        p.activation_bits,
        p.weight_bits,
    )
    counts &= (1 << p.count_bits) - 1
    place = np.arange(p.groups)
    is_output = place < groups[:, None]
    outputs = {
        "counts": counts.reshape(vectors, p.groups, p.macs)[is_output],
        "last": (place == groups[:, None] - 1)[is_output],
    }
    inputs = {name: np.asarray(value).astype(np.int64) for name, value in beats.items()}
    # The number of groups accompanies the last beat; before, the field may have any value.
    inputs["groups"] = np.where(last, groups[columns], rng.integers(0, p.groups + 1, len(last)))
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, inputs | {"last": last})},
        outputs={"o": payload.pack(p.output_layout, outputs)},
        transaction_of={"o": np.repeat(np.arange(vectors), groups)},
        transactions=vectors,
        cycles=p.cycles(np.bincount(columns).tolist(), groups.tolist()),
        notes=notes,
    )
