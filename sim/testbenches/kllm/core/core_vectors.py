"""Stimulus of the core's operations on vectors, beside its products."""

import dataclasses

import numpy as np

from golden.trace import Trace
from hw.kllm.core.vector_path import ELEMENTS, PAIRS
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.attention import rotary_encoding
from sim.testbenches.kllm import vector_unit


def with_vectors(
    p: KllmCoreParameters,
    stimulus: Stimulus,
    trace: Trace | None,
    vectors: int,
    rng: np.random.Generator,
) -> Stimulus:
    """The stimulus of products, and beside it `vectors` for each of the units that the core has.

    No unit waits for another, so that the longest of all decides how long they take.
    """
    seed = int(rng.integers(1 << 30))
    if p.vector_lanes:
        beside = vector_unit.testbench.stimulus(p.vector_unit, trace, vectors, seed)
        stimulus = _joined(stimulus, beside, ELEMENTS)
    if p.rotary_pairs:
        beside = rotary_encoding.testbench.stimulus(p.rotary_encoding, trace, vectors, seed)
        stimulus = _joined(stimulus, beside, PAIRS)
    return stimulus


def _joined(stimulus: Stimulus, beside: Stimulus, names: dict[str, str]) -> Stimulus:
    """Both, the second with the core's names of its streams."""
    before = stimulus.transactions
    inputs = {outer: beside.inputs[name] for outer, name in names.items() if name in beside.inputs}
    (output,) = (outer for outer, name in names.items() if name in beside.outputs)
    cycles = max(stimulus.cycles, beside.cycles)
    low, high = stimulus.band or (cycles, cycles)
    return dataclasses.replace(
        stimulus,
        inputs=stimulus.inputs | inputs,
        outputs=stimulus.outputs | {output: beside.outputs["o"]},
        transaction_of=stimulus.transaction_of | {output: beside.transaction_of["o"] + before},
        transactions=before + beside.transactions,
        cycles=cycles,
        band=stimulus.band and (max(low, cycles), max(high, cycles)),
        notes=stimulus.notes + beside.notes,
    )
