"""Stimulus of operations on vectors, beside a core's products and attention."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from golden.trace import Trace
from hw.attention.vector_path import ELEMENTS, NORMS, PAIRS, VectorPathParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.attention import rotary_encoding, special_function_unit, vector_unit


def of_units(
    p: VectorPathParameters, trace: Trace | None, vectors: int, rng: np.random.Generator
) -> list[Stimulus]:
    """The stimulus of `vectors` for each of the units that there are."""
    seed = int(rng.integers(1 << 30))
    found = []
    if p.lanes:
        stimulus = vector_unit.testbench.stimulus(p.vector_unit, trace, vectors, seed)
        found.append(renamed(stimulus, ELEMENTS))
    if p.pairs:
        stimulus = rotary_encoding.testbench.stimulus(p.rotary_encoding, trace, vectors, seed)
        found.append(renamed(stimulus, PAIRS))
    if p.length:
        stimulus = special_function_unit.testbench.stimulus(p.norms, trace, vectors, seed)
        found.append(renamed(stimulus, NORMS))
    return found


def renamed(stimulus: Stimulus, names: Mapping[str, str]) -> Stimulus:
    """A unit's stimulus with the core's names of its streams.

    names
        The unit's by the core's.
    """
    core = {inner: outer for outer, inner in names.items()}
    return dataclasses.replace(
        stimulus,
        inputs={core[name]: beats for name, beats in stimulus.inputs.items()},
        outputs={core[name]: beats for name, beats in stimulus.outputs.items()},
        transaction_of={core[name]: of for name, of in stimulus.transaction_of.items()},
    )


def joined(stimulus: Stimulus, beside: Stimulus) -> Stimulus:
    """A core's stimulus and a unit's, of which none waits for the other: the longer decides."""
    before = stimulus.transactions
    owners = {name: of + before for name, of in beside.transaction_of.items()}
    cycles = max(stimulus.cycles, beside.cycles)
    low, high = stimulus.band or (cycles, cycles)
    return dataclasses.replace(
        stimulus,
        inputs=stimulus.inputs | beside.inputs,
        outputs=stimulus.outputs | beside.outputs,
        transaction_of=stimulus.transaction_of | owners,
        transactions=before + beside.transactions,
        cycles=cycles,
        band=stimulus.band and (max(low, cycles), max(high, cycles)),
        notes=stimulus.notes + beside.notes,
    )


def norms(
    p: VectorPathParameters, x: np.ndarray, norm: Sequence[np.float32], notes: list[str]
) -> Stimulus:
    """The stimulus of RMS norms of rows of ``float16 x [vector, n]``, with the core's names.

    norm
        1 / n and eps.
    """
    operation = int(special_function_unit.Operation.RMS_NORM)
    vectors = [special_function_unit.Vector(row, operation, *norm) for row in x]
    return renamed(special_function_unit.build(p.norms, vectors, notes), NORMS)
