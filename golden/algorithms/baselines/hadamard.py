"""Hadamard transforms of vectors of any length, which spread single large elements evenly.

Lengths are 2^k m with m odd. Sylvester's construction has powers of two alone. As in QuaRot
(Ashkboos et al., arXiv:2404.00456, section 3), the matrix of another length is the Kronecker
product of a small Hadamard matrix and Sylvester's: here Paley's (R. E. A. C. Paley, "On Orthogonal
Matrices", 1933) of the least order m 2^j that has one, such as 36 for 576 = 36 * 16 or 12 for
1536 = 12 * 128. A length without any, such as 9, has an orthogonal matrix of order m in its place,
which spreads less evenly.
"""

import functools

import numpy as np

from golden.algorithms.kllm.fold import rotation
from golden.unicaim.rotation import hadamard, signs


def hadamard_transform(x: np.ndarray) -> np.ndarray:
    """x [..., n] times an orthogonal n x n matrix, of x's dtype; the same matrix for the same n."""
    n = x.shape[-1]
    small = _small(n)
    parts = hadamard(x.reshape(*x.shape[:-1], len(small), -1))
    parts = parts / x.dtype.type(np.sqrt(parts.shape[-1]))
    return np.einsum("...ab,ac->...cb", parts, small.astype(x.dtype), optimize=True).reshape(
        x.shape
    )


def hadamard_matrix(n: int, seed: int) -> np.ndarray:
    """``float64[n, n]``: the transform after random signs, as QuaRot rotates the residual stream.

    Without signs a vector of equal elements would become a single large one.
    """
    return hadamard_transform(np.diag(signs(n, seed).astype(np.float64)))


@functools.cache
def _small(n: int) -> np.ndarray:
    """The orthogonal factor of least order m 2^j, so that n over its order is a power of two."""
    odd = n // (n & -n)
    if odd == 1:
        return np.ones((1, 1))
    order = odd
    while n % order == 0:
        matrix = paley(order)
        if matrix is not None:
            return matrix / np.sqrt(order)
        order *= 2
    return rotation(odd).astype(np.float64)


def paley(order: int) -> np.ndarray | None:
    """Paley's Hadamard matrix of that order, ``int64`` of 1 and -1; None if he has none.

    Order q + 1 for a prime q of 4 i + 3, or 2 (q + 1) for one of 4 i + 1. (Powers of primes, which
    would add orders such as 28 = 27 + 1, are left out.)
    """
    if order % 4 == 0 and _prime(order - 1):
        border = _bordered(order - 1, -1)
        return border + np.eye(order, dtype=np.int64)
    half = order // 2
    if order % 4 == 0 and half % 4 == 2 and _prime(half - 1):
        border = _bordered(half - 1, 1)
        identity = np.eye(half, dtype=np.int64)
        return np.kron(border, [[1, 1], [1, -1]]) + np.kron(identity, [[1, -1], [-1, -1]])
    return None


def _bordered(q: int, left: int) -> np.ndarray:
    """Jacobsthal's matrix of q, whether i - j is a square modulo q, with a border of ones."""
    squares = {i * i % q for i in range(1, q)}
    character = np.array([0] + [1 if i in squares else -1 for i in range(1, q)])
    place = np.arange(q)
    matrix = np.ones((q + 1, q + 1), np.int64)
    matrix[0, 0] = 0
    matrix[1:, 0] = left
    matrix[1:, 1:] = character[(place[:, None] - place) % q]
    return matrix


def _prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))
