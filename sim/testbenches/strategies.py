"""Named strategies for random operands, so that a testbench says what it draws and how often.

>>> rng = np.random.default_rng(1)
>>> sometimes(rng, 0.3, 5)
array([False, False,  True, False, False])
>>> pick(rng, {"short": 1, "long": 3})
'long'
>>> mixture(rng, 8, {"zero": (1, 0), "limit": (1, 255), "random": (2, rng.integers(0, 256, 8))})
array([ 69, 211, 255, 104, 255, 255,   0, 255])
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Shape = int | tuple[int, ...]


def sometimes(
    rng: np.random.Generator, probability: float | np.ndarray, shape: Shape | None = None
):
    """True with this probability: one ``bool``, or an array of them where a shape is given."""
    drawn = rng.random(shape) < probability
    return bool(drawn) if np.ndim(drawn) == 0 and shape is None else drawn


def pick(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    """One of the names; the weights need not add up to 1."""
    return str(picks(rng, None, weights))


def picks(rng: np.random.Generator, shape: Shape | None, weights: Mapping[str, float]):
    """An array of names, for :func:`select` or comparisons (``kind == "long"``)."""
    names, weight = np.array(list(weights)), np.array(list(weights.values()), float)
    uniform = (weight == weight[0]).all()  # draws as rng.integers does
    return rng.choice(names, shape, p=None if uniform else weight / weight.sum())


def mixture(
    rng: np.random.Generator, shape: Shape, kinds: Mapping[str, tuple[float, Any]]
) -> np.ndarray:
    """Each element from one of the named kinds, drawn independently.

    rng
        Generator of the choice between kinds.
    shape
        Shape of the choice. With ``(vectors, 1)`` all elements of a vector are of one kind.
    kinds
        ``{name: (weight, values)}``; the values broadcast with `shape`.
    """
    kind = picks(rng, shape, {name: weight for name, (weight, _) in kinds.items()})
    return select(kind, {name: values for name, (_, values) in kinds.items()})


def select(kind: np.ndarray, values: Mapping[str, ArrayLike]) -> np.ndarray:
    """``values[kind]`` element by element, for names that :func:`picks` drew."""
    return np.select([kind == name for name in values], list(values.values()))


def signs(rng: np.random.Generator, shape: Shape | None = None):
    """-1 or 1."""
    return rng.choice([-1, 1], shape)


def powers_of_two(rng: np.random.Generator, low: int, high: int, shape: Shape | None = None):
    """Floating-point powers of two with exponents `low` to ``high - 1``."""
    return 2.0 ** rng.integers(low, high, shape)


def every_magnitude(rng: np.random.Generator, bits: int, shape: Shape) -> np.ndarray:
    """``int64``: unsigned integers of 0 to `bits` bits, each width with the same probability."""
    return rng.integers(0, 1 << 62, shape) >> 62 - rng.integers(0, bits + 1, shape)
