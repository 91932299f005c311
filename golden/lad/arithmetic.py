"""Numbers in the model of LAD's tile: the hardware's, or float64 without its roundings.

Additions, products and adder trees of `golden.arith` work in the format of their operands, so only
conversions and the approximated functions are chosen here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from golden.arith.divide import divide
from golden.arith.formats import canonical
from golden.arith.reciprocal import reciprocal


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """
    number
        Type of K, V, q, scores, factors and outputs.
    sum
        Type of the accumulators and of the caches A to F.
    reciprocal, divide
        1 / x and a / b of arrays of numbers.
    """

    number: type
    sum: type
    reciprocal: Callable[[np.ndarray], np.ndarray]
    divide: Callable[[np.ndarray, np.ndarray], np.ndarray]

    @property
    def exact(self) -> bool:
        """Whether the hardware's roundings are left out."""
        return self.number is np.float64

    def widen(self, x: np.ndarray, power: int | np.ndarray = 0) -> np.ndarray:
        """Numbers times 2^power as sums, exact."""
        with np.errstate(invalid="ignore"):
            return canonical(np.asarray(x, self.sum) * np.ldexp(self.sum(1), power))

    def narrow(self, x: np.ndarray, power: int | np.ndarray = 0) -> np.ndarray:
        """Sums times 2^power rounded to numbers, to nearest even.

        A product that the type of sums does not hold exactly is a zero or an infinity as a number.
        """
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return canonical((x * np.ldexp(self.sum(1), power)).astype(self.number))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.divide(a, b)


FP16 = Arithmetic(np.float16, np.float32, reciprocal, divide)
"""The hardware's: FP16, and FP32 for accumulators and caches."""

FLOAT64 = Arithmetic(np.float64, np.float64, lambda x: _divide(np.ones_like(x), x), _divide)
"""The same steps in float64, for comparison with :mod:`golden.algorithms.lad`."""

ARITHMETICS = {"fp16": FP16, "float64": FLOAT64}
