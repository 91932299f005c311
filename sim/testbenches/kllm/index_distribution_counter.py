"""Testbench of the index distribution counter: sets of indices in, counts out."""

import numpy as np
from amaranth.hdl import unsigned

from golden.kllm.concat_unit import concat_unit
from golden.kllm.index_distribution_counter import index_distribution
from golden.trace import Trace
from hw.kllm.index_distribution_counter import IndexDistributionCounterParameters
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.kllm.concat_unit import random_masks, real_indices
from sim.testbenches.strategies import sometimes

COLUMN = 32  # sets cut from one column of a trace


def random_indices(bits: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Rows of any indices, of a few different ones, of ones that differ in one bit, of runs."""
    rows, length = shape
    column = (rows, 1)
    any_index = rng.integers(0, 1 << bits, shape)
    stock = rng.integers(0, 1 << bits, (rows, length))
    repeated = np.take_along_axis(
        stock, rng.integers(0, 1 << 30, shape) % _distinct(length, rows, rng), 1
    )
    close = stock[:, :1] ^ rng.integers(0, 2, shape) << rng.integers(0, bits, column)
    near = stock[:, :1] ^ rng.integers(0, 2, shape) << rng.integers(0, bits, shape)
    # Two indices, each in a run: one may fill half of the row, or all but one position.
    runs = stock[np.arange(rows)[:, None], (np.arange(length) >= _distinct(length, rows, rng)) * 1]
    kind = rng.integers(0, 7, column)
    return np.choose(kind, [any_index, repeated, repeated, repeated, close, near, runs])


def _distinct(length: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """A number from 1 to `length` for each row, half of them up to 4."""
    small = rng.integers(1, min(4, length) + 1, (rows, 1))
    return np.where(sometimes(rng, 0.5, (rows, 1)), small, rng.integers(1, length + 1, (rows, 1)))


class IndexDistributionCounterTestbench(DatapathTestbench):
    """Real indices, or random ones with repetitions; half of the sets count integers."""

    def draw(
        self,
        parameters: IndexDistributionCounterParameters,
        trace: Trace | None,
        vectors: int,
        seed: int,
    ):
        p = parameters
        rng = np.random.default_rng(seed)
        shape = (vectors, p.inputs)
        integer = rng.integers(0, 2, vectors)
        if trace is None:
            index = random_indices(p.index_bits, shape, rng)
            mask = random_masks(shape, rng).astype(np.int64)
            return {"index": index, "mask": mask, "integer_mode": integer}, []
        columns = -(-vectors // COLUMN)
        real, notes = real_indices(
            trace, p.activation_bits, p.weight_bits, COLUMN * p.inputs, columns
        )
        index = concat_unit(real["activation"], real["weight"], p.weight_bits)
        sets = {"index": index, "mask": real["mask"]}
        values = {name: v.reshape(-1, p.inputs)[:vectors] for name, v in sets.items()}
        return values | {"integer_mode": integer}, notes


testbench = IndexDistributionCounterTestbench(
    operands=lambda p: {
        "index": (unsigned(p.index_bits), p.inputs),
        "mask": (unsigned(1), p.inputs),
        "integer_mode": unsigned(1),
    },
    results=lambda p: {"counts": (unsigned(p.count_bits), p.bins)},
    golden=lambda p, index, mask, integer_mode: {
        "counts": index_distribution(index, mask, integer_mode, p.activation_bits, p.weight_bits)
    },
)
