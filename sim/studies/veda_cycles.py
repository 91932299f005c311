"""Cycles of VEDA's attention and products by the core's formula, at the paper's lengths."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from hw.veda.core_work import ProductWork
from hw.veda.veda_core_parameters import VedaCoreParameters

PROMPT, GENERATED = 512, 1024
"""The paper's; latencies are averaged over the tokens generated so far."""

LENGTHS = range(PROMPT + 1, PROMPT + GENERATED + 1)
"""Rows in view of each token generated, without eviction."""

BASE = ("tree", "separate")
"""Dataflow and scheduling of the machine without what the paper adds."""

LLAMA_LAYERS = 32
LLAMA_PRODUCTS = (
    (4096, 3 * 4096, True),
    (4096, 4096, False),
    (4096, 22016, True),
    (11008, 4096, False),
)
"""Rows and columns of a layer's products in Llama-2-7B, and whether their vector is normalised."""

LLAMA_OUTPUT = 4096, 32000, True
CLOCK = 1e9
STEPS = 100
"""Equal steps that are averaged, so that the start of the first one hardly counts."""


def variant(dataflow: str, scheduling: str, longest: int, **sizes) -> VedaCoreParameters:
    """A core with the paper's array, or one of other `sizes`, for up to `longest` rows."""
    sizes = {"rows": 8, "columns": 8, "arrays": 2} | sizes
    capacity = 1 << (longest - 1).bit_length()
    return VedaCoreParameters(
        **sizes,
        capacity=capacity,
        heads=1,
        kv_heads=1,
        parallel=1,
        dataflow=dataflow,
        scheduling=scheduling,
    )


def averages(p: VedaCoreParameters) -> np.ndarray:
    """Mean cycles of a head over the first 1, 2, ... tokens generated after the prompt."""
    cycles = [p.head_cycles(PROMPT + token) for token in range(1, GENERATED + 1)]
    return np.cumsum(cycles) / np.arange(1, GENERATED + 1)


@functools.cache
def step_cycles(
    p: VedaCoreParameters, lengths: tuple[int, ...], evictions: int, vote: bool = True
) -> float:
    """Mean cycles of a step of all heads, over the given numbers of rows in view."""
    group = -(-p.heads // p.kv_heads)
    steps = [(length, p.heads, group, vote, evictions) for length in lengths]
    return p.cycles(steps) / len(steps)


def tokens_per_second(
    p: VedaCoreParameters, lengths: Sequence[int] = LENGTHS, evictions: int = 0
) -> tuple[float, float]:
    """Of Llama-2-7B, by the formula: products and norms alone, and with attention as well.

    A product reads a row of the matrix a cycle, 256 GB/s at 1 GHz; attention takes the steps' mean
    over `lengths`, the paper's prompt and generated tokens by default.
    """
    core = dataclasses.replace(p, vector=11008, normed=4096, weights=1 << 26)
    layer, output = (
        sum(core.cycles([ProductWork(rows, 1, columns // p.d, norm)]) for rows, columns, norm in of)
        for of in (LLAMA_PRODUCTS, [LLAMA_OUTPUT])
    )
    products = LLAMA_LAYERS * layer + output
    attention = LLAMA_LAYERS * step_cycles(p, tuple(lengths), evictions)
    return CLOCK / products, CLOCK / (products + attention)
