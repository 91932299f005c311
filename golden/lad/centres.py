"""Bit-exact model of directional centres among keys, and of the scores estimated from them."""

from dataclasses import dataclass

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import is_nan
from golden.arith.square_root import square_root
from golden.lad.arithmetic import FP16, Arithmetic

COLLINEAR = np.float16(0.98)
"""A key joins a centre if the absolute cosine of their angle is above this."""


@dataclass(frozen=True, eq=False)
class Direction:
    """Words of G of a key, so that the key is about ``dnorm`` times key number ``cid``.

    norm
        Length of the key.
    dnorm
        Length relative to the centre's, negative if the key points the other way; 1 for a centre.
    cid
        Position of its centre: its own if it is one.
    """

    norm: np.ndarray
    dnorm: np.ndarray
    cid: int


def find_centre(
    key: np.ndarray,
    keys: np.ndarray,
    norm: np.ndarray,
    cid: np.ndarray,
    arithmetic: Arithmetic = FP16,
) -> Direction:
    """Algorithm 1 for the new `key` [d] of position p.

    keys, norm, cid
        Tables of the positions before it: [p, d], [p] and int[p]. Positions whose `cid` is their
        own are the centres.

    The centre with the largest absolute cosine wins, the oldest of equals. NaN never wins, for
    example a key's of length 0.

    >>> keys = np.array([[1, 0], [0, 2]], np.float16)
    >>> found = find_centre(np.float16([0, -1]), keys, np.float16([1, 2]), np.array([0, 1]))
    >>> found.cid, float(found.dnorm), float(found.norm)
    (1, -0.5, 1.0)
    """
    position = len(keys)
    length = square_root(adder_tree(float_multiply(key, key)))
    centres = np.flatnonzero(cid == np.arange(position))
    if len(centres):
        dots = adder_tree(float_multiply(key, keys[centres]))
        cos = arithmetic.divide(dots, float_multiply(length, norm[centres]))
        magnitude = np.where(is_nan(cos), 0, np.abs(cos))
        best = magnitude.argmax()  # the first of equals
        if magnitude[best] > COLLINEAR:
            centre = int(centres[best])
            ratio = np.ravel(arithmetic.divide(length, norm[centre]))[0]
            return Direction(length, -ratio if cos[best] < 0 else ratio, centre)
    return Direction(length, arithmetic.number(1), position)


def centre_scores(
    q: np.ndarray, keys: np.ndarray, cid: np.ndarray, dnorm: np.ndarray
) -> np.ndarray:
    """Estimated scores [p] of the p positions before the new one: (q . centre) dnorm.

    ``keys`` [p, d], ``cid`` int[p] and ``dnorm`` [p]. Only keys of centres are read.
    """
    score = np.zeros(len(cid), q.dtype)  # of the centres
    centres = np.flatnonzero(cid == np.arange(len(cid)))
    if len(centres) == 0:
        return score
    score[centres] = adder_tree(float_multiply(q, keys[centres]))
    return float_multiply(score[np.minimum(cid, len(cid) - 1)], dnorm)
